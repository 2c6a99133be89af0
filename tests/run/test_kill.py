"""kill -9 in the middle of a real run, then resume: every number and every byte as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open

from command import SMALL, Call, started, wait_for
from fedapa.core.tree import digest
from fedapa.store import run_db, run_folder

ROUNDS = 6
METHODS = ("fedapa", "fedavg", "local")
CONFIG = SMALL.replace("rounds = 3", f"rounds = {ROUNDS}").replace("epochs = 1", "epochs = 4")


def said(run: Path, words: str) -> Callable[[], bool]:
    """Is this in the run's log?"""
    return lambda: (run / "log.txt").exists() and words in (run / "log.txt").read_text()


def kill_when(happened: Callable[[], bool], delay: float, *words: object) -> None:
    """Start the command and kill -9 its whole group."""
    with started(*words) as process:
        wait_for(happened, process)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def assert_as_if_nothing_had_happened(out: Path, undisturbed: Path) -> None:
    for method in METHODS:
        mine, whole = out / f"{method}-seed0", undisturbed / f"{method}-seed0"
        assert run_folder.status(mine) == "finished"
        assert run_db.numbers(mine / "run.db") == run_db.numbers(whole / "run.db")
        name = f"checkpoints/round-{ROUNDS:06d}.safetensors"
        assert (mine / name).read_bytes() == (whole / name).read_bytes()
        with safe_open(mine / name, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            assert file.metadata()["digest"] == digest(tensors)
        assert not list(mine.rglob("*.part"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "kill.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def undisturbed(fedapa: Call, config: Path, tmp_path: Path) -> Path:
    assert fedapa("run", config, "--out", tmp_path / "whole").code == 0
    return tmp_path / "whole"


@pytest.mark.parametrize("every", [1, 2])
def test_kill_9_and_resume(fedapa: Call, process: Call, config: Path, undisturbed: Path, every: int) -> None:
    out = config.parent / "killed"
    run = ("run", config, "--out", out, "--set", f"run.checkpoint_every={every}")
    apa, avg = out / "fedapa-seed0", out / "fedavg-seed0"
    middle = random.uniform(0, 0.05)  # a round takes about this long
    kill_when((apa / "run.db").exists, 0, *run)  # as it begins
    kill_when(said(apa, "round 3/"), middle, "resume", out)  # in the middle of a round
    assert run_folder.status(apa) in ("running", "planned")
    if every == 1:
        kill_when(said(avg, "round 2/"), middle, "resume", out)  # in the middle of the second run
        assert fedapa("compare", out).code == 0  # a run that was cut off can be looked at
    answer = (process if every == 1 else fedapa)("resume", out)
    assert answer.code == 0, answer.err
    assert_as_if_nothing_had_happened(out, undisturbed)


def test_ctrl_c_says_how_to_go_on(fedapa: Call, config: Path, undisturbed: Path) -> None:
    for attempt in range(10):  # on a busy machine a run may be over before the signal reaches it
        out = config.parent / f"stopped here {attempt}"
        with started("run", config, "--out", out) as process:
            wait_for(said(out / "fedapa-seed0", "round 2/"), process)
            process.send_signal(signal.SIGSTOP)  # frozen, so that it cannot finish before it is interrupted
            under_way = any(run_folder.status(run) != "finished" for run in run_folder.runs_under(out))
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)
            printed, complaint = process.communicate(timeout=600)
        if under_way:
            break
    assert process.returncode == 3, complaint
    assert printed == ""
    assert complaint.splitlines() == [
        "error: interrupted",
        f"hint: `fedapa resume '{out}'` continues after the last finished round",
    ]
    assert fedapa("resume", out).code == 0
    assert_as_if_nothing_had_happened(out, undisturbed)


def test_a_second_process_is_refused_while_the_first_runs(fedapa: Call, config: Path) -> None:
    out = config.parent / "busy"
    with started("run", config, "--out", out, "--method", "local", "--set", "run.rounds=60") as process:
        wait_for(said(out / "local-seed0", "round 1/"), process)
        os.killpg(process.pid, signal.SIGSTOP)  # it stays where it is
        answer = fedapa("resume", out)
    assert answer.code == 2
    assert "in use by another process" in answer.err
    assert run_folder.status(out / "local-seed0") == "running"
