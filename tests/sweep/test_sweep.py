"""Many runs side by side: killed and started again, failing alone, shared by two sweeps."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from command import SMALL, Call, started, wait_for
from fedapa.config.grid import laid_over, load_scenarios
from fedapa.config.load import load
from fedapa.data.sources import source
from fedapa.errors import InputError
from fedapa.store import run_db, run_folder
from fedapa.store.sweep_db import NAME, Planned, Store
from fedapa.sweep import cost, pool, runner

GRID = (
    SMALL.replace("epochs = 1", "epochs = 3").replace("rounds = 3", 'rounds = 5\nengine = "torch"')
    + """
[scenario]
few.data = { clients = 3 }
many.data = { clients = 5, alpha = 1.0 }
"""
)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of the grid, played one after another in this process."""
    from fedapa.config.experiment import execute

    out = tmp_path_factory.mktemp("whole")
    path = out / "grid.toml"
    path.write_text(GRID)
    for run in runner.lay_out_all(list(load_scenarios(str(path)).items()), out):
        execute(run)
    return out


def finished(out: Path) -> list[Path]:
    return [run for run in run_folder.runs_under(out) if run_folder.status(run) == "finished"]


def sessions(run: Path) -> int:
    """How often a run was started or continued."""
    text = (run / "log.txt").read_text()
    return sum(word in line for line in text.splitlines() for word in ("started:", "resumed after"))


def states(out: Path) -> dict[str, str]:
    return {run["path"]: run["state"] for run in Store(out).runs()}


def test_killed_at_three_random_moments(
    grid: Path, tmp_path: Path, undisturbed: Path, here: None, fedapa: Call
) -> None:
    out, chance = tmp_path / "out", random.Random(int.from_bytes(os.urandom(4)))
    for kills, jobs in enumerate((2, 1, 1)):
        before = {run: sessions(run) for run in finished(out)} if out.exists() else {}
        with started("sweep", grid, "--out", out, "--jobs", jobs) as killed:
            wait_for(lambda: (out / NAME).exists() and len(finished(out)) > kills, killed)  # noqa: B023
            time.sleep(chance.random() * 0.5)
            os.kill(killed.pid, signal.SIGKILL)  # the parent alone: its workers have to notice
            killed.wait()
        deadline = time.monotonic() + 30
        while any(run_folder.status(run) == "running" and run_folder.in_use(run) for run in run_folder.runs_under(out)):
            assert time.monotonic() < deadline, "a worker outlived its sweep"
            time.sleep(0.01)
        assert {run: sessions(run) for run in before} == before  # what was finished is left alone
    answer = fedapa("resume", out, "--format", "json")
    assert answer.code == 0
    assert len(json.loads(answer.out)["runs"]) == 6
    assert set(states(out).values()) == {"finished"}
    for run in run_folder.runs_under(out):
        whole = undisturbed / run.relative_to(out)
        assert run_db.numbers(run / "run.db") == run_db.numbers(whole / "run.db")
    kept = json.loads((out / runner.RESULTS).read_text())["runs"]
    assert sorted((run["scenario"], run["label"]) for run in kept) == [
        (scenario, method) for scenario in ("few", "many") for method in ("fedapa", "fedavg", "local")
    ]


def test_ctrl_c_says_how_to_go_on(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with started("sweep", grid, "--out", out, "--jobs", 1) as one:
        wait_for(lambda: (out / NAME).exists() and "running" in states(out).values(), one)
        os.killpg(one.pid, signal.SIGINT)
        _, err = one.communicate(timeout=60)
    assert one.returncode == 3
    said = [line for line in err.splitlines() if not line.startswith("[")]  # progress, on a slow machine
    assert said == ["error: interrupted", f"hint: `fedapa resume {out}` goes on"]


def test_a_run_that_fails_stops_no_other_and_is_tried_again(
    grid: Path, tmp_path: Path, here: None, fedapa: Call
) -> None:
    out = tmp_path / "out"
    broken = out / "few" / "fedavg-seed0"
    assert fedapa("sweep", grid, "--out", out, "--only", "few/local*").code == 0
    paths = runner.lay_out_all(list(load_scenarios(str(grid)).items()), out, "few/*")
    (broken / "run.db").write_text("no database")
    answer = fedapa("sweep", grid, "--out", out, "--only", "few/*")
    assert answer.code == 1
    assert "1 of 3 runs failed:\n  few/fedavg-seed0:" in answer.err
    assert f"`fedapa resume {out}` tries them again" in answer.err
    assert [path.name for path in paths] == ["fedapa-seed0", "fedavg-seed0", "local-seed0"]
    assert states(out) == {"few/fedapa-seed0": "finished", "few/fedavg-seed0": "failed", "few/local-seed0": "finished"}
    (broken / "run.db").unlink()
    assert fedapa("resume", out).code == 0
    assert set(states(out).values()) == {"finished"}
    assert sessions(out / "few" / "local-seed0") == 1


def test_a_worker_that_dies_between_two_runs_takes_none_with_it(tmp_path: Path) -> None:
    worker = pool._start()
    assert worker.process.pid is not None
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.join()
    pool._next(worker, [(tmp_path / "run",)])
    assert worker.talk.recv()[:2] == (tmp_path / "run", "started")
    pool._stop(worker)


def test_a_worker_that_dies_takes_only_its_run_with_it(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with started("sweep", grid, "--out", out, "--only", "few/*", "--jobs", 1) as one:
        wait_for(lambda: (out / NAME).exists() and "running" in states(out).values(), one)
        children = Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split()
        workers = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(workers[0], signal.SIGKILL)
        _, err = one.communicate(timeout=120)
    assert one.returncode == 1
    assert "1 of 3 runs failed" in err
    assert "its process was ended by SIGKILL (out of memory?)" in err
    assert sorted(states(out).values()) == ["failed", "finished", "finished"]


def test_two_sweeps_share_a_folder(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("sweep", grid, "--out", out, "--jobs", 1)
    with started(*words) as one, started(*words) as other:
        codes = [process.wait(timeout=240) for process in (one, other)]
    assert codes == [0, 0]
    assert len(finished(out)) == 6
    assert {sessions(run) for run in finished(out)} <= {1, 2}  # 2: finished by the one while the other reached for it
    assert set(states(out).values()) == {"finished"}


def test_a_run_that_finished_unnoticed_is_kept_not_repeated(
    grid: Path, tmp_path: Path, here: None, fedapa: Call
) -> None:
    out = tmp_path / "out"
    assert fedapa("sweep", grid, "--out", out, "--only", "few/local*").code == 0
    with closing(sqlite3.connect(out / NAME)) as db, db:  # as if killed between the run's note and the sweep's
        db.execute("DELETE FROM result")
        db.execute("UPDATE run SET state = 'running'")
    assert fedapa("resume", out).code == 0
    assert states(out) == {"few/local-seed0": "finished"}
    assert sessions(out / "few" / "local-seed0") == 1


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    store = Store(tmp_path)
    store.plan([Planned(str(k), "", "local", k, 1) for k in range(40)])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: Store(tmp_path).note(str(k), "failed", f"reason {k}"), range(40)))
    assert {run["path"]: run["reason"] for run in store.runs()} == {str(k): f"reason {k}" for k in range(40)}


def test_scenarios_lie_on_top_and_the_command_line_on_top_of_them(grid: Path) -> None:
    found = load_scenarios(str(grid), ["data.clients=4"])
    assert [(name, config.data.clients, config.data.alpha) for name, config in found.items()] == [
        ("few", 4, 0.5),
        ("many", 4, 1.0),
    ]
    assert laid_over({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 5}, "d": {"e": 6}}) == {
        "a": {"b": 1, "c": 5},
        "d": {"e": 6},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scenario = 3", "scenario is not a table of tables"),
        ("[scenario.'a/../b'.data]\nclients = 3", "'a/../b' cannot name a scenario"),
        ("[scenario.a.data]\nclient = 3", "scenario a: unknown key data.client"),
        ("[scenario.a]\nmethods = ['fedapaa']", "scenario a: unknown method 'fedapaa'"),
    ],
)
def test_mistakes_in_scenarios(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        load_scenarios(str(path))


def test_run_sends_a_file_of_scenarios_to_sweep(grid: Path) -> None:
    with pytest.raises(InputError, match="several scenarios") as caught:
        load(str(grid))
    assert caught.value.hint == f"`fedapa sweep {grid}` runs such a file"


def test_only_and_dry_run(grid: Path, tmp_path: Path, fedapa: Call) -> None:
    answer = fedapa(
        "sweep", grid, "--out", tmp_path / "out", "--only", "*/fedapa-seed0", "--dry-run", "--format", "json"
    )
    assert [row["run"] for row in json.loads(answer.out)] == ["few/fedapa-seed0", "many/fedapa-seed0"]
    assert not (tmp_path / "out").exists()
    answer = fedapa("sweep", grid, "--out", tmp_path / "out", "--only", "nothing")
    assert answer.code == 2
    assert "no run matches --only 'nothing'" in answer.err


def test_costs_by_hand() -> None:
    kinds = {"a": cost.Kind("s", "local"), "b": cost.Kind("s", "apple"), "c": cost.Kind("t", "local")}
    guesses = {"a": (kinds["a"], 10.0), "b": (kinds["b"], 20.0), "c": (kinds["c"], 5.0)}
    known = [
        {"scenario": "s", "method": "local", "seconds": 30.0},
        {"scenario": "s", "method": "local", "seconds": 50.0},
        {"scenario": "s", "method": "apple", "seconds": None},
    ]
    # Local takes 40 s instead of the 10 that were guessed, so the other guesses are four times too low as well.
    assert cost.expected(guesses, known) == {"a": 40.0, "b": 80.0, "c": 20.0}
    assert cost.expected(guesses, []) == {"a": 10.0, "b": 20.0, "c": 5.0}


def test_epochs_of_a_method_of_its_own_count_in_its_cost(grid: Path) -> None:
    plain = load_scenarios(str(grid))["few"]
    longer = load_scenarios(str(grid), ["method.local.training.epochs=6"])["few"]
    assert cost.guess(longer, "local") == 2 * cost.guess(plain, "local")
    assert cost.guess(longer, "fedapa") == cost.guess(plain, "fedapa")


def test_a_dry_run_as_csv(grid: Path, tmp_path: Path, fedapa: Call) -> None:
    words = ("--out", tmp_path / "out", "--only", "few/fedapa-seed0", "--dry-run", "--format", "csv")
    head, line = fedapa("sweep", grid, *words).out.splitlines()
    assert head == "run,state,minutes"
    assert line.startswith("few/fedapa-seed0,planned,")
    nothing = fedapa("sweep", grid, "--out", tmp_path / "out", "--only", "nothing", "--dry-run", "--format", "csv")
    assert (nothing.code, nothing.out) == (0, "")


def test_a_part_of_the_data_counts_as_a_part(grid: Path) -> None:
    whole, half, some = (
        cost.guess(load_scenarios(str(grid), changes)["few"], "local")
        for changes in ([], ["data.train_share=0.5"], ["data.subset=300"])
    )
    assert half == whole / 2
    assert some == pytest.approx(whole * 300 / source("digits").train)


def test_a_run_that_was_cut_off_is_not_said_to_be_running(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    paths = runner.lay_out_all(list(load_scenarios(str(grid)).items()), out, "few/*")
    store = Store(out)
    store.plan([Planned(f"few/{path.name}", "few", path.name.partition("-")[0], 0, 5) for path in paths])
    for path in paths[:2]:
        store.note(f"few/{path.name}", "running")

    class Enough(Exception):
        pass

    def stop(now: runner.Progress) -> None:
        raise Enough

    with open(paths[0] / ".lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # a process is at this one
        with pytest.raises(Enough):  # before the first run starts
            runner.play(out, paths, 1, stop)
    assert list(states(out).values()) == ["running", "planned", "planned"]
