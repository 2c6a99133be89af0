"""All sites on one machine: every method over every split, accuracy and AUC of every site's model in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedapa.analysis import statistics
from fedapa.analysis.personalized_model import in_use, last_checkpoint, probabilities
from fedapa.analysis.statistics import Interval
from fedapa.config.experiment import assemble, read_config
from fedapa.store.run_folder import kept_engine

BY_HEART = 0.1  # AUC on train rows above that on test rows
FEW = 5  # wrong or right answers on a test set: fewer show too little of how splits differ


@dataclass(frozen=True)
class Scored:
    """One site's model of one run, on the rows that it never saw."""

    method: str
    seed: int
    site: str
    rows: int
    test_share: float
    accuracy: float
    auc: float | None
    train_auc: float | None = None  # on the rows that it was trained on: much higher where they were learned by heart


def score_run(folder: Path) -> list[Scored]:
    """Every site of a finished run."""
    config = read_config(folder)
    method, task, data, plan = assemble(config, kept_engine(config.run.engine, folder))
    point, found = last_checkpoint(folder, plan.rounds), []
    for i, client in enumerate(data.clients):
        state = in_use(method, task, point, i, client, plan.seed)
        p, seen = (probabilities(method, task, state, part.x) for part in (client.test, client.train))
        y, rows = client.test.y.numpy(), len(client.test.y)
        held = 0 if client.validation is None else len(client.validation.y)
        share = rows / (rows + held + len(client.train.y))
        accuracy, area = statistics.accuracy(y, p), statistics.auc(y, p)
        known = statistics.auc(client.train.y.numpy(), seen)
        found.append(Scored(config.methods[0], plan.seed, client.name, rows, share, accuracy, area, known))
    return found


def table(scored: Iterable[Scored]) -> list[dict[str, Any]]:
    """Mean and confidence interval over the splits, one row per site and method; the gain is over local training.

    Intervals need three splits. Where answers are nearly all right, or there are fewer splits, the interval of the
    accuracy is the exact one of a single split's test rows.
    """
    scored = list(scored)
    keys = list(dict.fromkeys((s.site, s.method) for s in scored))
    sites = list(dict.fromkeys(site for site, _ in keys))
    rows = []
    for site, method in sorted(keys, key=lambda key: sites.index(key[0])):
        mine = [s for s in scored if (s.site, s.method) == (site, method)]
        alone = {s.seed: s for s in scored if (s.site, s.method) == (site, "local")}
        row: dict[str, Any] = {"site": site, "method": method, "splits": len(mine), "test rows": mine[0].rows}
        row |= {"accuracy": _accuracy(mine), "auc": _over_splits([s.auc for s in mine], mine, (0.0, 1.0))}
        for name in ("accuracy", "auc"):
            pairs = [(getattr(s, name), getattr(alone[s.seed], name)) for s in mine if s.seed in alone]
            row[f"{name} gain"] = _over_splits([None if None in (a, b) else a - b for a, b in pairs], mine, (-1.0, 1.0))
        rows.append(row)
    return rows


def doubts(scored: Sequence[Scored]) -> Iterator[str]:
    """Sites that trained too long alone: against them, joining looks better than it is."""
    for site in dict.fromkeys(s.site for s in scored):
        pairs = [(s.train_auc, s.auc) for s in scored if (s.site, s.method) == (site, "local")]
        known = [(train, test) for train, test in pairs if train is not None and test is not None]
        if known:
            train, test = (sum(side) / len(known) for side in zip(*known, strict=True))
            if train - test > BY_HEART:
                yield (
                    f"{site} alone has AUC {train:.2f} on its train rows and {test:.2f} on its test rows: trained too"
                    " long, or too few rows? Try fewer rounds before you believe in a gain"
                )


def _accuracy(mine: Sequence[Scored]) -> Interval:
    """Over the splits; exact, of the smallest test set, where too few answers are wrong or right to see a spread."""
    found = statistics.interval([s.accuracy for s in mine], (0.0, 1.0), _overlap(mine))
    rows = min(s.rows for s in mine)
    right = round(found.mean * rows)
    if rows < statistics.FEWEST_ROWS or found.low is None or min(right, rows - right) < FEW:
        exact = statistics.share(right, rows)
        return found._replace(low=exact.low, high=exact.high)
    return found


def _over_splits(
    values: Sequence[float | None], mine: Sequence[Scored], bounds: tuple[float, float]
) -> Interval | None:
    known = [value for value in values if value is not None]
    return statistics.interval(known, bounds, _overlap(mine)) if known else None


def _overlap(mine: Sequence[Scored]) -> float:
    return mine[0].test_share / (1 - mine[0].test_share)


def as_dict(scored: Sequence[Scored]) -> dict[str, Any]:
    """Everything, for silo.json."""
    summary = [{k: v._asdict() if isinstance(v, Interval) else v for k, v in row.items()} for row in table(scored)]
    return {"sites": summary, "notes": list(doubts(scored)), "runs": [asdict(s) for s in scored]}


def readable(interval: Interval | None, scale: float = 1.0, digits: int = 3, signed: bool = False) -> str:
    """mean (low to high)"""
    if interval is None or interval.mean != interval.mean:
        return "–"
    sign = "+" if signed else ""
    mean = f"{scale * interval.mean:{sign}.{digits}f}"
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} ({scale * interval.low:{sign}.{digits}f} to {scale * interval.high:{sign}.{digits}f})"
