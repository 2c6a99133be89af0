"""What the pages show, as plain data: every function takes the folder as it stands and gives a dictionary."""

from __future__ import annotations

import hashlib
import math
import sqlite3
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedapa.analysis import comparison, pairing, standings, statistics
from fedapa.analysis.client_similarity import (
    Index,
    clustered,
    groups,
    moved,
    off_diagonal,
    partners,
    rank_correlation,
    similarity,
)
from fedapa.analysis.method_rows import MethodRow
from fedapa.analysis.run_reader import (
    LARGEST_MATRIX,
    Client,
    Floats,
    Run,
    Scenario,
    class_names,
    clients_of,
    label_counts,
    matrices,
    mean_curve,
    read_json,
    seed_band,
    title_of,
)
from fedapa.core.scores import Score
from fedapa.dashboard.board import Board, Entry, Snapshot
from fedapa.errors import InputError
from fedapa.store import run_db
from fedapa.store.run_folder import CONFIG
from fedapa.store.run_settings import EXPERIMENT, SETTINGS

View = dict[str, Any]
MOST_POINTS = 250  # of one curve
MOST_MOMENTS = 60  # of the course of A
MOST_EVENTS = 2000
LARGEST_IN_BLOCKS, BLOCKS = 2000, 100  # clients whose weights are summed up, and by how many blocks of them
LOG_TAIL = 200_000  # bytes of log.txt


def plain(value: Any) -> Any:
    """Ready for JSON: no arrays, and null for what is not a finite number."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and np.isfinite(value).all():  # at once: one by one takes ten times as long
            return value.round(5).tolist()
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 5) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value


def thinned(n: int, most: int = MOST_POINTS) -> list[int]:
    """Places of at most ``most`` of n things, the first and the last among them."""
    return list(range(n)) if n <= most else sorted({round(k * (n - 1) / (most - 1)) for k in range(most)})


def landmarks(values: Sequence[int], most: int = MOST_MOMENTS) -> list[int]:
    """Every 2nd, 4th, 8th ... value and the last: as more come, those stay, and nothing is worked out anew."""
    step = 1
    while len(values) > step * (most - 1):
        step *= 2
    return sorted({*values[::step], *values[-1:]})


# --------------------------------------------------------------------------------------------------------- overview


def overview(board: Board, now: Snapshot) -> View:
    states = Counter(entry.state for entry in now.entries.values())
    known = [entry for entry in now.entries.values() if entry.rounds]
    return {
        "folder": str(board.folder.absolute()),
        "kind": board.kind,
        "version": now.version,
        "states": dict(states),
        "rounds_done": sum(entry.done for entry in known),
        "rounds": sum(entry.rounds or 0 for entry in known),
        "seconds_left": board.seconds_left(now),
        "runs": [_run_row(entry, now) for entry in now.entries.values()],
        "scenarios": [_scenario(scenario) for scenario in now.scenarios],
        "sites": now.sites,
    }


def _run_row(entry: Entry, now: Snapshot) -> View:
    row: View = {
        "name": entry.name,
        "state": entry.state,
        "reason": entry.reason,
        "done": entry.done,
        "rounds": entry.rounds,
        "pace": entry.pace,
        "seconds_left": entry.seconds_left if entry.state == "running" else None,
    }
    scenario = now.scenario_of(entry.name)
    if scenario is None or not isinstance(entry.found, Run):
        return row | {"label": Path(entry.name).name, "title": Path(entry.name).name, "scenario": None}
    run = next(run for run in scenario.runs if str(run.result.folder) == entry.name)
    return row | {
        "label": run.label,
        "title": title_of(run.label),
        "seed": run.result.seed,
        "scenario": scenario.title,
        "evaluated": run.result.evaluated,
        "before": run.result.before.last,
        "after": run.result.after.last,
        "score": run.score.as_dict(),
        "mib": run.mib,
        "has_weights": entry.has_weights,
    }


def _scenario(scenario: Scenario) -> View:
    rows = [_method(row) for row in scenario.rows]
    curves = {row.method: _mean_curves(scenario.of(row.method)) for row in scenario.rows}
    score = scenario.score.as_dict()
    return {"title": scenario.title, "score": score, "methods": rows, "curves": curves, "notes": scenario.notes}


def _method(row: MethodRow) -> View:
    return {**row.as_dict(), "title": title_of(row.method)}


def _mean_curves(runs: Sequence[Run]) -> View:
    """Over seeds, in the rounds that all of them have."""
    found: View = {}
    for phase in ("before", "after"):
        curve = mean_curve(runs, phase)
        kept = thinned(len(curve.rounds))
        pooled = curve.pooled[kept].round(runs[0].score.digits)
        found |= {"rounds": curve.rounds[kept].astype(int), phase: pooled}
        if (band := seed_band(runs, phase)) is not None:
            found[f"{phase}_band"] = [bound[kept].round(runs[0].score.digits) for bound in band]
    return found


# ---------------------------------------------------------------------------------------------------------- clients


def _open(entry: Entry, read: Callable[[sqlite3.Connection], View]) -> View:
    """Read in one short visit; a damaged file is told, not fatal."""
    if not run_db.is_begun(entry.folder / "run.db"):
        return {"trouble": f"{entry.name} has not started yet."}
    try:
        with run_db.reading(entry.folder / "run.db") as db:
            return read(db)
    except InputError as error:
        return {"trouble": error.message}
    except (sqlite3.Error, ValueError, TypeError, LookupError) as error:
        return {"trouble": f"run.db of {entry.name} holds something unexpected: {error!r}"}


def clients(now: Snapshot, name: str) -> View:
    entry = now.entry(name)
    gains, gain_round = _gains(now, entry)

    def read(db: sqlite3.Connection) -> View:
        people, totals = clients_of(db), run_db.client_totals(db)
        marks = Counter((client, kind) for _, client, kind, _ in run_db.events(db) if client is not None)
        value = {phase: _values(db, phase) for phase in ("before", "after")}
        sure = _exact(db, run_db.meta(db)["evaluated"])
        own = _own_weights(db, len(people))
        rows = [
            {
                "client": i,
                "name": client.name,
                "train": client.train,
                "test": client.test,
                "classes": sum(n > 0 for n in client.labels),
                **{phase: _at(values, i) for phase, values in value.items()},
                "interval": _interval(sure, i),
                "gain": _at(gains, i),
                "own": _at(own, i),
                "visits": totals[i][0] if i < len(totals) else 0,
                "kib": (totals[i][1] + totals[i][2]) / 1024 if i < len(totals) else 0.0,
                "seconds": totals[i][3] if i < len(totals) else 0.0,
                "marks": {kind: n for (who, kind), n in marks.items() if who == i},
            }
            for i, client in enumerate(people)
        ]
        score = run_db.primary(db).as_dict()
        return {"round": run_db.last_round(db), "gain_round": gain_round, "clients": rows, "score": score}

    return _open(entry, read)


def _at(values: Sequence[float] | Floats | None, i: int) -> float | None:
    return None if values is None or i >= len(values) else float(values[i])


def _values(db: sqlite3.Connection, phase: str) -> Floats | None:
    """Every client's primary score; NaN without test samples."""
    sums = run_db.last_sums(db, phase)
    return None if sums is None else run_db.primary(db).values(sums[:, 0], sums[:, 1])


def _exact(db: sqlite3.Connection, phase: str) -> tuple[Floats, Floats] | None:
    """Exact 95 % intervals of scores that are shares, of the model that the method is evaluated by."""
    sums, score = run_db.last_sums(db, phase), run_db.primary(db)
    if sums is None or not score.is_share:
        return None
    low, high = statistics.exact(*sums.T)
    return score.scale * low, score.scale * high


def _interval(sure: tuple[Floats, Floats] | None, i: int) -> list[float] | None:
    return None if sure is None or not np.isfinite(sure[0][i]) else [float(bound[i]) for bound in sure]


def _own_weights(db: sqlite3.Connection, clients: int) -> Floats | None:
    rounds = run_db.weight_rounds(db)
    last = list(matrices(db, clients, rounds[-1])) if rounds else []
    return np.diag(last[0][1]) if last else None


def _gains(now: Snapshot, entry: Entry) -> tuple[Floats | None, int | None]:
    """Points over Local on the same allocation in the last round that both evaluated, and that round."""
    scenario = now.scenario_of(entry.name)
    if scenario is None or not isinstance(entry.found, Run) or entry.found.label == pairing.LOCAL:
        return None, None
    found = pairing.pairs([entry.found.result], [run.result for run in scenario.runs], pairing.LOCAL)
    return (pairing.gaps(*found[0]), found[0][0].round) if found else (None, None)


def client(now: Snapshot, name: str, i: int) -> View:
    entry = now.entry(name)

    def read(db: sqlite3.Connection) -> View:
        people = clients_of(db)
        if not 0 <= i < len(people):
            return {"trouble": f"{name} has no client {i}."}
        rows, score = run_db.client_course(db, i), run_db.primary(db)
        seen = [row for row in rows if row[5] or row[7]]
        seen = [seen[k] for k in thinned(len(seen))]
        moved = np.cumsum([[row[2], row[3]] for row in rows] or [[0, 0]], axis=0) / 1024
        kept = thinned(len(rows))
        return {
            "client": i,
            "name": people[i].name,
            "train": people[i].train,
            "test": people[i].test,
            "rounds": [row[0] + 1 for row in seen],
            "score": score.as_dict(),
            "before": [_value(score, row[4], row[5]) for row in seen],
            "after": [_value(score, row[6], row[7]) for row in seen],
            "bytes": {"rounds": [rows[k][0] + 1 for k in kept], "down": moved[kept, 0], "up": moved[kept, 1]},
            "labels": people[i].labels,
            "classes": class_names(entry.found) if isinstance(entry.found, Run) else [],
            "weights": _weights_over_rounds(db, people, i),
        }

    return _open(entry, read)


def _value(score: Score, sum: float | None, count: float | None) -> float | None:
    return score.value(sum, count) if sum is not None and count else None


def _weights_over_rounds(db: sqlite3.Connection, people: Sequence[Client], i: int, most: int = 5) -> View | None:
    """What the client takes from itself, from those it takes most from, and from all others together."""
    rows = list(run_db.weight_rows(db, len(people), i))
    if not rows:
        return None
    rows = [rows[k] for k in thinned(len(rows), 2 * MOST_MOMENTS)]
    table = np.array([row for _, row in rows])
    others = [int(j) for j in np.argsort(-table[-1]) if j != i]
    lines = [{"name": people[j].name, "client": j, "values": table[:, j]} for j in [i, *others[:most]]]
    rest = others[most:]
    if rest:
        lines.append({"name": f"{len(rest)} others", "client": None, "values": table[:, rest].sum(1)})
    return {"rounds": [t for t, _ in rows], "lines": lines}


# ---------------------------------------------------------------------------------------------------- collaboration


def weights(now: Snapshot, name: str, round: int | None, known: str = "") -> View:
    """A in one round (the last where none is named), and who is like whom unless that is ``known``."""
    entry = now.entry(name)

    def read(db: sqlite3.Connection) -> View:
        people, rounds = clients_of(db), run_db.weight_rounds(db)
        if len(people) > LARGEST_IN_BLOCKS:
            said = f"{len(people):,} clients are too many to draw (at most {LARGEST_IN_BLOCKS:,})."
            return {"trouble": f"{said} The page of clients shows whose models each of them takes."}
        likeness = _likeness(tuple(people))
        likeness = {"like": known} if known == likeness["like"] else likeness
        if not rounds:
            return {"rounds": [], "names": [client.name for client in people], **likeness}
        wanted = rounds[-1] if round is None else min(rounds, key=lambda t: abs(t - round))
        found = list(run_db.matrices(db, len(people), wanted))
        if not found:
            return {"trouble": "The matrix of weights has not one row per client."}
        return {"rounds": rounds, "round": wanted, **_drawn(tuple(people), found[0][1]), **likeness}

    return _open(entry, read)


def _drawn(people: tuple[Client, ...], A: Floats) -> View:
    """A client by client; of many clients, what those of one block take from those of another."""
    if len(people) <= LARGEST_MATRIX:
        names, shown = [client.name for client in people], A
        more: View = {"partners": partners(A).round(2), "groups": groups(A), "blocks": 0}
    else:
        blocks = _blocks(people)
        names = [f"{k}: {people[block[0]].name} and {len(block) - 1} more" for k, block in enumerate(blocks, 1)]
        shown = in_blocks(A, blocks)
        more = {"partners": [round(float(partners(A)[block].mean()), 2) for block in blocks], "groups": []}
        more["blocks"] = len(people)
    low, top = np.percentile(off_diagonal(shown), (0.5, 99.5)).tolist()
    return {"names": names, "A": shown.round(4), "low": low, "top": top, **more}


def in_blocks(A: Floats, blocks: Sequence[Index]) -> Floats:
    """[blocks, blocks] what a client of a block takes from all others of a block, mean over its clients."""
    others = np.where(np.eye(len(A), dtype=bool), 0.0, A)
    columns = np.stack([others[:, block].sum(1) for block in blocks], axis=1)
    return np.stack([columns[block].mean(0) for block in blocks])


@lru_cache(maxsize=8)
def _blocks(people: tuple[Client, ...]) -> list[Index]:
    """Clients with similar labels in blocks of equal size."""
    counts = label_counts(people)
    order = np.arange(len(people)) if counts is None else clustered(similarity(counts))
    return np.array_split(order, BLOCKS)


@lru_cache(maxsize=8)
def _likeness(people: tuple[Client, ...]) -> View:
    counts, like = label_counts(people), hashlib.sha256(repr(people).encode()).hexdigest()[:16]
    if counts is None:
        drawn = len(people) if len(people) <= LARGEST_MATRIX else BLOCKS
        return {"like": like, "similar": None, "order": list(range(drawn))}
    if len(people) > LARGEST_MATRIX:
        similar = similarity(np.stack([counts[block].sum(0) for block in _blocks(people)]))
        return {"like": like, "similar": similar.round(3), "order": list(range(BLOCKS))}
    similar = similarity(counts)
    return {"like": like, "similar": similar.round(3), "order": clustered(similar).tolist()}


def course(now: Snapshot, name: str) -> View:
    """Round by round: what clients keep of their own, with how many they work, what moves, and if labels matter."""
    entry = now.entry(name)

    def read(db: sqlite3.Connection) -> View:
        people, rounds = clients_of(db), run_db.weight_rounds(db)
        counts = label_counts(people)
        if not rounds or len(people) > LARGEST_IN_BLOCKS:
            return {"rounds": []}
        is_small = len(people) <= LARGEST_MATRIX
        similar = off_diagonal(similarity(counts)) if counts is not None and is_small else None
        moments = landmarks(rounds) if is_small else landmarks(rounds, MOST_MOMENTS // 10)
        same = {(key, value) for key, value in run_db.meta(db).items() if key not in ("status", "finished", "reason")}
        whose = (entry.folder, frozenset(same))
        past = dict(zip(rounds[1:], rounds, strict=False))
        found = [_moment(db, whose, t, past.get(t), len(people), similar) for t in moments]
        if None in found:
            return {"rounds": []}  # a matrix that has not one row per client
        keys = ("mean", "least", "most", "follows", "partners", "moved")
        view: View = {key: [one[k] for one in found if one] for k, key in enumerate(keys)}
        return view | {"rounds": moments, "follows": [] if similar is None else view["follows"]}

    return _open(entry, read)


Whose = tuple[Path, frozenset[tuple[str, str]]]  # a folder, and what its run says of itself
_moments: dict[tuple[Whose, int], tuple[float, ...]] = {}  # past rounds never change: each is worked out once


def _moment(
    db: sqlite3.Connection, whose: Whose, round: int, past: int | None, clients: int, similar: Floats | None
) -> tuple[float, ...] | None:
    """Own weights (mean, least, most), rank correlation with similar labels, partners, what moved since ``past``."""
    key = (whose, round)
    if key not in _moments:
        matrix = next((A for _, A in run_db.matrices(db, clients, round)), None)
        if matrix is None:
            return None
        if len(_moments) > 10 * MOST_POINTS:
            _moments.clear()
        own = np.diag(matrix)
        follows = float("nan") if similar is None else rank_correlation(off_diagonal(matrix), similar)
        before = None if past is None else next((A for _, A in run_db.matrices(db, clients, past)), None)
        change = float("nan") if before is None else moved(before, matrix)
        _moments[key] = float(own.mean()), float(own.min()), float(own.max()), follows, partners(matrix).mean(), change
    return _moments[key]


# ---------------------------------------------------------------------------------------------------------- compare


def compare(now: Snapshot, names: Sequence[str], against: str) -> View:
    """Chosen runs beside each other: curves of each, means and tests over each method."""
    for name in names:
        now.entry(name)
    runs = [run for scenario in now.scenarios for run in scenario.runs if str(run.result.folder) in set(names)]
    rows = comparison.table([run.result for run in runs], against) if runs else []
    ranks = standings.ranks(rows)
    curves = [
        {"run": str(run.result.folder), "label": run.label, "title": title_of(run.label), "seed": run.result.seed,
         "scenario": run.result.scenario, "evaluated": run.result.evaluated, **_mean_curves([run])}
        for run in runs
    ]  # fmt: skip
    missing = sorted(set(names) - {curve["run"] for curve in curves})
    return {
        "rows": [_method(row) for row in rows],
        "curves": curves,
        "ranks": None if ranks is None else ranks._asdict(),
        "without_results": missing,
    }


# --------------------------------------------------------------------------------------------------- events, config


def events(now: Snapshot, name: str | None) -> View:
    """Warnings, refusals, failures, starts and resumes, of one run or of all; the latest first."""
    entries = list(now.entries.values()) if name is None else [now.entry(name)]
    rows: list[View] = []
    for entry in entries:
        if entry.reason:
            rows.append({"run": entry.name, "kind": entry.state, "text": entry.reason})
        elif entry.state == "cut off":
            text = f"nobody is at work; `fedapa resume` goes on after round {entry.done}"
            rows.append({"run": entry.name, "kind": "cut off", "text": text})
        rows += _sessions(entry)
        rows += _open(entry, lambda db, run=entry.name: {"rows": _marks(db, run)}).get("rows", [])  # type: ignore[misc]
    rows.sort(key=lambda row: row.get("when") or "", reverse=True)
    rows.sort(key=lambda row: row["kind"] in ("started", "resumed"))  # what went wrong comes first
    return {"events": rows[:MOST_EVENTS], "left_out": max(len(rows) - MOST_EVENTS, 0)}


def _marks(db: sqlite3.Connection, run: str) -> list[View]:
    names = [client.name for client in clients_of(db)]
    return [
        {"run": run, "round": t + 1, "kind": kind, "text": text,
         "client": names[i] if i is not None and i < len(names) else None}
        for t, i, kind, text in reversed(run_db.events(db))
    ]  # fmt: skip


def _sessions(entry: Entry) -> list[View]:
    """When processes started, resumed or failed, from the end of log.txt."""
    try:
        with open(entry.folder / "log.txt", "rb") as file:
            file.seek(max(file.seek(0, 2) - LOG_TAIL, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in reversed(lines):
        when, _, text = line.partition(" ")
        kind = text.partition(":")[0].split(" ")[0]
        if kind in ("started", "resumed"):
            rows.append({"run": entry.name, "when": when, "kind": kind, "text": text.partition(": ")[2]})
    return rows


def _told(about: dict[str, str]) -> dict[str, str]:
    """Without the JSON of what is there in words."""
    return {key: value for key, value in about.items() if key not in (SETTINGS, EXPERIMENT)}


def config(now: Snapshot, name: str) -> View:
    entry = now.entry(name)
    about = _open(entry, lambda db: {"about": _told(run_db.meta(db))})
    try:
        text = (entry.folder / CONFIG).read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except (OSError, ValueError) as error:
        text, tables = f"# {CONFIG} cannot be read: {error}", {}
    return {"text": text, "tables": tables, "environment": read_json(entry.folder / "env.json"), **about}
