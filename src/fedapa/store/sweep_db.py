"""``sweep.db``: every run of a sweep, its state and results, in one SQLite file that several processes may write."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedapa.core.scores import ACCURACY, Score
from fedapa.errors import InputError, RunError
from fedapa.store import run_db

NAME = "sweep.db"
PATIENCE = 60  # seconds that a writer waits for another one

SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS run (
    path TEXT PRIMARY KEY, scenario TEXT NOT NULL, method TEXT NOT NULL, seed INTEGER NOT NULL, rounds INTEGER NOT NULL,
    state TEXT NOT NULL, reason TEXT NOT NULL, changed TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS result (
    path TEXT PRIMARY KEY REFERENCES run, evaluated TEXT NOT NULL,
    before_last REAL NOT NULL, before_best REAL NOT NULL, before_tail REAL NOT NULL, before_worst10 REAL NOT NULL,
    after_last REAL NOT NULL, after_best REAL NOT NULL, after_tail REAL NOT NULL, after_worst10 REAL NOT NULL,
    kib REAL NOT NULL, seconds REAL NOT NULL, whole TEXT NOT NULL);
COMMIT;
"""


class Planned(NamedTuple):
    """One run of a sweep; its folder is ``path`` below the sweep's."""

    path: str
    scenario: str
    method: str
    seed: int
    rounds: int


class Finished(NamedTuple):
    """The numbers of a finished run: last, best, tail and worst tenth before and after training, and all of it."""

    evaluated: str
    numbers: tuple[float, ...]
    kib: float
    seconds: float
    whole: dict[str, Any]


class Store:
    """Writes in short transactions, so that processes do not block each other for long."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        with self._open() as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(SCHEMA)

    def plan(self, runs: list[Planned]) -> None:
        """Add runs that are not known yet; the others keep their state."""
        rows = [(*run, "planned", "", _now()) for run in runs]
        with self._open() as db:
            db.executemany("INSERT OR IGNORE INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def note(self, path: str, state: str, reason: str = "") -> None:
        with self._open() as db:
            _change(db, path, state, reason)

    def keep(self, path: str, run: Finished) -> None:
        """A finished run's numbers and its state, together or not at all."""
        row = (path, run.evaluated, *run.numbers, run.kib, run.seconds, json.dumps(run.whole, default=str))
        with self._open() as db:
            db.execute(f"INSERT OR REPLACE INTO result VALUES ({', '.join('?' * 13)})", row)
            _change(db, path, "finished")

    def runs(self) -> list[dict[str, Any]]:
        with self._open() as db:
            return _runs(db)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=PATIENCE)) as db, db:
                yield db
        except sqlite3.Error as error:
            raise RunError(f"cannot write {self.path}: {error}", "is it damaged, or the disk full?") from error


def read(folder: Path) -> list[dict[str, Any]]:
    """A read-only view of the runs of a sweep."""
    path = folder / NAME
    try:
        with closing(run_db.read_only(path)) as db:
            return _runs(db)
    except sqlite3.Error as error:
        raise InputError(f"cannot read {path}: {error}", "is it damaged?") from error


def held(folder: Path) -> tuple[dict[str, float | None], Score]:
    """The score on validation data of every finished run, by its path, of the model that its method is evaluated by;
    and what score that is."""
    with closing(run_db.read_only(folder / NAME)) as db:
        found = db.execute("SELECT path, evaluated, whole FROM result").fetchall()
    whole = {path: (evaluated, json.loads(text)) for path, evaluated, text in found}
    scores = [Score(**row["score"]) for _, row in whole.values() if "score" in row]
    return {path: row[evaluated]["held"] for path, (evaluated, row) in whole.items()}, next(iter(scores), ACCURACY)


def _runs(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Every run with its state, and its seconds where it is finished."""
    db.row_factory = sqlite3.Row
    query = "SELECT run.*, result.seconds FROM run LEFT JOIN result USING (path) ORDER BY path"
    return [dict(row) for row in db.execute(query)]


def _change(db: sqlite3.Connection, path: str, state: str, reason: str = "") -> None:
    db.execute("UPDATE run SET state = ?, reason = ?, changed = ? WHERE path = ?", (state, reason, _now(), path))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
