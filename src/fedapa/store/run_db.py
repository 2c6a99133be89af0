"""``run.db``: one SQLite file per run, written during the run, readable by any program at any time."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.core.scores import ACCURACY, LOSS, Score, scores_from_json
from fedapa.core.summaries import TEST, VALIDATION, Summary, Sums, summarise
from fedapa.errors import InputError, RunError
from fedapa.store import checksums

if TYPE_CHECKING:
    from fedapa.rounds.round_log import RoundLog

Floats = npt.NDArray[np.float64]
SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS client (
    client INTEGER PRIMARY KEY, name TEXT NOT NULL, train INTEGER NOT NULL, test INTEGER NOT NULL,
    validation INTEGER NOT NULL, labels TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS round (
    round INTEGER PRIMARY KEY, trained INTEGER NOT NULL, down_bytes INTEGER NOT NULL, up_bytes INTEGER NOT NULL,
    seconds REAL NOT NULL, training_seconds REAL NOT NULL, server_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS summary (
    round INTEGER NOT NULL, phase TEXT NOT NULL, data TEXT NOT NULL, score TEXT NOT NULL, pooled REAL, mean REAL,
    std REAL, worst REAL, worst10 REAL, PRIMARY KEY (round, phase, data, score)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS client_round (
    round INTEGER NOT NULL, client INTEGER NOT NULL, trained INTEGER NOT NULL, down_bytes INTEGER NOT NULL,
    up_bytes INTEGER NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (round, client)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS client_score (
    round INTEGER NOT NULL, phase TEXT NOT NULL, data TEXT NOT NULL, score TEXT NOT NULL, client INTEGER NOT NULL,
    sum REAL NOT NULL, count REAL NOT NULL, PRIMARY KEY (round, phase, data, score, client)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS watched (
    round INTEGER NOT NULL, name TEXT NOT NULL, shape TEXT NOT NULL, float32 BLOB NOT NULL, PRIMARY KEY (round, name));
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY, round INTEGER NOT NULL, client INTEGER, kind TEXT NOT NULL, text TEXT NOT NULL);
{checksums.TABLE}
COMMIT;
"""
# Runs of 0.1 had one score, the accuracy, in columns of its own: the same numbers as the tables above have them.
EARLIER = f"""
CREATE TEMP VIEW summary AS
    SELECT round, phase, data, 'accuracy' AS score, pooled, mean, std, worst, worst10 FROM accuracy;
CREATE TEMP VIEW client_score AS {
    " UNION ALL ".join(
        f"SELECT round, '{phase}' AS phase, '{data}' AS data, 'accuracy' AS score, client, {columns}correct AS sum,"
        f" {columns}total AS count FROM {table} WHERE {columns}total IS NOT NULL"
        for phase, prefix, table in (
            ("before", "before_", "client_round"),
            ("after", "after_", "client_round"),
            ("final", "", "client_final"),
        )
        for data, columns in (("test", prefix), ("validation", f"{prefix}valid_"))
    )
};
"""
DURING = "phase='during' AND data='train'"
PER_ROUND = ("round", "summary", "client_round", "client_score", "watched", "event")
# The watched tensor with the role of weights. Runs of older versions do not name it: it is A there.
WEIGHTS = "name = (SELECT coalesce(max(value), 'A') FROM meta WHERE key = 'weights')"
# What a resumed run repeats bit for bit; the other columns are times.
TIMES = {"round": ("seconds", "training_seconds", "server_seconds"), "client_round": ("seconds",)}


class Ledger:
    """Writes one run's numbers; every round is one transaction."""

    def __init__(self, path: Path) -> None:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite would apply the umask only
            self._db = sqlite3.connect(path)
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"cannot open {path}: {error}", "is the folder read-only?") from error
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            earlier = "accuracy" in _tables(self._db)
            if not earlier:
                self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            self._db.close()
            raise RunError(f"cannot write {path}: {error}", "is it damaged, or the disk full or read-only?") from error
        if earlier:
            self._db.close()
            raise RunError(f"{path} was begun by an older version", "finish it with that one, or run again elsewhere")

    def describe(self, meta: Mapping[str, str], clients: list[tuple[int, str, int, int, int, str]]) -> None:
        with self._writing():
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(meta.items()))
            self._db.executemany("INSERT OR REPLACE INTO client VALUES (?, ?, ?, ?, ?, ?)", clients)

    def forget_from(self, round: int) -> None:
        """Delete rounds that a resumed run will repeat."""
        with self._writing():
            for table in (*PER_ROUND, "checksum"):
                self._db.execute(f"DELETE FROM {table} WHERE round >= ?", (round,))

    def record(self, log: RoundLog, clients: int, scores: Sequence[Score] = (ACCURACY,), stride: int = 1) -> None:
        """One round; ``scores`` says what the rows of its sums mean, ``stride`` whose watched tensors stay."""
        with self._writing():
            self._db.execute("INSERT INTO round VALUES (?, ?, ?, ?, ?, ?, ?)", _round_row(log))
            self._db.executemany("INSERT INTO summary VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", _summary_rows(log, scores))
            rows = [_client_row(log, i) for i in range(clients)]
            self._db.executemany("INSERT INTO client_round VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._db.executemany("INSERT INTO client_score VALUES (?, ?, ?, ?, ?, ?, ?)", _score_rows(log, scores))
            thinned = self._db.execute("DELETE FROM watched WHERE round = ? AND round % ?", (log.round - 1, stride))
            if thinned.rowcount:
                checksums.add(self._db, PER_ROUND, log.round - 1)
            watched = [(log.round, k, str(list(v.shape)), v.float().numpy().tobytes()) for k, v in log.watched.items()]
            self._db.executemany("INSERT INTO watched VALUES (?, ?, ?, ?)", watched)
            for event in log.events:
                self._db.execute("INSERT INTO event (round, client, kind, text) VALUES (?, ?, ?, ?)", event)
            checksums.add(self._db, PER_ROUND, log.round)

    def meta(self) -> dict[str, str]:
        return meta(self._db)

    def rounds_before(self, round: int) -> int:
        """How many of the rounds before this one are stored."""
        return int(self._db.execute("SELECT count(*) FROM round WHERE round < ?", (round,)).fetchone()[0])

    def damaged_rounds(self) -> list[int]:
        return checksums.damaged(self._db, PER_ROUND)

    def logs(self) -> list[RoundLog]:
        return logs(self._db)

    def close(self) -> None:
        """Leave one plain file, readable on read-only media too; an active reader may prevent that."""
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


def _measured(log: RoundLog, scores: Sequence[Score]) -> Iterator[tuple[str, str, Score, Sums]]:
    """(phase, data, score, [M, 2]) of everything that was measured on at least one sample; the train loss is that of
    the batches during training."""
    for phase, sums in (("before", log.before), ("after", log.after), ("final", log.final)):
        if sums is None:
            continue
        for data, columns in (("test", TEST), ("validation", VALIDATION)):
            for k, score in enumerate(scores):
                if data == "test" or sums[:, k, columns][:, 1].any():
                    yield phase, data, score, sums[:, k, columns]
    if log.train_loss:
        count = 1 + max(log.train_loss)
        yield "during", "train", LOSS, np.array([log.train_loss.get(i, (0.0, 0)) for i in range(count)], np.float64)


def _summary_rows(log: RoundLog, scores: Sequence[Score]) -> Iterator[tuple[Any, ...]]:
    for phase, data, score, sums in _measured(log, scores):
        if sums[:, 1].any():
            yield (log.round, phase, data, score.name, *summarise(score, sums[:, 0], sums[:, 1]).as_dict().values())


def _score_rows(log: RoundLog, scores: Sequence[Score]) -> Iterator[tuple[Any, ...]]:
    for phase, data, score, sums in _measured(log, scores):
        for i, (sum, count) in enumerate(sums.tolist()):
            if count or data != "train":
                yield (log.round, phase, data, score.name, i, sum, count)


def _client_row(log: RoundLog, i: int) -> tuple[Any, ...]:
    seconds = log.client_seconds.get(i, 0.0)
    return (log.round, i, int(i in log.trained), log.down_bytes.get(i, 0), log.up_bytes.get(i, 0), seconds)


# -------------------------------------------------------------------------------------------------------- reading


def read_only(path: Path) -> sqlite3.Connection:
    """A read-only connection; first rolls back what a killed process left half-written."""
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
            _bring_up(db)
            yield db
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} is not a readable run.db: {error}", "restore it, or run again") from error


def _bring_up(db: sqlite3.Connection) -> None:
    """Show a run of an older version through views of the current tables; the file is not changed."""
    tables = _tables(db)
    if "accuracy" in tables:
        if "client_final" not in tables:
            db.execute("CREATE TEMP TABLE client_final (round, client, correct, total, valid_correct, valid_total)")
        db.executescript(EARLIER)


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def scores_of(db: sqlite3.Connection) -> tuple[Score, ...]:
    """What the run measured, the primary score first; of an older version, the accuracy."""
    found = meta(db).get("scores")
    return scores_from_json(json.loads(found)) if found else (ACCURACY,)


def primary(db: sqlite3.Connection) -> Score:
    return scores_of(db)[0]


def is_begun(path: Path) -> bool:
    """Is there a run.db with tables? A process killed while it made the file leaves an empty one."""
    if not path.is_file():
        return False
    try:
        with closing(read_only(path)) as db:
            return bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.DatabaseError:
        return True  # damaged rather than empty: reading it reports that


def meta(db: sqlite3.Connection) -> dict[str, str]:
    return dict(_printable(row) for row in db.execute("SELECT key, value FROM meta"))


def _printable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Texts without what a terminal would obey: the run may be somebody else's."""
    return tuple(_plain(value) if isinstance(value, str) and not value.isprintable() else value for value in row)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def curve(
    db: sqlite3.Connection, phase: str, data: str = "test", score: str | None = None
) -> list[tuple[int, Summary]]:
    """(rounds done, summary) of a score, the primary one unless another is named.

    ``before`` goes from the start to what the last aggregation would send, ``after`` and ``during`` from 1.
    """
    name = score or primary(db).name
    columns = "round, pooled, mean, std, worst, worst10"
    query = f"SELECT {columns} FROM summary WHERE phase=? AND data=? AND score=? ORDER BY round"
    found = [
        (row[0] + (phase in ("after", "during")), _summary(row[1:])) for row in db.execute(query, (phase, data, name))
    ]
    if phase == "before":
        found += [(row[0] + 1, _summary(row[1:])) for row in db.execute(query, ("final", data, name))]
    return found


def train_loss(db: sqlite3.Connection) -> list[tuple[int, Summary]]:
    """(rounds done, loss of the batches that clients trained on); none where the run's trainer is the user's own."""
    return curve(db, "during", "train", LOSS.name)


def _summary(row: tuple[Any, ...]) -> Summary:
    """SQLite keeps NaN as NULL."""
    return Summary(*(float("nan") if value is None else value for value in row))


def client_sums(db: sqlite3.Connection, done: int, phase: str, score: str | None = None) -> Sums:
    """[M, 2] sum and count of every client's score on its test data, when so many rounds were done."""
    name = score or primary(db).name
    found = _client_sums(db, done - (phase == "after"), phase, name)
    return found if len(found) or phase != "before" else _client_sums(db, done - 1, "final", name)


def _client_sums(db: sqlite3.Connection, round: int, phase: str, score: str) -> Sums:
    where = "round=? AND phase=? AND data='test' AND score=?"
    query = f"SELECT sum, count FROM client_score WHERE {where} ORDER BY client"
    return np.array(db.execute(query, (round, phase, score)).fetchall(), dtype=np.float64).reshape(-1, 2)


def last_sums(db: sqlite3.Connection, phase: str) -> Sums | None:
    """The same as it stands now; None before the first evaluation."""
    rows = curve(db, phase)
    return client_sums(db, rows[-1][0], phase) if rows else None


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
    rows = db.execute("SELECT name, train, test, validation, labels FROM client ORDER BY client")
    return [(name, train, test, held, labels) for name, train, test, held, labels in map(_printable, rows)]


def last_round(db: sqlite3.Connection) -> int | None:
    """The last evaluated round, counted from 1."""
    (last,) = db.execute("SELECT max(round) FROM summary WHERE data = 'test'").fetchone()
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
    """One client round by round: round, trained, bytes down and up, then sum and count before and after."""
    name, course = primary(db).name, dict[int, tuple[Any, ...]]()
    # From the few rows of ``round``: then every other table is searched by its key. Alone it would be read as a whole.
    query = (
        "SELECT round, sum, count FROM round CROSS JOIN client_score USING (round)"
        " WHERE client=? AND phase=? AND data='test' AND score=?"
    )
    before, after = (
        {t: (sum, count) for t, sum, count in db.execute(query, (client, phase, name))} for phase in ("before", "after")
    )
    columns = "round, client_round.trained, client_round.down_bytes, client_round.up_bytes"
    rows = "round CROSS JOIN client_round USING (round)"
    for row in db.execute(f"SELECT {columns} FROM {rows} WHERE client=? ORDER BY round", (client,)):
        course[row[0]] = (*row, *before.get(row[0], (None, None)), *after.get(row[0], (None, None)))
    return list(course.values())


def matrices(db: sqlite3.Connection, clients: int, round: int | None = None) -> Iterator[tuple[int, Floats]]:
    """(round from 1, A [M, M]) where a method says how much of every client's model goes to every other."""
    query = f"SELECT round, shape, float32 FROM watched WHERE {WEIGHTS} AND ? IN (round + 1, -1) ORDER BY round"
    for t, shape, blob in db.execute(query, (-1 if round is None else round,)):
        if json.loads(shape) == [clients, clients]:
            yield t + 1, np.frombuffer(blob, np.float32).reshape(clients, clients).astype(np.float64)


def clusters(db: sqlite3.Connection, clients: int) -> Iterator[tuple[int, Floats]]:
    """(round from 1, [M] the cluster of every client) where a method puts clients into some."""
    named = "name = (SELECT value FROM meta WHERE key = 'clusters')"
    for t, shape, blob in db.execute(f"SELECT round, shape, float32 FROM watched WHERE {named} ORDER BY round"):
        if json.loads(shape) == [clients]:
            yield t + 1, np.frombuffer(blob, np.float32).astype(np.float64)


def weight_rows(db: sqlite3.Connection, clients: int, client: int) -> Iterator[tuple[int, Floats]]:
    """(round from 1, one client's row of A) without reading the others' rows."""
    query = f"SELECT round, shape, substr(float32, ?, ?) FROM watched WHERE {WEIGHTS} ORDER BY round"
    for t, shape, blob in db.execute(query, (4 * clients * client + 1, 4 * clients)):
        if json.loads(shape) == [clients, clients]:
            yield t + 1, np.frombuffer(blob, np.float32).astype(np.float64)


def weight_rounds(db: sqlite3.Connection) -> list[int]:
    """The rounds, from 1, in which A was recorded."""
    return [t + 1 for (t,) in db.execute(f"SELECT round FROM watched WHERE {WEIGHTS} ORDER BY round")]


def damaged_rounds(db: sqlite3.Connection) -> list[int] | None:
    """Rounds, from 0, with other rows than were written; None if an older version wrote run.db without checksums."""
    return checksums.damaged(db, PER_ROUND) if "checksum" in _tables(db) else None


def events(db: sqlite3.Connection) -> list[tuple[int, int | None, str, str]]:
    rows = db.execute("SELECT round, client, kind, text FROM event ORDER BY id")
    return [(round, client, kind, text) for round, client, kind, text in map(_printable, rows)]


def logs(db: sqlite3.Connection) -> list[RoundLog]:
    """The round logs as the loop wrote them, except for the order of clients within a round, and without the watched
    tensors of all rounds but the last: ``matrices`` and ``clusters`` read those one by one."""
    import torch

    from fedapa.rounds.round_log import Event, RoundLog
    from fedapa.training.job import LossSum

    found, scores = dict[int, RoundLog](), scores_of(db)
    for t, clients, training, server in db.execute(
        "SELECT round, seconds - server_seconds, training_seconds, server_seconds FROM round ORDER BY round"
    ):
        found[t] = RoundLog(t, [], seconds={"clients": clients, "server": server, "training": training})
        columns = "round, client, trained, down_bytes, up_bytes, seconds"
        _fill(
            found[t], db.execute(f"SELECT {columns} FROM client_round WHERE round=? ORDER BY client", (t,)).fetchall()
        )
        found[t].before, found[t].after, found[t].final = (
            _all_sums(db, t, phase, scores) for phase in ("before", "after", "final")
        )
    for t, client, sum, count in db.execute(f"SELECT round, client, sum, count FROM client_score WHERE {DURING}"):
        found[t].train_loss[client] = LossSum(sum, int(count))
    for event in events(db):
        found[event[0]].events.append(Event(*event))
    last = "SELECT round, name, shape, float32 FROM watched WHERE round = (SELECT max(round) FROM round)"
    for t, name, shape, blob in db.execute(last):
        found[t].watched[name] = torch.frombuffer(bytearray(blob), dtype=torch.float32).reshape(json.loads(shape))
    return list(found.values())


def _fill(log: RoundLog, rows: list[tuple[Any, ...]]) -> None:
    log.trained = [row[1] for row in rows if row[2]]
    log.down_bytes = {row[1]: row[3] for row in rows if row[3]}
    log.up_bytes = {row[1]: row[4] for row in rows if row[4]}
    log.client_seconds = {row[1]: row[5] for row in rows if row[5]}


def _all_sums(db: sqlite3.Connection, round: int, phase: str, scores: Sequence[Score]) -> Sums | None:
    """[M, S, 4] of one round; None where it was not evaluated."""
    query = "SELECT client, score, data, sum, count FROM client_score WHERE round=? AND phase=?"
    rows = db.execute(query, (round, phase)).fetchall()
    if not rows:
        return None
    found = np.zeros((1 + max(row[0] for row in rows), len(scores), 4))
    place = {score.name: k for k, score in enumerate(scores)}
    for client, score, data, sum, count in rows:
        found[client, place[score], TEST if data == "test" else VALIDATION] = sum, count
    return found


def numbers(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every number of a run except times: must be equal after a crash and a resume."""
    with reading(path) as db:
        found = {}
        for table in (*PER_ROUND, "client"):
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            kept = [c for c in columns if c not in TIMES.get(table, ()) and c != "id"]
            order = ", ".join(str(k + 1) for k in range(min(5, len(kept))))
            found[table] = db.execute(f"SELECT {', '.join(kept)} FROM {table} ORDER BY {order}").fetchall()
        return found
