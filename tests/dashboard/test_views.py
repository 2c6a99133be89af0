"""What the pages are told, by hand; and what becomes of files that are damaged or half there."""

from __future__ import annotations

import io
import os
import shutil
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the dashboard is not installed: pip install 'fedapa[dashboard]'")

from rich.console import Console
from serving import Writer

from command import Call, started
from fedapa.dashboard import terminal, views
from fedapa.dashboard.board import Board
from fedapa.dashboard.server import Server
from fedapa.errors import InputError
from fedapa.store import run_db
from made_runs import change, make_run

LOCAL, OURS = [[2, 4, 6], [4, 5, 6]], [[3, 4, 5], [5, 6, 5]]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs" / "local-seed0", "local", LOCAL)
    make_run(tmp_path / "runs" / "fedapa-seed0", "fedapa", OURS, weights=True)
    return tmp_path / "runs"


def test_overview_by_hand(top: Path) -> None:
    board = Board(top)
    view = views.plain(views.overview(board, board.look()))
    assert (view["kind"], view["states"], view["rounds_done"], view["seconds_left"]) == (
        "runs",
        {"finished": 2},
        4,
        None,
    )
    (scenario,) = view["scenarios"]
    (fedapa,) = [row for row in scenario["methods"] if row["method"] == "fedapa"]
    assert (fedapa["after_last"], fedapa["gain"], fedapa["title"]) == (pytest.approx(53.33333), [2, 0, 1], "FedAPA")
    assert scenario["curves"]["fedapa"] == {"rounds": [1, 2], "before": [30.0, 43.33], "after": [40.0, 53.33]}


def test_a_run_under_way_is_compared_at_the_last_round_of_both(top: Path) -> None:
    """After its first round FedAPA has 3, 4 and 5 right, Local 2, 4 and 6 then, and 4, 5 and 6 in the end."""
    make_run(top / "fedper-seed0", "fedper", OURS[:1], status="running", rounds=2)
    now = Board(top).look()
    (row,) = [row for row in now.scenarios[0].rows if row.method == "fedper"]
    assert (row.gain.clients, row.gain.round, row.standing.verdict) == ((1, 1, 1), 1, "not compared: at round 1")
    view = views.clients(now, "fedper-seed0")
    assert ([one["gain"] for one in view["clients"]], view["gain_round"]) == ([10, 0, -10], 1)
    chosen = views.compare(now, ["fedper-seed0", "local-seed0"], "fedper")
    (local,) = [row for row in chosen["rows"] if row["method"] == "local"]
    assert (local["gain"], local["gain_round"]) == ([1, 1, 1], 1)


def test_clients_have_exact_intervals(top: Path) -> None:
    """Client 1 has 6 of 10 right; by the tables that is 26.2 to 87.8 %. A single test sample has no interval."""
    change(top / "fedapa-seed0", "UPDATE client_score SET sum = 1, count = 1 WHERE client = 2 AND phase = 'after'")
    first, second, third = views.clients(Board(top).look(), "fedapa-seed0")["clients"]
    assert second["interval"] == pytest.approx([26.24, 87.84], abs=0.01)
    assert first["interval"] == pytest.approx([18.71, 81.29], abs=0.01)
    assert third["interval"] is None


def test_clients_by_hand(top: Path) -> None:
    now = Board(top).look()
    view = views.plain(views.clients(now, "fedapa-seed0"))
    assert view["round"] == 2
    assert [row["gain"] for row in view["clients"]] == [10, 10, -10]
    assert [row["own"] for row in view["clients"]] == [0.9] * 3
    assert view["clients"][1] | {} == view["clients"][1] | {
        "before": 50,
        "after": 60,
        "classes": 2,
        "visits": 2,
        "kib": 2,
    }
    one = views.plain(views.client(now, "fedapa-seed0", 2))
    assert (one["rounds"], one["before"], one["after"]) == ([1, 2], [40, 40], [50, 50])
    assert one["bytes"] == {"rounds": [1, 2], "down": [0.5, 1], "up": [0.5, 1]}
    assert one["weights"]["lines"][0] == {"name": "2", "client": 2, "values": [1.0, 0.9]}
    assert one["classes"][2] == "bird"
    assert "no client 3" in views.client(now, "fedapa-seed0", 3)["trouble"]


def test_weights_of_a_round_and_the_nearest(top: Path) -> None:
    now = Board(top).look()
    view = views.plain(views.weights(now, "fedapa-seed0", 1))
    assert (view["rounds"], view["round"], view["A"][0]) == ([1, 2], 1, [1.0, 0.1, 0.1])
    assert views.weights(now, "fedapa-seed0", 99)["round"] == 2
    # Clients 0 and 1 share one of their two labels, 0 and 2 none: 0, 1, 2 or the other way round.
    assert view["similar"] == [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]]
    assert view["order"][1] == 1
    again = views.weights(now, "fedapa-seed0", 2, known=view["like"])  # what is known is not sent again
    assert (again["round"], again.keys() & {"similar", "order"}) == (2, set())
    assert "similar" in views.weights(now, "fedapa-seed0", 2, known="of another run")
    course = views.plain(views.course(now, "fedapa-seed0"))
    assert (course["rounds"], course["mean"]) == ([1, 2], [1.0, 0.9])
    # Both others give 0.1; from round 1 to 2 a tenth left every row, and half of the change counts.
    assert (view["partners"], view["groups"]) == ([2, 2, 2], [])
    assert (course["partners"], course["moved"]) == ([2, 2], [None, 0.05])
    assert views.weights(now, "local-seed0", None)["rounds"] == []


def test_compare_takes_chosen_runs(top: Path) -> None:
    now = Board(top).look()
    view = views.plain(views.compare(now, ["local-seed0", "fedapa-seed0"], "fedapa"))
    rows = {row["method"]: row for row in view["rows"]}
    assert rows["local"]["gain"] == [1, 0, 2]
    assert [curve["run"] for curve in view["curves"]] == ["fedapa-seed0", "local-seed0"]
    assert views.compare(now, [], "local")["rows"] == []
    with pytest.raises(InputError, match="no run 'nowhere'"):
        views.compare(now, ["nowhere"], "local")


def test_events_and_config(top: Path) -> None:
    change(top / "fedapa-seed0", "INSERT INTO event VALUES (1, 1, 2, 'refused', 'not finite')")
    (top / "fedapa-seed0" / "log.txt").write_text(
        "2026-01-01T00:00:00 started: fedapa run\n2026-01-02T00:00:00 round 1/2\n"
    )
    now = Board(top).look()
    first, second = views.events(now, "fedapa-seed0")["events"]
    assert (first["kind"], first["round"], first["client"], first["text"]) == ("refused", 2, "2", "not finite")
    assert (second["kind"], second["text"], second["when"]) == ("started", "fedapa run", "2026-01-01T00:00:00")
    view = views.config(now, "fedapa-seed0")
    assert view["tables"]["data"]["alpha"] == 0.1
    assert view["about"]["label"] == "fedapa"


def test_only_what_changed_is_read_again(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedapa.dashboard import board as module

    for path in top.rglob("*"):
        os.utime(path, (0, 0))  # long ago
    board, read = Board(top), []
    board.look()
    real = module.read_run
    monkeypatch.setattr(module, "read_run", lambda path, name, **words: read.append(name) or real(path, name, **words))
    assert (board.look(0).version, read) == (1, [])
    change(top / "local-seed0", "UPDATE meta SET value = 'failed' WHERE key = 'status'")
    assert (board.look(0).version, read) == (2, ["local-seed0"])
    assert board.look(0).entry("local-seed0").state == "failed"


def test_a_change_within_one_tick_of_the_clock_is_seen(top: Path) -> None:
    """Neither the size of the file nor its time tells of it."""
    db, board = top / "local-seed0" / "run.db", Board(top / "local-seed0")
    assert Board(top).look(0)  # what is imported then takes longer than a tick
    os.utime(db)
    before = db.stat()
    (entry,) = board.look(0).entries.values()
    assert entry.state == "finished"
    change(top / "local-seed0", "UPDATE meta SET value = 'failed' WHERE key = 'status'")
    os.utime(db, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert db.stat().st_size == before.st_size
    assert board.look(0).entry(entry.name).state == "failed"


def test_a_run_that_is_going_or_was_cut_off(tmp_path: Path) -> None:
    writer, board = Writer(tmp_path / "runs" / "a", 3, rounds=10), Board(tmp_path / "runs")
    assert board.look(0).entry("a").state == "running"  # before the first round
    writer.play(4)
    entry = board.look(0).entry("a")
    assert (entry.state, entry.done, entry.seconds_left) == ("running", 4, pytest.approx(6.0))
    assert board.seconds_left(board.look(0)) == pytest.approx(6.0)
    writer.close()
    assert board.look(0).entry("a").state == "cut off"
    assert board.seconds_left(board.look(0)) is None


def test_looking_leaves_nothing_behind_and_disturbs_nobody(tmp_path: Path) -> None:
    writer, board = Writer(tmp_path / "runs" / "a", 3, rounds=10), Board(tmp_path / "runs")
    for _ in range(5):
        writer.play()
        views.overview(board, board.look(0))
        views.clients(board.look(0), "a")
    writer.finish()
    assert sorted(path.name for path in (tmp_path / "runs" / "a").iterdir()) == [".lock", "run.db"]  # no -wal, no -shm
    before = (tmp_path / "runs" / "a" / "run.db").read_bytes()
    assert board.look(0).entry("a").state == "finished"
    views.weights(board.look(0), "a", None)
    assert (tmp_path / "runs" / "a" / "run.db").read_bytes() == before


def test_damaged_and_half_written_files_are_told(top: Path) -> None:
    whole = (top / "local-seed0" / "run.db").read_bytes()
    for name, content in {
        "garbage": b"garbage" * 99,
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "bit": whole,
    }.items():
        (top / name).mkdir()
        (top / name / "run.db").write_bytes(content)
    change(top / "bit", "UPDATE meta SET value = 'many' WHERE key = 'seed'")
    shutil.copytree(top / "fedapa-seed0", top / "columns")
    change(top / "columns", "UPDATE watched SET shape = 'nonsense'", "UPDATE client SET labels = 'a,b'")
    board = Board(top)
    now = board.look()
    states = {name: entry.state for name, entry in now.entries.items()}
    assert states["fedapa-seed0"] == states["local-seed0"] == "finished"
    assert states["garbage"] == states["half"] == states["bit"] == states["columns"] == "unreadable"
    assert states["empty"] == "planned"
    views.overview(board, now)
    views.events(now, None)
    for name in ("garbage", "empty", "half"):
        assert "trouble" in views.clients(now, name)
        assert "trouble" in views.weights(now, name, None)
        assert "trouble" in views.config(now, name)
    assert "trouble" in views.clients(now, "columns")
    assert "not a readable run.db" in views.clients(now, "garbage")["trouble"]


def test_a_sweep_and_why_its_runs_failed(top: Path) -> None:
    from fedapa.store.sweep_db import Planned, Store

    store = Store(top)
    (top / "x").mkdir()
    (top / "x" / "config.toml").write_text((top / "local-seed0" / "config.toml").read_text())
    store.plan([Planned("x", "", "local", 1, 2)])
    store.note("x", "failed", "no data")
    board = Board(top)
    entry = board.look().entry("x")
    assert (board.kind, entry.state, entry.reason) == ("sweep", "failed", "no data")
    (top / "sweep.db").write_bytes(b"garbage" * 99)
    assert Board(top).look().entry("x").state == "planned"


def test_numbers_become_json() -> None:
    found = views.plain({"a": np.array([1.0, np.nan]), 2: (np.int64(3), float("inf"), "x", None, True)})
    assert found == {"a": [1.0, None], "2": [3, None, "x", None, True]}
    assert views.thinned(3) == [0, 1, 2]
    assert views.thinned(1000, 3) == [0, 500, 999]


def test_moments_stay_the_same_as_rounds_come() -> None:
    assert views.landmarks([1, 2, 3], 4) == [1, 2, 3]
    assert views.landmarks([1, 2, 3, 4, 5, 6], 4) == [1, 3, 5, 6]
    before, after = (views.landmarks(list(range(1, n))) for n in (500, 501))
    assert len(after) <= views.MOST_MOMENTS
    assert set(before[:-1]) <= set(after)  # all but the newest were worked out before


def test_the_terminal_shows_the_same(top: Path) -> None:
    change(top / "local-seed0", "UPDATE meta SET value = 'failed' WHERE key = 'status'")
    console = Console(width=100, record=True, file=io.StringIO())
    terminal.watch(top, console)
    text = console.export_text()
    assert "1 of 2 runs finished" in text
    assert "failed" in text
    assert "FedAPA 53.33 %" in text


def test_the_command_and_its_mistakes(fedapa: Call, top: Path) -> None:
    answer = fedapa("watch", top, "--tui")
    assert answer.code == 0
    assert "fedapa-seed0" in answer.out
    assert fedapa("watch", "nowhere").code == 2
    answer = fedapa("watch", top, "--host", "no.such.host.invalid")
    assert (answer.code, answer.err.split(":")[0]) == (2, "error")
    assert run_db.is_begun(top / "fedapa-seed0" / "run.db")


@pytest.mark.parametrize(("host", "is_open"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_a_token_is_made_up_where_others_can_come(
    fedapa: Call, top: Path, monkeypatch: pytest.MonkeyPatch, host: str, is_open: bool
) -> None:
    monkeypatch.delenv("FEDAPA_TOKEN", raising=False)
    monkeypatch.setattr(Server, "run", lambda self, sockets: None)
    answer = fedapa("watch", top, "--host", host, "--port", 0)
    _, _, token = answer.out.strip().partition("?token=")
    assert (answer.code, len(token) >= 32) == (0, not is_open)


def test_the_command_as_a_process_until_ctrl_c(top: Path) -> None:
    with started("watch", top, "--port", 0, "--token", "abc") as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        assert address.endswith("/?token=abc")
        asked = urllib.request.Request(address.split("?")[0] + "api/stream", headers={"Authorization": "Bearer abc"})
        with urllib.request.urlopen(asked, timeout=30) as stream:  # open while the server ends
            assert stream.readline() == b"retry: 1000\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "Ctrl-C ends it\n"


def test_the_sites_of_a_coordinator(top: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedapa[flower]'")
    from fedapa.federation.registry import Settings, create

    made = create(tmp_path / "home", Settings(port=1, proxy_port=0), [], None, None)
    made.enrol("hospital-a", tmp_path / "kit")
    board = Board(top, tmp_path / "home")
    (site,) = views.overview(board, board.look())["sites"]
    assert (site["site"], site["state"], site["refusals"]) == ("hospital-a", "unknown", 0)  # nobody answers on port 1
    assert Board(top).look().sites == ()


def test_a_coordinator_that_is_none(fedapa: Call, top: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedapa[flower]'")
    answer = fedapa("watch", top, "--coordinator", top)
    assert (answer.code, "is not a coordinator's folder" in answer.err) == (2, True)


def test_weights_of_many_clients_are_summed_up_by_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients 0 and 2, and 1 and 3, have the same labels; a client gives 0.1 to each of the others."""
    monkeypatch.setattr(views, "LARGEST_MATRIX", 3)
    monkeypatch.setattr(views, "BLOCKS", 2)
    run = make_run(tmp_path / "runs" / "fedapa-seed0", "fedapa", [[5] * 4, [6] * 4], weights=True)
    change(run, *(f"UPDATE client SET labels = '{'50,0' if i % 2 else '0,50'}' WHERE client = {i}" for i in range(4)))
    now = Board(run.parent).look()
    view = views.plain(views.weights(now, "fedapa-seed0", None))
    assert (view["blocks"], len(view["names"]), view["order"], view["groups"]) == (4, 2, [0, 1], [])
    assert all(name.endswith("and 1 more") for name in view["names"])
    assert np.array(view["A"]) == pytest.approx(np.array([[0.1, 0.2], [0.2, 0.1]]))  # one other inside, two outside
    assert view["similar"] == [[1.0, 0.0], [0.0, 1.0]]
    assert views.plain(views.course(now, "fedapa-seed0"))["mean"] == pytest.approx([1.0, 0.9])
    monkeypatch.setattr(views, "LARGEST_IN_BLOCKS", 3)
    assert "too many to draw" in views.weights(now, "fedapa-seed0", None)["trouble"]
