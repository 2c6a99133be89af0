"""A checksum for every round of run.db: SQLite finds damage to its own structure, not a changed number in a row."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence

TABLE = "CREATE TABLE IF NOT EXISTS checksum (round INTEGER PRIMARY KEY, sha256 TEXT NOT NULL);"


def add(db: sqlite3.Connection, tables: Sequence[str], round: int) -> None:
    """Write the checksum of a round whose rows were just written, in the same transaction."""
    db.execute("INSERT OR REPLACE INTO checksum VALUES (?, ?)", (round, _of(db, tables, round)))


def damaged(db: sqlite3.Connection, tables: Sequence[str]) -> list[int]:
    """Rounds whose rows are not those that were written. Rounds of older versions have no checksum and pass."""
    known = db.execute("SELECT round, sha256 FROM checksum ORDER BY round").fetchall()
    return [round for round, was in known if _of(db, tables, round) != was]


def _of(db: sqlite3.Connection, tables: Sequence[str], round: int) -> str:
    """Over all rows of a round, whatever their order in the file; the number of an event is not part of it."""
    state = hashlib.sha256()
    for table in tables:
        columns = "round, client, kind, text" if table == "event" else "*"
        rows = db.execute(f"SELECT {columns} FROM {table} WHERE round = ?", (round,))
        state.update("\n".join([table, *sorted(map(_line, rows)), ""]).encode())
    return state.hexdigest()


def _line(row: tuple[object, ...]) -> str:
    return repr([hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value for value in row])
