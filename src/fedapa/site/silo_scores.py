"""Scores of a simulated federation of own sites: every method on every split, by site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedapa.analysis import statistics
from fedapa.analysis.personalized_model import in_use, last_checkpoint, predictions
from fedapa.analysis.statistics import Interval
from fedapa.config.experiment import assemble, read_config
from fedapa.site.measures import ACCURACY, AUC, Measure, measures_of
from fedapa.store.run_folder import kept_engine

BY_HEART = 0.1  # AUC on train rows above that on test rows
FEW = 5  # wrong or right answers on a test set: fewer show too little of how splits differ
CLASSES = (ACCURACY, AUC)


@dataclass(frozen=True)
class Scored:
    """One site's model of one run, on the rows that it never saw."""

    method: str
    seed: int
    site: str
    rows: int
    test_share: float
    values: Mapping[str, float | None]  # of every measure, by name
    train: Mapping[str, float | None] = field(default_factory=dict)  # on the rows that it was trained on


def score_run(folder: Path) -> list[Scored]:
    """Every site of a finished run."""
    config = read_config(folder)
    method, task, data, plan = assemble(config, kept_engine(config.run.engine, folder))
    point, found, measures = last_checkpoint(folder, plan.rounds), [], measures_of(task.objective)
    for i, client in enumerate(data.clients):
        own = task.for_client(i)
        state = in_use(method, own, point, i, client, plan.seed)
        test, train = (
            {m.name: m.of(part.y.numpy(), predictions(method, own, state, part.x)) for m in measures}
            for part in (client.test, client.train)
        )
        rows, held = len(client.test.y), 0 if client.validation is None else len(client.validation.y)
        share = rows / (rows + held + len(client.train.y))
        found.append(Scored(config.methods[0], plan.seed, client.name, rows, share, test, train))
    return found


def measures_in(folder: Path) -> list[Measure]:
    """What the sites of a run are judged by."""
    config = read_config(folder)
    return measures_of(assemble(config, kept_engine(config.run.engine, folder)).task.objective)


def table(scored: Iterable[Scored], measures: Sequence[Measure] = CLASSES) -> list[dict[str, Any]]:
    """Mean and confidence interval over the splits, one row per site and method; the gain is over local training.

    Intervals need three splits. Where answers are nearly all right, or there are fewer splits, the interval of the
    accuracy is the exact one of a single split's test rows. A gain is above 0 where the method is better.
    """
    scored = list(scored)
    keys = list(dict.fromkeys((s.site, s.method) for s in scored))
    sites = list(dict.fromkeys(site for site, _ in keys))
    rows = []
    for site, method in sorted(keys, key=lambda key: sites.index(key[0])):
        mine = [s for s in scored if (s.site, s.method) == (site, method)]
        alone = {s.seed: s for s in scored if (s.site, s.method) == (site, "local")}
        row: dict[str, Any] = {"site": site, "method": method, "splits": len(mine), "test rows": mine[0].rows}
        for measure in measures:
            row[measure.name] = _spread(measure, mine)
            row[f"{measure.name} gain"] = _gain(measure, mine, alone)
        rows.append(row)
    return rows


def doubts(scored: Sequence[Scored]) -> Iterator[str]:
    """Warn of sites that overfit alone: compared with them, joining looks better than it is."""
    for site in dict.fromkeys(s.site for s in scored):
        mine = [s for s in scored if (s.site, s.method) == (site, "local")]
        pairs = [(s.train.get(AUC.name), s.values.get(AUC.name)) for s in mine]
        known = [(train, test) for train, test in pairs if train is not None and test is not None]
        if known:
            train, test = (sum(side) / len(known) for side in zip(*known, strict=True))
            if train - test > BY_HEART:
                yield (
                    f"{site} alone has AUC {train:.2f} on its train rows and {test:.2f} on its test rows: trained too"
                    " long, or too few rows? Try fewer rounds before you believe in a gain"
                )


def _spread(measure: Measure, mine: Sequence[Scored]) -> Interval | None:
    values = [s.values[measure.name] for s in mine]
    if measure.is_share:
        return _share(mine, [value for value in values if value is not None])
    return _over_splits(values, mine, measure.bounds)


def _gain(measure: Measure, mine: Sequence[Scored], alone: Mapping[int, Scored]) -> Interval | None:
    pairs = [(s.values[measure.name], alone[s.seed].values[measure.name]) for s in mine if s.seed in alone]
    gaps = [None if a is None or b is None else measure.sign * (a - b) for a, b in pairs]
    return _over_splits(gaps, mine, measure.gap_bounds)


def _share(mine: Sequence[Scored], values: Sequence[float]) -> Interval:
    """Over the splits; exact, of the smallest test set, where too few answers are wrong or right to see a spread."""
    found = statistics.interval(values, ACCURACY.bounds, _overlap(mine))
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


def as_dict(scored: Sequence[Scored], measures: Sequence[Measure] = CLASSES) -> dict[str, Any]:
    """Everything, for silo.json."""
    found = table(scored, measures)
    summary = [{k: v._asdict() if isinstance(v, Interval) else v for k, v in row.items()} for row in found]
    return {"sites": summary, "notes": list(doubts(scored)), "runs": [_flat(s) for s in scored]}


def _flat(scored: Scored) -> dict[str, Any]:
    row: dict[str, Any] = asdict(scored)
    values, train = row.pop("values"), row.pop("train")
    flat: dict[str, Any] = {**row, **values, **{f"train {name}": value for name, value in train.items()}}
    return flat


def shown(measure: Measure, interval: Interval | None, signed: bool = False) -> str:
    return readable(interval, measure.scale, measure.digits, signed)


def readable(interval: Interval | None, scale: float = 1.0, digits: int = 3, signed: bool = False) -> str:
    """mean (low to high)"""
    if interval is None or interval.mean != interval.mean:
        return "–"
    sign = "+" if signed else ""
    mean = f"{scale * interval.mean:{sign}.{digits}f}"
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} ({scale * interval.low:{sign}.{digits}f} to {scale * interval.high:{sign}.{digits}f})"
