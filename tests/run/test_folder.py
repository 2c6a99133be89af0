"""A run's folder: what is in it, one process at a time, and a crash at any point loses nothing."""

from __future__ import annotations

import fcntl
import json
import re
import sqlite3
import subprocess
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from toy import Toy, play, toy_data

import fedapa as fa
from fedapa.core.tree import equal
from fedapa.errors import InputError, RunError
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import Result
from fedapa.store import atomic_io, checkpoint, run_db, run_folder
from fedapa.store.file_lock import flock

ROUNDS = 5


def tiny() -> fa.Federated:
    """Three clients with two separable classes, one of them with a single class."""
    random = np.random.default_rng(0)
    clients = []
    for n, labels in ((12, 2), (9, 2), (5, 1)):
        y = np.arange(n) % labels
        x = (random.normal(size=(n, 4)) + y[:, None]).astype(np.float32)
        clients.append((x, y, x[:4], y[:4]))
    return fa.from_arrays(clients, classes=2)


def fit(out: Path | None, method: str = "fedapa", **changes: object) -> Result:
    settings = {"lr": 0.1, "batch": 4, "epochs": 1, "rounds": ROUNDS} | changes
    return fa.fit(method, tiny(), "mlp", out=out, **settings)  # type: ignore[arg-type]


def assert_same(one: Path, other: Path) -> None:
    assert run_db.numbers(one / "run.db") == run_db.numbers(other / "run.db")
    names = sorted(path.name for path in (one / "checkpoints").iterdir())
    last = names[-1]
    assert (one / "checkpoints" / last).read_bytes() == (other / "checkpoints" / last).read_bytes()


# --------------------------------------------------------------------------------------------------------- content


def test_log_and_environment_tell_where_numbers_come_from(tmp_path: Path) -> None:
    play(Toy(nan=(1,)), toy_data(), Plan(2, (1.0, 1.0)), folder=tmp_path)
    environment = json.loads((tmp_path / "env.json").read_text())
    assert {"date", "python", "platform", "machine", "cores", "packages"} <= environment.keys()
    assert environment["packages"].keys() >= {"fedapa", "torch", "numpy", "safetensors"}
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} ", line) for line in lines)
    assert [line.split(" ", 1)[1] for line in lines[1:]] == [
        "round 1/2: 3 clients trained",
        "  refused: client 1 refused: w holds NaN",
        "round 2/2: 3 clients trained",
        "  refused: client 1 refused: w holds NaN",
    ]


@pytest.mark.parametrize(("every", "kept"), [(1, [4, 5]), (2, [4, 5]), (3, [3, 5]), (9, [5])])
def test_checkpoint_every(tmp_path: Path, every: int, kept: list[int]) -> None:
    play(Toy(), toy_data(), Plan(5), folder=tmp_path, checkpoint_every=every)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"round-{round:06d}.safetensors" for round in kept]


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        play(Toy(nan=(0, 1, 2, 3)), toy_data(), Plan(2), folder=tmp_path)
    assert run_folder.status(tmp_path) == "failed"
    with run_db.reading(tmp_path / "run.db") as db:
        assert "every upload was refused" in run_db.meta(db)["reason"]
    assert "failed: round 1: every upload" in (tmp_path / "log.txt").read_text()


def test_runs_are_found_at_and_right_below_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a", "empty"):
        (tmp_path / name).mkdir()
    run_folder.create(tmp_path / "b", "x")
    (tmp_path / "a" / "run.db").touch()
    assert run_folder.runs_under(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert run_folder.runs_under(tmp_path / "b") == [tmp_path / "b"]
    assert run_folder.runs_under(tmp_path / "empty") == run_folder.runs_under(tmp_path / "nowhere") == []


# ------------------------------------------------------------------------------------------------------------- lock


def test_a_lock_that_somebody_holds_is_refused_at_once(tmp_path: Path) -> None:
    answers: list[type[Exception]] = []

    def knock() -> None:
        with open(tmp_path / "lock", "w") as mine, pytest.raises(BlockingIOError) as caught:
            flock(mine, wait=False)
        answers.append(caught.type)

    with open(tmp_path / "lock", "w") as held:
        flock(held)
        visitor = threading.Thread(target=knock, daemon=True)
        visitor.start()
        visitor.join(20)
        assert answers == [BlockingIOError]


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / ".lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="in use by another process"):
            fit(tmp_path)
    fit(tmp_path)


# --------------------------------------------------------------------------------------------------- crash and resume


class Crash(BaseException):
    """Nobody catches this, like a power cut."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    fit(path)
    return path


@pytest.mark.parametrize("round", range(1, ROUNDS + 1))
@pytest.mark.parametrize("where", ["before the numbers", "before the checkpoint", "after the checkpoint"])
def test_a_crash_at_any_point_loses_nothing(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, round: int, where: str
) -> None:
    def crash_at(function: object, at: int, after: bool = False) -> object:
        calls = []

        def wrapped(*arguments: object) -> object:
            calls.append(1)
            if len(calls) == at and not after:
                raise Crash
            answer = function(*arguments)  # type: ignore[operator]
            if len(calls) == at:
                raise Crash
            return answer

        return wrapped

    with monkeypatch.context() as patch:
        if where == "before the numbers":
            patch.setattr(run_db.Ledger, "record", crash_at(run_db.Ledger.record, round))
        else:
            patch.setattr(
                checkpoint.Writer, "write", crash_at(checkpoint.Writer.write, round, where.startswith("after"))
            )
        with pytest.raises(Crash):
            fit(tmp_path)
    assert run_folder.status(tmp_path) == "running"
    fit(tmp_path)
    assert run_folder.status(tmp_path) == "finished"
    assert_same(tmp_path, whole)


def test_a_damaged_newest_checkpoint_costs_one_round(tmp_path: Path, whole: Path) -> None:
    fit(tmp_path)
    path = tmp_path / "checkpoints" / f"round-{ROUNDS:06d}.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    fit(tmp_path)
    assert f"resumed after round {ROUNDS - 1}" in (tmp_path / "log.txt").read_text()
    assert_same(tmp_path, whole)


def test_damaged_checkpoints_all_over_are_an_error_and_not_a_new_start(tmp_path: Path) -> None:
    fit(tmp_path)
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(b"")
    with pytest.raises(RunError, match=r"no checkpoint under .* can be read"):
        fit(tmp_path)


def test_half_written_files_are_cleared_away(tmp_path: Path) -> None:
    run_folder.make_folder(tmp_path / "checkpoints")
    litter = [tmp_path / ".env.json.1.part", tmp_path / "checkpoints" / ".round-000001.safetensors.1.part"]
    for path in litter:
        path.write_text("half")
    fit(tmp_path)
    assert not any(path.exists() for path in litter)


def test_a_full_disk_is_a_run_error_and_resume_goes_on(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *content: bytes) -> None:
        if "round-000003" in path.name:
            raise RunError(f"cannot write {path}: No space left on device", "is the disk full?")
        write_atomically(path, *content)

    write_atomically = checkpoint.write_atomically
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_atomically", full)
        with pytest.raises(RunError, match="No space left"):
            fit(tmp_path)
    assert run_folder.status(tmp_path) == "failed"
    fit(tmp_path)
    assert_same(tmp_path, whole)


# ---------------------------------------------------------------------------------------------------- the same folder


def test_fitting_again_in_a_finished_folder_gives_the_same_result(tmp_path: Path) -> None:
    first, before = fit(tmp_path), run_db.numbers(tmp_path / "run.db")
    again = fit(tmp_path)
    assert run_db.numbers(tmp_path / "run.db") == before
    assert first.curve("after") == again.curve("after")
    assert len(again.logs) == ROUNDS
    assert equal(first.state.server, again.state.server)
    assert all(equal(a.state, b.state) for a, b in zip(first.records, again.records, strict=True))


@pytest.mark.parametrize(
    "other", [{"method": "fedavg"}, {"seed": 1}, {"lr": 0.2}, {"rounds": 9}, {"participation": 1.0}, {"batch": 2}]
)
def test_a_folder_with_another_run_is_refused_and_left_alone(tmp_path: Path, other: dict[str, object]) -> None:
    fit(tmp_path)
    before = run_db.numbers(tmp_path / "run.db")
    with pytest.raises(InputError, match="holds another run"):
        fit(tmp_path, **other)  # type: ignore[arg-type]
    assert run_db.numbers(tmp_path / "run.db") == before
    assert run_folder.status(tmp_path) == "finished"


# ------------------------------------------------------------------------------------------------ what must not be lost


@pytest.mark.parametrize("rounds", [(0,), (1, 2), (3,), range(5)])
def test_a_checkpoint_ahead_of_its_ledger_is_an_error_with_a_remedy(tmp_path: Path, rounds: Iterable[int]) -> None:
    """Without its log, run.db lacks the newest rounds; a finished run with holes would come of it."""
    play(Toy(), toy_data(), Plan(5), folder=tmp_path)
    (tmp_path / "checkpoints" / "round-000005.safetensors").unlink()
    with closing(sqlite3.connect(tmp_path / "run.db")) as db, db:
        db.executemany("DELETE FROM round WHERE round = ?", [(t,) for t in rounds])
    kept = 4 - len([t for t in rounds if t < 4])
    with pytest.raises(RunError, match=f"the checkpoint is after round 4, but run.db holds {kept} of these") as caught:
        play(Toy(), toy_data(), Plan(5), folder=tmp_path)
    assert "restore run.db" in caught.value.hint
    assert run_folder.status(tmp_path) != "finished"


def test_the_remedy_for_a_lost_ledger_works(tmp_path: Path) -> None:
    for name in ("one", "other"):
        play(Toy(), toy_data(), Plan(5), folder=atomic_io.make_folder(tmp_path / name))
    (tmp_path / "one" / "run.db").unlink()
    with pytest.raises(RunError, match="holds 0 of these") as caught:
        play(Toy(), toy_data(), Plan(5), folder=tmp_path / "one")
    subprocess.run(caught.value.hint.rpartition("start again: ")[2], shell=True, check=True)
    play(Toy(), toy_data(), Plan(5), folder=tmp_path / "one")
    assert_same(tmp_path / "one", tmp_path / "other")


def test_a_new_folder_is_safe_once_its_parent_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(atomic_io, "_sync_folder", synced.append)
    atomic_io.make_folder(tmp_path / "a" / "b" / "c")
    assert set(synced) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}
    synced.clear()
    atomic_io.make_folder(tmp_path / "a" / "b" / "c")
    assert synced == []
    play(Toy(), toy_data(), Plan(1), folder=atomic_io.make_folder(tmp_path / "run"))
    assert tmp_path / "run" in synced  # of run/checkpoints
