"""``run.db``: one SQLite file per run, written as the run goes, readable by anything at any time."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedapa.errors import InputError, RunError
from fedapa.rounds.evaluation import Counts, Summary, summarise
from fedapa.rounds.loop import Event, RoundLog

Floats = npt.NDArray[np.float64]
SCHEMA = """
BEGIN;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS client (
    client INTEGER PRIMARY KEY, name TEXT NOT NULL, train INTEGER NOT NULL, test INTEGER NOT NULL,
    validation INTEGER NOT NULL, labels TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS round (
    round INTEGER PRIMARY KEY, trained INTEGER NOT NULL, down_bytes INTEGER NOT NULL, up_bytes INTEGER NOT NULL,
    seconds REAL NOT NULL, training_seconds REAL NOT NULL, server_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS accuracy (
    round INTEGER NOT NULL, phase TEXT NOT NULL, data TEXT NOT NULL, pooled REAL NOT NULL, mean REAL NOT NULL,
    std REAL NOT NULL, worst REAL NOT NULL, worst10 REAL NOT NULL, PRIMARY KEY (round, phase, data));
CREATE TABLE IF NOT EXISTS client_round (
    round INTEGER NOT NULL, client INTEGER NOT NULL, trained INTEGER NOT NULL, down_bytes INTEGER NOT NULL,
    up_bytes INTEGER NOT NULL, seconds REAL NOT NULL, before_correct INTEGER, before_total INTEGER,
    before_valid_correct INTEGER, before_valid_total INTEGER, after_correct INTEGER, after_total INTEGER,
    after_valid_correct INTEGER, after_valid_total INTEGER, PRIMARY KEY (round, client)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS client_final (
    round INTEGER NOT NULL, client INTEGER NOT NULL, correct INTEGER NOT NULL, total INTEGER NOT NULL,
    valid_correct INTEGER NOT NULL, valid_total INTEGER NOT NULL, PRIMARY KEY (round, client)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS watched (
    round INTEGER NOT NULL, name TEXT NOT NULL, shape TEXT NOT NULL, float32 BLOB NOT NULL, PRIMARY KEY (round, name));
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY, round INTEGER NOT NULL, client INTEGER, kind TEXT NOT NULL, text TEXT NOT NULL);
COMMIT;
"""
PER_ROUND = ("round", "accuracy", "client_round", "client_final", "watched", "event")
# What a resumed run repeats bit for bit; the other columns are times.
TIMES = {"round": ("seconds", "training_seconds", "server_seconds"), "client_round": ("seconds",)}


class Ledger:
    """Writes one run's numbers; every round is one transaction."""

    def __init__(self, path: Path) -> None:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite would leave it to the umask
            self._db = sqlite3.connect(path)
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"cannot open {path}: {error}", "is the folder read-only?") from error
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            self._db.close()
            raise RunError(f"cannot write {path}: {error}", "is it damaged, or the disk full or read-only?") from error

    def describe(self, meta: Mapping[str, str], clients: list[tuple[int, str, int, int, int, str]]) -> None:
        with self._writing():
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(meta.items()))
            self._db.executemany("INSERT OR REPLACE INTO client VALUES (?, ?, ?, ?, ?, ?)", clients)

    def forget_from(self, round: int) -> None:
        """Drop rounds that a resumed run will play again."""
        with self._writing():
            for table in PER_ROUND:
                self._db.execute(f"DELETE FROM {table} WHERE round >= ?", (round,))

    def record(self, log: RoundLog, clients: int) -> None:
        with self._writing():
            self._db.execute("INSERT INTO round VALUES (?, ?, ?, ?, ?, ?, ?)", _round_row(log))
            self._db.executemany("INSERT INTO accuracy VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _accuracy_rows(log))
            rows = [_client_row(log, i) for i in range(clients)]
            self._db.executemany(f"INSERT INTO client_round VALUES ({', '.join('?' * 14)})", rows)
            final = [] if log.final is None else [(log.round, i, *row) for i, row in enumerate(log.final.tolist())]
            self._db.executemany("INSERT INTO client_final VALUES (?, ?, ?, ?, ?, ?)", final)
            watched = [(log.round, k, str(list(v.shape)), v.float().numpy().tobytes()) for k, v in log.watched.items()]
            self._db.executemany("INSERT INTO watched VALUES (?, ?, ?, ?)", watched)
            for event in log.events:
                self._db.execute("INSERT INTO event (round, client, kind, text) VALUES (?, ?, ?, ?)", event)

    def meta(self) -> dict[str, str]:
        return meta(self._db)

    def rounds_before(self, round: int) -> int:
        """How many of the first so many rounds are here."""
        return int(self._db.execute("SELECT count(*) FROM round WHERE round < ?", (round,)).fetchone()[0])

    def logs(self) -> list[RoundLog]:
        return logs(self._db)

    def close(self) -> None:
        """Leave one plain file behind, readable on read-only media too; a reader at work may prevent that."""
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._db:
                yield
        except sqlite3.Error as error:
            raise RunError(f"cannot write run.db: {error}", "is the disk full or the folder read-only?") from error


def _round_row(log: RoundLog) -> tuple[Any, ...]:
    seconds = sum(log.seconds.get(k, 0.0) for k in ("clients", "server"))
    down, up = sum(log.down_bytes.values()), sum(log.up_bytes.values())
    training, server = log.seconds.get("training", 0.0), log.seconds.get("server", 0.0)
    return (log.round, len(log.trained), down, up, seconds, training, server)


def _accuracy_rows(log: RoundLog) -> list[tuple[Any, ...]]:
    rows = []
    for phase, counts in (("before", log.before), ("after", log.after), ("final", log.final)):
        for data, start in (("test", 0), ("validation", 2)):
            if counts is not None and counts[:, start + 1].sum() > 0:
                found = summarise(counts[:, start], counts[:, start + 1])
                rows.append((log.round, phase, data, *found.as_dict().values()))
    return rows


def _client_row(log: RoundLog, i: int) -> tuple[Any, ...]:
    before = [None] * 4 if log.before is None else log.before[i].tolist()
    after = [None] * 4 if log.after is None else log.after[i].tolist()
    return (
        log.round, i, int(i in log.trained), log.down_bytes.get(i, 0), log.up_bytes.get(i, 0),
        log.client_seconds.get(i, 0.0), *before, *after,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- reading


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, after what a killed process left half-written was rolled back."""
    address = f"{path.absolute().as_uri()}?mode="
    db = sqlite3.connect(address + "ro", uri=True)
    try:
        db.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.DatabaseError as error:
        db.close()
        if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
            raise
        with closing(sqlite3.connect(address + "rw", uri=True)) as writer:
            writer.execute("SELECT count(*) FROM sqlite_master")
        return sqlite3.connect(address + "ro", uri=True)
    return db


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only view of a finished or running run."""
    if not path.is_file():
        raise InputError(f"{path} does not exist", "name a run folder; `fedapa run` makes one")
    try:
        with closing(read_only(path)) as db:
            db.execute("SELECT 1 FROM meta LIMIT 1")
            yield db
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} is not a readable run.db: {error}", "restore it, or run again") from error


def is_begun(path: Path) -> bool:
    """Is there a run.db with tables? A process killed while it made the file leaves an empty one."""
    if not path.is_file():
        return False
    try:
        with closing(read_only(path)) as db:
            return bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.DatabaseError:
        return True  # damaged rather than empty: whoever reads it says so


def meta(db: sqlite3.Connection) -> dict[str, str]:
    return dict(db.execute("SELECT key, value FROM meta"))


def curve(db: sqlite3.Connection, phase: str, data: str = "test") -> list[tuple[int, Summary]]:
    """(rounds done, summary): ``before`` from the start to what the last aggregation would send, ``after`` from 1."""
    query = "SELECT round, pooled, mean, std, worst, worst10 FROM accuracy WHERE phase=? AND data=? ORDER BY round"
    found = [(row[0] + (phase == "after"), Summary(*row[1:])) for row in db.execute(query, (phase, data))]
    if phase == "before":
        found += [(row[0] + 1, Summary(*row[1:])) for row in db.execute(query, ("final", data))]
    return found


def client_counts(db: sqlite3.Connection, done: int, phase: str) -> Counts:
    """[M, 2] correct and total of every client on its test data, when so many rounds were done."""
    query = f"SELECT {phase}_correct, {phase}_total FROM client_round WHERE round=? ORDER BY client"
    rows = db.execute(query, (done - (phase == "after"),)).fetchall()
    if not rows and (final := _final(db)) is not None:
        return final[:, :2]
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def last_counts(db: sqlite3.Connection, phase: str) -> Counts | None:
    """The same as it stands now; None before the first evaluation."""
    rows = curve(db, phase)
    return client_counts(db, rows[-1][0], phase) if rows else None


def _final(db: sqlite3.Connection) -> Counts | None:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name='client_final'").fetchone():
        return None  # a run of an older version
    query = "SELECT correct, total, valid_correct, valid_total FROM client_final ORDER BY client"
    rows = db.execute(query).fetchall()
    return np.array(rows, dtype=np.int64) if rows else None


class Totals(NamedTuple):
    """Sums over all rounds."""

    rounds: int
    visits: int  # trainings that were accepted
    moved: int  # bytes down and up
    seconds: float
    training_seconds: float
    server_seconds: float


def totals(db: sqlite3.Connection) -> Totals:
    sums = "sum(trained), sum(down_bytes + up_bytes), sum(seconds), sum(training_seconds), sum(server_seconds)"
    count, *found = db.execute(f"SELECT count(*), {sums} FROM round").fetchone()
    return Totals(count, *(value or 0 for value in found))


def visit_seconds(db: sqlite3.Connection) -> float:
    """Seconds of all visits to clients, training or not."""
    return float(db.execute("SELECT sum(seconds) FROM client_round").fetchone()[0] or 0.0)


def client_data(db: sqlite3.Connection) -> list[tuple[str, int, int, int, str]]:
    """Name, train, test and validation samples, and label counts of every client."""
    return db.execute("SELECT name, train, test, validation, labels FROM client ORDER BY client").fetchall()


def last_round(db: sqlite3.Connection) -> int | None:
    """The last evaluated round, counted from 1."""
    (last,) = db.execute("SELECT max(round) FROM accuracy").fetchone()
    return None if last is None else int(last) + 1


def bytes_per_visit(db: sqlite3.Connection) -> float:
    """Mean bytes down and up of one trained client in one round."""
    row = db.execute("SELECT avg(down_bytes + up_bytes) FROM client_round WHERE trained=1").fetchone()
    return float(row[0] or 0.0)


def round_seconds(db: sqlite3.Connection) -> list[float]:
    return [float(row[0]) for row in db.execute("SELECT seconds FROM round ORDER BY round")]


def client_totals(db: sqlite3.Connection) -> list[tuple[int, int, int, float]]:
    """Rounds trained, bytes down, bytes up and seconds of every client."""
    query = "SELECT sum(trained), sum(down_bytes), sum(up_bytes), sum(seconds) FROM client_round GROUP BY client"
    return db.execute(f"{query} ORDER BY client").fetchall()


def client_course(db: sqlite3.Connection, client: int) -> list[tuple[Any, ...]]:
    """One client round by round: round, trained, bytes down and up, then correct and total before and after."""
    columns = "round, trained, down_bytes, up_bytes, before_correct, before_total, after_correct, after_total"
    return db.execute(f"SELECT {columns} FROM client_round WHERE client=? ORDER BY round", (client,)).fetchall()


def matrices(db: sqlite3.Connection, clients: int, round: int | None = None) -> Iterator[tuple[int, Floats]]:
    """(round from 1, A [M, M]) where a method says how much of every client's model goes to every other."""
    query = "SELECT round, shape, float32 FROM watched WHERE name = 'A' AND ? IN (round + 1, -1) ORDER BY round"
    for t, shape, blob in db.execute(query, (-1 if round is None else round,)):
        if json.loads(shape) == [clients, clients]:
            yield t + 1, np.frombuffer(blob, np.float32).reshape(clients, clients).astype(np.float64)


def weight_rows(db: sqlite3.Connection, clients: int, client: int) -> Iterator[tuple[int, Floats]]:
    """(round from 1, one client's row of A) without reading the others' rows."""
    query = "SELECT round, shape, substr(float32, ?, ?) FROM watched WHERE name = 'A' ORDER BY round"
    for t, shape, blob in db.execute(query, (4 * clients * client + 1, 4 * clients)):
        if json.loads(shape) == [clients, clients]:
            yield t + 1, np.frombuffer(blob, np.float32).astype(np.float64)


def weight_rounds(db: sqlite3.Connection) -> list[int]:
    """The rounds, from 1, in which A was recorded."""
    return [t + 1 for (t,) in db.execute("SELECT round FROM watched WHERE name = 'A' ORDER BY round")]


def events(db: sqlite3.Connection) -> list[tuple[int, int | None, str, str]]:
    return db.execute("SELECT round, client, kind, text FROM event ORDER BY id").fetchall()


def logs(db: sqlite3.Connection) -> list[RoundLog]:
    """The rounds as the loop told them, but for the order of the clients within one."""
    found = {}
    for t, clients, training, server in db.execute(
        "SELECT round, seconds - server_seconds, training_seconds, server_seconds FROM round ORDER BY round"
    ):
        found[t] = RoundLog(t, [], seconds={"clients": clients, "server": server, "training": training})
        rows = db.execute("SELECT * FROM client_round WHERE round=? ORDER BY client", (t,)).fetchall()
        _fill(found[t], rows)
    if found:
        found[max(found)].final = _final(db)
    for event in events(db):
        found[event[0]].events.append(Event(*event))
    for t, name, shape, blob in db.execute("SELECT round, name, shape, float32 FROM watched"):
        found[t].watched[name] = torch.frombuffer(bytearray(blob), dtype=torch.float32).reshape(json.loads(shape))
    return list(found.values())


def _fill(log: RoundLog, rows: list[tuple[Any, ...]]) -> None:
    log.trained = [row[1] for row in rows if row[2]]
    log.down_bytes = {row[1]: row[3] for row in rows if row[3]}
    log.up_bytes = {row[1]: row[4] for row in rows if row[4]}
    log.client_seconds = {row[1]: row[5] for row in rows if row[5]}
    if rows and rows[0][6] is not None:
        log.before, log.after = (np.array([row[k : k + 4] for row in rows], dtype=np.int64) for k in (6, 10))


def numbers(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every number of a run but its times: what must be equal after a crash and a resume."""
    with reading(path) as db:
        found = {}
        for table in (*PER_ROUND, "client"):
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            kept = [c for c in columns if c not in TIMES.get(table, ()) and c != "id"]
            found[table] = db.execute(f"SELECT {', '.join(kept)} FROM {table} ORDER BY 1, 2").fetchall()
        return found
