"""What one finished or running run says, read from its run.db alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.analysis import found_groups
from fedapa.core.scores import ACCURACY, LOSS, Score
from fedapa.core.summaries import Summary, Sums
from fedapa.methods import privacy
from fedapa.store import provenance, run_db
from fedapa.store.provenance import Provenance
from fedapa.store.run_settings import config_of

Floats = npt.NDArray[np.float64]
TAIL = 5  # rounds in the mean of the last rounds


@dataclass(frozen=True)
class Phase:
    """The pooled primary score before or after local training: last round, best round, mean of the last five."""

    last: float
    best: float
    best_round: int
    tail: float
    selected: float | None  # at the round with the best score on validation data, where there is validation data
    summary: Summary  # of the last round
    curve: tuple[float, ...]  # pooled, of every evaluated round
    held: float | None = None  # score on validation data, mean of the last five rounds: to choose by


@dataclass(frozen=True)
class RunResult:
    folder: Path
    scenario: str  # of a sweep; empty where there is only one
    label: str
    seed: int
    status: str
    rounds: int
    rounds_done: int
    evaluated: str
    before: Phase
    after: Phase
    kib: float  # down and up, per trained client and round
    seconds: float
    counts: Sums  # [M, 2] sum and count of the primary score in the last round, of the evaluated model
    partition: str
    attackers: tuple[int, ...] = ()  # the malicious clients
    attacker_weight: tuple[float, ...] = ()  # that honest rows of A give to them, in every round that recorded A
    groups_found: tuple[float, ...] = ()  # adjusted Rand index with the planted groups, in every round that shows some
    provenance: Provenance = Provenance()
    account: str = ""  # JSON of the privacy account, where uploads are noised

    evaluated_rounds: tuple[int, ...] = ()  # rounds done when the evaluated model was scored
    overlap: float = 0.0  # test rows per train row where seeds split the rows of the same sites anew, else 0
    score: Score = ACCURACY  # the primary one
    train_loss: float | None = None  # of the last round's batches; None: not known, or the run is of an older version
    test_loss: float | None = None  # of the evaluated model, where the objective has a loss among its scores
    source: Path | None = None  # the folder that run.db is in, to look at earlier rounds; None: read from a file

    @property
    def privacy(self) -> privacy.Account | None:
        return privacy.from_json(self.account) if self.account else None

    @property
    def round(self) -> int:
        """The round, counted from 1, that the numbers are of."""
        return self.evaluated_rounds[-1] if self.evaluated_rounds else self.rounds_done

    @property
    def honest(self) -> npt.NDArray[np.bool_]:
        """[M] the clients that count: those that are not malicious and have test samples."""
        found: npt.NDArray[np.bool_] = ~np.isin(np.arange(len(self.counts)), self.attackers) & (self.counts[:, 1] > 0)
        return found

    @property
    def headline(self) -> Phase:
        return self.before if self.evaluated == "before" else self.after


def read(folder: Path, scenario: str = "", until: int | None = None) -> RunResult | None:
    """A run as it stands, or as it stood when so many rounds were done."""
    if not run_db.is_begun(folder / "run.db"):
        return None
    with run_db.reading(folder / "run.db") as db:
        about = run_db.meta(db)
        phases = [_phase(db, name, until) for name in ("before", "after")]
        if "label" not in about or None in phases:
            return None
        before, after = phases
        assert before is not None
        assert after is not None
        seen = [t for t, _ in _up_to(until, run_db.curve(db, about["evaluated"]))]
        totals = run_db.totals(db)
        malicious = tuple(json.loads(about["attack"])["clients"]) if "attack" in about else ()
        counts = run_db.client_sums(db, seen[-1], about["evaluated"])
        return RunResult(
            folder, scenario, about["label"], int(about["seed"]), about["status"], int(about["rounds"]), totals.rounds,
            about["evaluated"], before, after, run_db.bytes_per_visit(db) / 1024, totals.seconds,
            counts, about["partition"], malicious, _weight_on(malicious, db, len(counts)),
            found_groups.course(db, len(counts)), provenance.read(about),
            about.get("privacy", ""), tuple(seen), _overlap(about, folder, db), run_db.primary(db),
            _last(_up_to(until, run_db.train_loss(db))),
            _last(_up_to(until, run_db.curve(db, about["evaluated"], score=LOSS.name))), folder,
        )  # fmt: skip


def _last(rows: list[tuple[int, Summary]]) -> float | None:
    return rows[-1][1].pooled if rows else None


def _weight_on(malicious: tuple[int, ...], db: Any, clients: int) -> tuple[float, ...]:
    """The weight that a client's mixture gives to malicious clients: the mean over the honest clients."""
    if not malicious:
        return ()
    honest = [i for i in range(clients) if i not in malicious]
    found = [A[np.ix_(honest, malicious)].sum(1).mean() for _, A in run_db.matrices(db, clients)]
    return tuple(round(float(weight), 4) for weight in found)


def _overlap(about: dict[str, str], folder: Path, db: Any) -> float:
    """Test rows per train row of a run on [sites], whose seeds split the same rows in other ways; 0 for allocations."""
    if "sites" not in config_of(about, folder):
        return 0.0
    rows = run_db.client_data(db)
    test, rest = sum(row[2] for row in rows), sum(row[1] + row[3] for row in rows)
    return test / rest if rest else 0.0


def _phase(db: Any, name: str, until: int | None = None) -> Phase | None:
    rows = _up_to(until, run_db.curve(db, name))
    if not rows:
        return None
    pooled, score = [summary.pooled for _, summary in rows], run_db.primary(db)
    best = score.best(pooled)
    held = [summary.pooled for _, summary in _up_to(until, run_db.curve(db, name, "validation"))]
    selected = pooled[score.best(held)] if held else None
    tail, curve = float(np.mean(pooled[-TAIL:])), tuple(round(value, score.digits) for value in pooled)
    chosen_by = float(np.mean(held[-TAIL:])) if held else None
    return Phase(pooled[-1], pooled[best], rows[best][0], tail, selected, rows[-1][1], curve, chosen_by)


def _up_to(until: int | None, rows: list[tuple[int, Summary]]) -> list[tuple[int, Summary]]:
    return rows if until is None else [row for row in rows if row[0] <= until]


# --------------------------------------------------------------------------------------------- at the same round


def at(run: RunResult, round: int) -> RunResult | None:
    """The run as it stood after a round; None if that round was not evaluated, or run.db is not at hand."""
    if round == run.round:
        return run
    if run.source is None or round not in run.evaluated_rounds:
        return None
    found = read(run.source, run.scenario, round)
    return None if found is None else replace(found, folder=run.folder, label=run.label)


def level(runs: Sequence[RunResult]) -> list[RunResult]:
    """All runs at the last round that every one of them evaluated; empty where there is no such round."""
    rounds = [set(run.evaluated_rounds or (run.round,)) for run in runs]
    shared = set.intersection(*rounds) if rounds else set()
    found = [at(run, max(shared)) for run in runs] if shared else []
    return [run for run in found if run is not None] if None not in found else []


def values(run: RunResult) -> Floats:
    """Every client's primary score; NaN where it has no test samples."""
    return run.score.values(run.counts[:, 0], run.counts[:, 1])
