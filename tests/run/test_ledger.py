"""run.db: readable by anything, one transaction per round, the numbers of a run and nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from toy import TESTS, Toy, play, rights, toy_data

from command import Call
from fedapa.core.tree import Tree
from fedapa.errors import InputError, RunError
from fedapa.methods.method import Role, Roles
from fedapa.rounds.round_log import RoundLog
from fedapa.rounds.round_plan import Plan
from fedapa.store import run_db, run_folder

COLUMNS = {
    "meta": ["key", "value"],
    "client": ["client", "name", "train", "test", "validation", "labels"],
    "round": ["round", "trained", "down_bytes", "up_bytes", "seconds", "training_seconds", "server_seconds"],
    "summary": ["round", "phase", "data", "score", "pooled", "mean", "std", "worst", "worst10"],
    "client_round": ["round", "client", "trained", "down_bytes", "up_bytes", "seconds"],
    "client_score": ["round", "phase", "data", "score", "client", "sum", "count"],
    "watched": ["round", "name", "shape", "float32"],
    "event": ["id", "round", "client", "kind", "text"],
    "checksum": ["round", "sha256"],
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    play(Toy(nan=(3,)), toy_data(), Plan(3, (1.0, 1.0), evaluate_every=2), folder=tmp_path, meta={"label": "toy"})
    return tmp_path / "run.db"


def test_the_schema(run: Path) -> None:
    with closing(sqlite3.connect(run)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        found = {table: [row[1] for row in db.execute(f"PRAGMA table_info({table})")] for table in tables}
    assert found == COLUMNS


def test_rows_by_hand(run: Path) -> None:
    found = run_db.numbers(run)
    assert found["client"] == [(i, str(i), 2, sum(TESTS[i]), 0, "1,1,0,0,0") for i in range(4)]
    assert found["round"] == [(t, 3, 4 * 28, 3 * 4) for t in range(3)]
    phases = [(t, p, "test") for t in (0, 2) for p in ("after", "before")]
    assert [row[:3] for row in found["summary"] if row[3] == "accuracy"] == [*phases, (2, "final", "test")]
    assert {row[3] for row in found["summary"]} == {"accuracy", "loss"}
    scores = {row[:3] + row[4:5]: row[5:] for row in found["client_score"] if row[3] == "accuracy"}
    assert [scores[2, "final", "test", i] for i in range(4)] == [(rights(i, 3 + i), sum(TESTS[i])) for i in range(4)]
    assert found["event"] == [(t, 3, "refused", "client 3 refused: w holds NaN") for t in range(3)]
    rows = {row[:2]: row[2:] for row in found["client_round"]}
    assert rows[2, 1] == (1, 28, 4)
    assert (scores[2, "before", "test", 1], scores[2, "after", "test", 1]) == ((rights(1, 3), 10), (rights(1, 4), 10))
    assert {row[0] for row in scores} == {0, 2}  # round 1 is not evaluated
    assert rows[0, 3][:3] == (0, 28, 0)  # refused
    assert found["watched"] == [(t, "w", "[1]", np.float32([t + 1]).tobytes()) for t in range(3)]


def test_a_finished_run_is_one_plain_file(run: Path) -> None:
    assert [path.name for path in run.parent.glob("run.db*")] == ["run.db"]
    with run_db.reading(run) as db:
        about = run_db.meta(db)
        assert about["status"] == "finished"
        assert about["label"] == "toy"
        assert run_db.bytes_per_visit(db) == 32
        assert run_db.client_sums(db, 2, "before").tolist() == [[rights(i, 2 + i), sum(TESTS[i])] for i in range(4)]
        assert run_db.last_sums(db, "before").tolist() == [[rights(i, 3 + i), sum(TESTS[i])] for i in range(4)]
        assert run_db.last_sums(db, "after").tolist() == run_db.client_sums(db, 3, "after").tolist()
        assert [t for t, _ in run_db.curve(db, "after")] == [1, 3]
        assert [t for t, _ in run_db.curve(db, "before")] == [0, 2, 3]


def test_rounds_come_back_as_the_loop_told_them(tmp_path: Path) -> None:
    told = play(Toy(nan=(3,)), toy_data(), Plan(3, evaluate_every=2), folder=tmp_path).logs
    with run_db.reading(tmp_path / "run.db") as db:
        found = run_db.logs(db)
    for a, b in zip(told, found, strict=True):
        assert (a.round, sorted(a.trained), a.down_bytes, a.up_bytes) == (b.round, b.trained, b.down_bytes, b.up_bytes)
        assert a.events == b.events
        assert a.watched == b.watched
        assert a.seconds == pytest.approx(b.seconds)
        np.testing.assert_array_equal(a.before, b.before)
        np.testing.assert_array_equal(a.after, b.after)
        np.testing.assert_array_equal(a.final, b.final)


def made_log(round: int) -> RoundLog:
    """Client 0 trained, client 1 knows nothing. Of two test and four validation samples client 0 has right: 1 and 3
    before, 2 and 0 after, and with what the last of three aggregations would send 0 and 4."""
    before, after, final = (np.array([[a, 2, b, 4], [0, 2, 0, 4]]) for a, b in ((1, 3), (2, 0), (0, 4)))
    before, after, final = (sums[:, None].astype(float) for sums in (before, after, final))
    watched = {"A": torch.full((2, 2), float(round))}
    return RoundLog(round, [0], before, after, final if round == 2 else None, {0: 6}, {0: 4}, watched=watched)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    book = run_db.Ledger(tmp_path / "made.db")
    for t in range(3):
        book.record(made_log(t), 2)
    book.close()
    return tmp_path / "made.db"


def test_accuracies_of_both_kinds_of_data_by_hand(made: Path) -> None:
    with run_db.reading(made) as db:
        for data, pooled in (("test", (25, 50, 0)), ("validation", (37.5, 0, 50))):
            found = {phase: run_db.curve(db, phase, data) for phase in ("before", "after", "final")}
            assert [found[phase][0][1].pooled for phase in found] == list(pooled)
            assert found["before"][3:] == [(t + 1, summary) for t, summary in found["final"]]
            assert [t for t, _ in found["after"]] == [1, 2, 3]


def test_counts_of_clients_by_how_many_rounds_were_done(made: Path) -> None:
    """After three rounds ``before`` is what the last aggregation would send."""
    with run_db.reading(made) as db:
        found = {(n, phase): run_db.client_sums(db, n, phase)[0, 0] for n in (2, 3) for phase in ("before", "after")}
        assert found == {(2, "before"): 1, (2, "after"): 2, (3, "before"): 0, (3, "after"): 2}
        now = {phase: run_db.last_sums(db, phase) for phase in ("before", "after")}
        assert {phase: counts.tolist() for phase, counts in now.items() if counts is not None} == {
            "before": [[0, 2], [0, 2]],
            "after": [[2, 2], [0, 2]],
        }


def test_only_visits_count_in_the_bytes_of_a_visit(made: Path) -> None:
    with run_db.reading(made) as db:
        assert run_db.bytes_per_visit(db) == 10


def test_matrices_are_numbered_from_one(made: Path) -> None:
    with run_db.reading(made) as db:
        assert [(t, A.tolist()) for t, A in run_db.matrices(db, 2)] == [(t + 1, [[t] * 2] * 2) for t in range(3)]
        assert [t for t, _ in run_db.matrices(db, 2, round=2)] == [2]


@dataclass(frozen=True)
class Nameless(Toy):
    """Watches a square matrix and does not say what it is."""

    def watch(self, server: Tree) -> Tree:
        return {"A": torch.zeros(4, 4), "shares": torch.eye(4)}


@dataclass(frozen=True)
class Sharing(Nameless):
    roles: ClassVar[Roles] = {"shares": Role.WEIGHTS}


@pytest.mark.parametrize(("method", "rounds"), [(Sharing(), [1, 2]), (Nameless(), [])])
def test_weights_are_what_the_method_declares_as_such(method: Toy, rounds: list[int], tmp_path: Path) -> None:
    play(method, toy_data(), Plan(2, (1.0, 1.0)), folder=tmp_path)
    with run_db.reading(tmp_path / "run.db") as db:
        assert run_db.weight_rounds(db) == rounds
        assert [(t, A.tolist()) for t, A in run_db.matrices(db, 4)] == [(t, torch.eye(4).tolist()) for t in rounds]
        assert [(t, row.tolist()) for t, row in run_db.weight_rows(db, 4, 1)] == [(t, [0, 1, 0, 0]) for t in rounds]


def test_rounds_that_will_be_played_again_are_forgotten_whole(made: Path) -> None:
    book = run_db.Ledger(made)
    book.forget_from(1)
    book.close()
    found = run_db.numbers(made)
    assert {row[0] for table in run_db.PER_ROUND for row in found[table]} == {0}
    assert [len(found[table]) for table in ("round", "client_round", "watched")] == [1, 2, 1]
    assert len(found["client_score"]) == 8  # before and after, test and validation data, of two clients


EARLIER = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE round (round, trained, down_bytes, up_bytes, seconds, training_seconds, server_seconds);
CREATE TABLE accuracy (round, phase, data, pooled, mean, std, worst, worst10);
CREATE TABLE client_round (round, client, trained, down_bytes, up_bytes, seconds, before_correct, before_total,
    before_valid_correct, before_valid_total, after_correct, after_total, after_valid_correct, after_valid_total);
CREATE TABLE watched (round, name, shape, float32);
CREATE TABLE event (id, round, client, kind, text);
INSERT INTO round VALUES (0, 1, 1, 1, 1, 1, 1);
INSERT INTO accuracy VALUES (0, 'before', 'test', 25, 25, 0, 25, 25), (0, 'after', 'test', 50, 50, 0, 50, 50);
INSERT INTO accuracy VALUES (0, 'final', 'test', 75, 75, 0, 75, 75);
INSERT INTO client_round VALUES (0, 0, 1, 1, 1, 1, 1, 4, 0, 0, 2, 4, 0, 0);
"""


@pytest.mark.parametrize("with_final", [True, False])
def test_a_run_of_an_older_version_is_read_and_not_written(tmp_path: Path, with_final: bool) -> None:
    """One client with four test samples: right are 1 before, 2 after, 3 with what the last aggregation would send."""
    final = "CREATE TABLE client_final (round, client, correct, total, valid_correct, valid_total);"
    final += "INSERT INTO client_final VALUES (0, 0, 3, 4, 0, 0);"
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        db.executescript(EARLIER + (final if with_final else ""))
    with run_db.reading(tmp_path / "run.db") as db:
        assert [t for t, _ in run_db.curve(db, "before")] == [0, 1]
        assert [summary.pooled for _, summary in run_db.curve(db, "before")] == [25, 75]
        assert run_db.client_sums(db, 1, "after").tolist() == [[2, 4]]
        assert run_db.client_sums(db, 1, "before").tolist() == ([[3, 4]] if with_final else [])
        (log,) = run_db.logs(db)
        assert (log.before[:, 0].tolist(), log.after[:, 0].tolist()) == ([[1, 4, 0, 0]], [[2, 4, 0, 0]])
        assert [score.name for score in run_db.scores_of(db)] == ["accuracy"]
    with pytest.raises(RunError, match="begun by an older version"):
        run_db.Ledger(tmp_path / "run.db")


def test_one_can_read_while_the_run_writes(tmp_path: Path) -> None:
    seen = []

    def look(log: object) -> None:
        with run_db.reading(tmp_path / "run.db") as db:
            seen.append(len(run_db.curve(db, "after")))

    play(Toy(), toy_data(), Plan(3), folder=tmp_path, progress=look)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + bytes(5000)])
def test_garbage_is_not_a_ledger(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.db").write_bytes(content)
    with pytest.raises(InputError, match="not a readable run"):
        run_folder.status(tmp_path)
    with pytest.raises(RunError, match=r"run\.db"):
        run_db.Ledger(tmp_path / "run.db")


def test_a_process_killed_while_it_made_the_file_leaves_a_planned_run(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    assert run_folder.status(tmp_path) == "planned"
    assert run_folder.rounds_done(tmp_path) == 0
    play(Toy(), toy_data(), Plan(2), folder=tmp_path)
    assert run_folder.status(tmp_path) == "finished"


def test_a_transaction_cut_off_by_a_kill_is_rolled_back_by_whoever_reads(run: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    whole = tmp_path / "whole.db"
    whole.write_bytes(run.read_bytes())
    with closing(sqlite3.connect(whole)) as db:
        db.execute("PRAGMA cache_size=1")  # it has to write before it commits
        db.executemany("INSERT INTO meta VALUES (?, ?)", [(f"half-written {i}", "x" * 500) for i in range(500)])
        for file in tmp_path.glob("whole.db*"):  # what lies on the disk at this moment
            (killed / file.name.replace("whole", "run")).write_bytes(file.read_bytes())
        db.rollback()
    assert (killed / "run.db-journal").stat().st_size > 0
    assert (killed / "run.db").stat().st_size > whole.stat().st_size
    assert run_db.is_begun(killed / "run.db")
    with run_db.reading(killed / "run.db") as mine, run_db.reading(whole) as untouched:
        assert run_db.meta(mine) == run_db.meta(untouched)


def test_a_missing_ledger(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"), run_db.reading(tmp_path / "run.db"):
        pass


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE client_score SET sum = sum + 1 WHERE round = 1 AND client = 0 AND phase = 'after' AND data = 'test'",
        "UPDATE summary SET pooled = pooled + 1e-9 WHERE round = 1",
        "UPDATE round SET up_bytes = up_bytes + 1 WHERE round = 1",
        "DELETE FROM client_round WHERE round = 1 AND client = 0",
        "INSERT INTO event (round, client, kind, text) VALUES (1, 0, 'refused', 'never was')",
    ],
)
def test_a_number_that_changed_on_the_disk_is_found(tmp_path: Path, fedapa: Call, change: str) -> None:
    """SQLite opens it without a word, and a resumed run would go on from it."""
    play(Toy(), toy_data(), Plan(3), folder=tmp_path)
    assert fedapa("audit", tmp_path).out == "3 rounds, all as they were written\n"
    (tmp_path / "checkpoints" / "round-000003.safetensors").unlink()
    with closing(sqlite3.connect(tmp_path / "run.db")) as db, db:
        assert db.execute(change).rowcount > 0
    told = fedapa("audit", tmp_path)
    assert (told.code, "holds other numbers of round 2 than were written" in told.err) == (1, True)
    with pytest.raises(RunError, match="holds other numbers of round 2 than were written"):
        play(Toy(), toy_data(), Plan(3), folder=tmp_path)
