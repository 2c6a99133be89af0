"""What is handed in to a leaderboard is checked by somebody who does not trust it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from command import SMALL, Call
from fedapa.analysis import result_sets, submission
from fedapa.config.experiment import execute
from fedapa.config.grid import load_scenarios
from fedapa.sweep import runner

BOARD = (
    SMALL.replace("rounds = 3", "rounds = 2").replace(
        '["fedapa", "fedavg", "local"]', '["local"]\nseeds = [0, 1, 2, 3]'
    )
    + '\n[scenario]\ndigits.data = { source = "digits" }\n'
)


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board, and three honest runs of Local on it."""
    top = tmp_path_factory.mktemp("board")
    (top / "board.toml").write_text(BOARD)
    for run in runner.lay_out_all(list(load_scenarios(str(top / "board.toml")).items()), top / "runs", "*seed[012]"):
        execute(run)
    return top


@pytest.fixture
def copy(handed_in: Path, tmp_path: Path) -> Path:
    shutil.copytree(handed_in, tmp_path / "copy")
    return tmp_path / "copy"


def faults(top: Path) -> str:
    found = submission.check(result_sets.load(top / "runs"), load_scenarios(str(top / "board.toml")))
    return "\n".join(found.faults)


def sql(run: Path, text: str) -> None:
    with closing(sqlite3.connect(run / "run.db")) as db, db:
        db.execute(text)


def one(top: Path) -> Path:
    return top / "runs" / "digits" / "local-seed1"


def test_honest_runs_pass(handed_in: Path) -> None:
    assert faults(handed_in) == ""
    assert submission.replay(result_sets.load(handed_in / "runs"), 1) == []


CHEATS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a better summary": (
        lambda top: sql(one(top), "UPDATE summary SET pooled = 99.5 WHERE score = 'accuracy'"),
        "its clients",
    ),
    "more right answers than samples": (
        lambda top: sql(one(top), "UPDATE client_score SET sum = 2 * count WHERE score = 'accuracy'"),
        "more right answers",
    ),
    "a larger test set": (
        lambda top: sql(
            one(top), "UPDATE client_score SET sum = 10 * sum, count = 10 * count WHERE score = 'accuracy'"
        ),
        "more test samples",
    ),
    "a missing round": (lambda top: sql(one(top), "DELETE FROM round WHERE round = 0"), "holds 1 of 2 rounds"),
    "another allocation": (
        lambda top: sql(one(top), "UPDATE meta SET value = 'feed' WHERE key = 'partition'"),
        "is not the board's",
    ),
    "chosen seeds": (lambda top: (one(top).parent / "local-seed0").rename(top / "gone"), "first 3 seeds"),
    "too few seeds": (lambda top: shutil.rmtree(one(top)), "first 3 seeds"),
    "an unfinished run": (
        lambda top: sql(one(top), "UPDATE meta SET value = 'running' WHERE key = 'status'"),
        "not finished",
    ),
    "older numbers": (
        lambda top: sql(one(top), "UPDATE meta SET value = '1' WHERE key = 'numerics'"),
        "numerics version 1",
    ),
    "another revision": (
        lambda top: sql(one(top), "UPDATE meta SET value = '3' WHERE key = 'revision'"),
        "revision 3 of the method's numbers, not 0",
    ),
    "more clients": (
        lambda top: (top / "board.toml").write_text(BOARD.replace("clients = 4", "clients = 3")),
        "data.clients is 4, the board has 3",
    ),
    "another scenario": (lambda top: one(top).parent.rename(top / "runs" / "other"), "no scenario 'other'"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_is_not_sound_is_named(copy: Path, cheat: str) -> None:
    change, says = CHEATS[cheat]
    change(copy)
    assert says in faults(copy)


def test_numbers_made_up_consistently_are_found_by_playing_again(copy: Path) -> None:
    """Every client's score and every summary are replaced by perfect ones."""
    for run in one(copy).parent.iterdir():
        sql(run, "UPDATE client_score SET sum = count WHERE score = 'accuracy'")
        sql(run, "UPDATE summary SET pooled=100, mean=100, std=0, worst=100, worst10=100 WHERE score = 'accuracy'")
    assert faults(copy) == ""
    found = submission.replay(result_sets.load(copy / "runs"), 1)
    assert "not at 100.00 %" in found[0]


def test_the_command_adds_sound_runs_and_nothing_else(copy: Path, fedapa: Call) -> None:
    words = ("submit", copy / "runs", "--board", copy / "board.toml", "--to", copy / "results.json", "--by", "Ann")
    assert fedapa(*words).code == 0
    rows = json.loads((copy / "results.json").read_text())["runs"]
    assert [(row["label"], row["seed"], row["by"]) for row in rows] == [("local", seed, "Ann") for seed in range(3)]
    before = (copy / "results.json").read_bytes()
    CHEATS["a better summary"][0](copy)
    answer = fedapa(*words)
    assert answer.code == 2
    assert "local-seed1" in answer.err
    assert (copy / "results.json").read_bytes() == before
