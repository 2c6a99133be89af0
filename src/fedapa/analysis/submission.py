"""Runs that somebody hands in: checked against the scenarios of a board before they stand beside its rows.

What can be checked without playing a run again is checked of every run. Numbers that were made up consistently pass.
Playing a run again shows them, which ``replay`` does for some, chosen when they are handed in.
"""

from __future__ import annotations

import secrets
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedapa.analysis import statistics
from fedapa.analysis.run_results import RunResult
from fedapa.config.experiment import execute, load_data, method_from, read_config, what_counts
from fedapa.config.load import check as parse
from fedapa.config.load import dump
from fedapa.config.sections import Config
from fedapa.core.summaries import summarise
from fedapa.data.federated import Federated
from fedapa.errors import FedapaError
from fedapa.store import run_db
from fedapa.store import run_folder as folders
from fedapa.verify import verify
from fedapa.version import NUMERICS

SAME = ("data", "sites", "model", "objective", "run", "attack")  # sections in which a run must equal the board's
CLOSE = 1e-9  # between a summary and what its clients' scores give
TOLERANCE = 0.5  # points between two machines' runs of one config, pooled


@dataclass
class Checked:
    """What was found about the runs that were handed in."""

    faults: list[str] = field(default_factory=list)
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings of training that are not the board's


def check(runs: Sequence[RunResult], board: Mapping[str, Config]) -> Checked:
    """All faults at once, so that they can be mended at once."""
    found = Checked()
    for run in runs:
        if run.scenario not in board:
            found.faults.append(f"{run.folder}: the board has no scenario {run.scenario or '(none)'!r}")
            continue
        try:
            found.faults += [f"{run.folder}: {fault}" for fault in _faults(run, board[run.scenario])]
            found.recipes |= _recipe(run, board[run.scenario])
        except FedapaError as error:
            found.faults.append(f"{run.folder}: {error.message}")
    found.faults += _too_few(runs, board) + _unlawful(runs)
    return found


def _faults(run: RunResult, board: Config) -> Iterable[str]:
    config = read_config(run.folder)
    if run.status != "finished":
        yield f"the run is {run.status}, not finished"
    if run.provenance.numerics != NUMERICS:
        yield f"it was made under numerics version {run.provenance.numerics}, not {NUMERICS}"
    if run.provenance.revision != (now := method_from(config, run.label).revision):
        yield f"it was made under revision {run.provenance.revision} of the method's numbers, not {now}"
    mine, theirs = what_counts(config), _asked(board)
    yield from (_difference(name, mine, theirs) for name in SAME if mine.get(name) != theirs.get(name))
    data = _data(board, run.seed)
    if run.partition != data.fingerprint:
        yield f"its allocation {run.partition} is not the board's {data.fingerprint} of seed {run.seed}"
    else:
        yield from _uncounted(run.folder, run.rounds, data)


def _asked(board: Config) -> dict[str, Any]:
    """What the board asks of every method; it need not know the one that is handed in."""
    return what_counts(board.model_copy(update={"methods": ["local"]}))


def _difference(name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    one, other = mine.get(name, {}), theirs.get(name, {})
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    default = "the default"
    return "; ".join(f"{name}.{k} is {one.get(k, default)}, the board has {other.get(k, default)}" for k in keys)


@cache
def _loaded(text: str, seed: int) -> Federated:
    return load_data(parse(tomllib.loads(text), text), seed)


def _data(board: Config, seed: int) -> Federated:
    return _loaded(dump(board), seed)


def _uncounted(folder: Path, rounds: int, data: Federated) -> Iterable[str]:
    """Does run.db hold every round, and do its summaries follow from its clients, and its clients from the data?"""
    sizes = np.array([len(client.test.y) for client in data.clients], dtype=np.float64)
    with run_db.reading(folder / "run.db") as db:
        score = run_db.primary(db)
        if (done := run_db.totals(db).rounds) != rounds:
            yield f"run.db holds {done} of {rounds} rounds"
        for phase in ("before", "after"):
            for done, told in run_db.curve(db, phase):
                sums = run_db.client_sums(db, done, phase)
                again = summarise(score, sums[:, 0], sums[:, 1])
                if abs(again.pooled - told.pooled) > CLOSE or abs(again.mean - told.mean) > CLOSE:
                    yield f"round {done}, {phase}: the summary says {told.pooled:.4f}, its clients {again.pooled:.4f}"
                if score.per_sample and (len(sums) != len(sizes) or (sums[:, 1] > sizes).any()):
                    yield f"round {done}, {phase}: more test samples than the allocation has"
                if score.is_share and (sums[:, 0] > sums[:, 1]).any():
                    yield f"round {done}, {phase}: more right answers than samples"


def _recipe(run: RunResult, board: Config) -> dict[str, dict[str, Any]]:
    config = read_config(run.folder)
    mine, theirs = what_counts(config)["training"], _asked(board)["training"]
    own = {key: mine.get(key) for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)}
    return {run.label: own} if own else {}


def _too_few(runs: Sequence[RunResult], board: Mapping[str, Config]) -> list[str]:
    """Allocations are the board's first ones: nobody may choose the seeds that suit a method."""
    cells: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        cells.setdefault((run.scenario, run.label), set()).add(run.seed)
    faults = []
    for (scenario, label), seeds in cells.items():
        first = set((board[scenario].seeds if scenario in board else sorted(seeds))[: len(seeds)])
        if len(seeds) < statistics.FEWEST or seeds != first:
            needed = f"the first {max(len(seeds), statistics.FEWEST)} seeds of the board"
            faults.append(f"{scenario}/{label}: seeds {sorted(seeds)}; hand in {needed}")
    return faults


def _unlawful(runs: Sequence[RunResult]) -> list[str]:
    """The laws of shipped methods are part of the tests; those of others are checked now."""
    methods = {}
    for run in runs:
        method = method_from(read_config(run.folder), run.label)
        if not type(method).__module__.startswith("fedapa."):
            methods[run.label] = method
    return [
        f"{label} breaks the law {found.law} ({found.schedule}): {found.detail}"
        for label, method in methods.items()
        for found in verify(method)
        if not found.holds
    ]


def replay(runs: Sequence[RunResult], count: int) -> list[str]:
    """Play some runs again, chosen by chance now; returns how they differ."""
    left, faults = list(runs), []
    for _ in range(min(count, len(left))):
        run = left.pop(secrets.randbelow(len(left)))
        with tempfile.TemporaryDirectory() as top:
            again = Path(top) / run.folder.name
            folders.create(again, dump(read_config(run.folder)))
            execute(again)
            faults += [f"{run.folder}: played again, {fault}" for fault in _differences(run.folder, again)]
    return faults


def _differences(one: Path, other: Path) -> list[str]:
    if run_db.numbers(one / "run.db") == run_db.numbers(other / "run.db"):
        return []
    with run_db.reading(one / "run.db") as mine, run_db.reading(other / "run.db") as theirs:
        score = run_db.primary(mine)
        pairs = [
            (run_db.curve(mine, phase)[-1][1], run_db.curve(theirs, phase)[-1][1]) for phase in ("before", "after")
        ]
    if score.is_share:
        pairs = [pair for pair in pairs if abs(pair[0].pooled - pair[1].pooled) > TOLERANCE]
    else:
        pairs = [pair for pair in pairs if not np.isclose(pair[0].pooled, pair[1].pooled, rtol=0.01)]
    return [f"it ends at {score.text(b.pooled)}, not at {score.text(a.pooled)}" for a, b in pairs]
