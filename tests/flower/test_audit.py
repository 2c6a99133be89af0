"""The audit log: everything that matters is in it, and no line can be changed, removed or added unnoticed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet import NAMES, Direct, config_text, grid, make_sites, over_grid, terms_of

from command import Call
from fedapa.core.tree import digest
from fedapa.errors import InputError, RunError
from fedapa.federation import audit_log
from fedapa.federation.messages import digest_of
from fedapa.federation.registry import Coordinator, Enrolled, Settings, create
from fedapa.store import run_folder
from fedapa.transports.flower import session
from fedapa.transports.flower.serialization import pack, unpack


def made(folder: Path, lines: int = 5) -> list[audit_log.Head]:
    return [audit_log.append(folder, "sent", round=k, text="naïve\n\x1b[2J") for k in range(lines)]


def rewritten(folder: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path = folder / audit_log.LOG
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def test_a_whole_log_is_verified_and_shown(tmp_path: Path, fedapa: Call) -> None:
    heads = made(tmp_path)
    assert audit_log.verify(tmp_path) == heads[-1] == audit_log.Head(5, heads[-1].hash)
    answer = fedapa("audit", tmp_path, "--last", 2, "--expect", heads[1].hash)
    assert (answer.code, "\x1b" in answer.out) == (0, False)
    assert answer.out.splitlines()[-1] == f"5 lines, chain valid; the last has the hash {heads[-1].hash}"
    assert len(answer.out.splitlines()) == 3
    told = json.loads(fedapa("audit", tmp_path, "--format", "json").out)
    assert (told["lines"], told["hash"], len(told["last"])) == (5, heads[-1].hash, 5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [line.replace(b'"round": 2', b'"round": 9') for line in lines], "line 3 does not follow"),
        (lambda lines: lines[:2] + lines[3:], "line 3 does not follow"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3 does not follow"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1 does not follow"),
        (lambda lines: lines[:3], "ends with line 3, audit.head.json says 5"),
        (lambda lines: [], "ends with line 0, audit.head.json says 5"),
        (lambda lines: [*lines[:4], b"[[[[\n"], "line 5 does not follow"),
    ],
)
def test_whatever_is_changed_is_found(
    change: Callable[[list[bytes]], list[bytes]], said: str, tmp_path: Path, fedapa: Call
) -> None:
    made(tmp_path)
    rewritten(tmp_path, change)
    with pytest.raises(InputError, match=said):
        audit_log.verify(tmp_path)
    assert fedapa("audit", tmp_path).code == 2


@pytest.mark.parametrize("kept", [0, 1, 3, 4])
def test_lines_that_were_cut_off_are_not_hidden_by_the_next_one(kept: int, tmp_path: Path) -> None:
    made(tmp_path)
    rewritten(tmp_path, lambda lines: lines[:kept])
    with pytest.raises(InputError, match=f"ends with line {kept}, audit.head.json says 5"):
        audit_log.append(tmp_path, "sent", round=5)
    with pytest.raises(InputError, match=f"ends with line {kept}, audit.head.json says 5"):
        audit_log.verify(tmp_path)


def test_a_log_without_its_head_is_not_continued(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / audit_log.HEAD).unlink()
    for work in (audit_log.verify, lambda folder: audit_log.append(folder, "sent")):
        with pytest.raises(InputError, match=r"ends with line 5, .* says 0"):
            work(tmp_path)


def test_a_half_written_line_behind_a_long_one_is_removed(tmp_path: Path) -> None:
    audit_log.append(tmp_path, "first")
    long = audit_log.append(tmp_path, "terms", text="x" * 2 * audit_log.TAIL)
    with open(tmp_path / audit_log.LOG, "ab") as file:
        file.write(b'{"number": 3, "at')
    assert audit_log.append(tmp_path, "next").number == long.number + 1
    assert audit_log.verify(tmp_path).number == 3


def test_a_long_line_is_followed_by_others(tmp_path: Path) -> None:
    for size in (10, 5_000_000, 70_000, 10):
        audit_log.append(tmp_path, "agreed", sites=["x" * size])
    assert audit_log.verify(tmp_path).number == 4


def test_a_process_killed_after_its_first_line_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    made(tmp_path, 1)
    (tmp_path / audit_log.HEAD).unlink()
    audit_log.verify(tmp_path)
    audit_log.append(tmp_path, "sent")
    assert audit_log.verify(tmp_path).number == 2


def test_any_byte_that_is_changed_is_found(tmp_path: Path) -> None:
    made(tmp_path)
    path, chance = tmp_path / audit_log.LOG, random.Random(0)
    whole = path.read_bytes()
    for _ in range(200):
        content = bytearray(whole)
        at = chance.randrange(len(content))
        content[at] ^= 1 + chance.randrange(255)
        path.write_bytes(bytes(content))
        with pytest.raises(InputError):
            audit_log.verify(tmp_path)


def test_a_log_that_was_written_anew_does_not_hold_the_hash_that_was_kept(tmp_path: Path) -> None:
    made(tmp_path)
    for name in (audit_log.LOG, audit_log.HEAD):
        (tmp_path / name).unlink()
    made(tmp_path, 4)
    audit_log.append(tmp_path, "sent", round=2)
    audit_log.verify(tmp_path)
    with pytest.raises(InputError, match="holds no line with the hash"):
        audit_log.verify(tmp_path, "f" * 64)


def test_a_process_killed_at_any_byte_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    made(tmp_path, 3)
    path = tmp_path / audit_log.LOG
    before = path.stat().st_size
    head = (tmp_path / audit_log.HEAD).read_bytes()
    audit_log.append(tmp_path, "sent", round=3)
    whole = path.read_bytes()
    for cut in range(before, len(whole) + 1, 7):
        path.write_bytes(whole[:cut])
        (tmp_path / audit_log.HEAD).write_bytes(head)
        audit_log.verify(tmp_path)
        audit_log.append(tmp_path, "sent", round=4)
        audit_log.verify(tmp_path)


# Not a function of this file: the processes would load Flower and PyTorch first.
WRITER = """
import sys
from pathlib import Path
from fedapa.federation import audit_log
for k in range(20):
    audit_log.append(Path(sys.argv[1]), "sent", round=k, text="naïve\\n\\x1b[2J")
"""


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert audit_log.verify(tmp_path).number == 60


def test_a_site_notes_what_was_agreed_what_left_and_what_it_refused(tmp_path: Path) -> None:
    terms, sites = terms_of(config_text(rounds=2, participation=(1.0, 1.0))), make_sites(tmp_path)
    session = Recording(sites)
    over_grid(grid(session, terms), terms)
    rows = audit_log.read(sites[0])
    assert [row["event"] for row in rows] == ["agreed", "sent", "sent"]
    assert (rows[0]["run"], rows[0]["sites"], rows[0]["terms"]) == (terms.run, 4, digest_of(terms.config))
    assert rows[0]["names"] == digest_of("\n".join(NAMES))
    assert [row["digest"] for row in rows[1:]] == session.left[100]
    assert rows[1]["tensors"] == ["theta"]
    greedy = terms_of(config_text(rounds=2, participation=(1.0, 1.0)).replace("batch = 32", "batch = 1"), "cd" * 8)
    with pytest.raises(RunError):
        over_grid(grid(Direct(sites), greedy), greedy)
    last = audit_log.read(sites[0])[-1]
    assert (last["event"], "training.batch = 1 is too small" in last["reason"]) == ("refused", True)
    audit_log.verify(sites[0])


class Recording(Direct):
    """Notes the digest of every upload that left a site."""

    def __init__(self, sites: list[Path]) -> None:
        super().__init__(sites)
        self.left: dict[int, list[str]] = {}

    def answer(self, message):  # type: ignore[no-untyped-def]
        reply = super().answer(message)
        if reply is not None and reply.content["answer"]["trained"]:
            self.left.setdefault(message.metadata.dst_node_id, []).append(digest(unpack(reply.content["up"])))
        return reply


def test_an_upload_that_cannot_be_noted_does_not_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terms, sites = terms_of(config_text(rounds=1, participation=(1.0, 1.0))), make_sites(tmp_path)

    def full(folder: Path, event: str, **facts: object) -> None:
        if folder == sites[0]:
            raise RunError("cannot write audit.jsonl", "is the disk full?")

    monkeypatch.setattr(audit_log, "append", full)
    session = Recording(sites)
    over_grid(grid(session, terms), terms)
    assert sorted(session.left) == [101, 102, 103]


def test_a_coordinator_notes_who_was_enrolled_and_removed(tmp_path: Path) -> None:
    coordinator = create(tmp_path / "coordinator", Settings(proxy_port=0), [], None, None)
    coordinator.enrol("amber", tmp_path / "amber")
    coordinator.remove("amber")
    rows = audit_log.read(coordinator.folder)
    assert [row["event"] for row in rows] == ["coordinator made", "site added", "site removed"]
    assert audit_log.verify(coordinator.folder).number == 3


def test_a_run_is_in_the_coordinators_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `coordinator run` plays it, over a session without a network; one site was turned down by a limit."""
    coordinator = create(tmp_path / "coordinator", Settings(proxy_port=0), [], None, None)
    sites = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]
    folders = make_sites(tmp_path / "sites")
    monkeypatch.setattr(Coordinator, "members", lambda self: sites)
    monkeypatch.setattr(session, "FlowerSession", lambda *_, **__: Closing(folders))
    run_folder.create(tmp_path / "run", config_text(rounds=2, participation=(1.0, 1.0)))
    session.conduct(coordinator, tmp_path / "run")
    rows = audit_log.read(coordinator.folder)
    assert [row["event"] for row in rows] == ["coordinator made", "run begun", "agreed", "refused", "run ended"]
    assert rows[2]["sites"] == NAMES
    assert (rows[3]["site"], rows[3]["round"]) == ("birch", 2)
    assert rows[2]["terms"] == audit_log.read(folders[0])[1]["terms"]  # coordinator and site agreed on the same
    audit_log.verify(coordinator.folder)


class Closing(Direct):
    """Birch's second upload is no number."""

    def answer(self, message):  # type: ignore[no-untyped-def]
        reply = super().answer(message)
        if "ask" in message.content and message.metadata.dst_node_id == 101 and message.content["ask"]["round"] == 1:
            up = {name: leaf * float("nan") for name, leaf in unpack(reply.content["up"]).items()}
            reply.content["up"] = pack(up)
        return reply

    def close(self, finished: bool) -> None:
        return
