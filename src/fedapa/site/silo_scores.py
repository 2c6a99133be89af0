"""Scores of a simulated federation of own sites: every method on every split, by site, and what each can do alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedapa.analysis import statistics
from fedapa.analysis.personalized_model import in_use, last_checkpoint, predictions
from fedapa.analysis.result_sets import BESIDE_ALONE
from fedapa.analysis.statistics import Floats, Interval
from fedapa.config.experiment import assemble, read_config, single
from fedapa.config.sections import Config
from fedapa.core.scores import CONCORDANCE, R2, fixed
from fedapa.data.federated import ClientData
from fedapa.data.schema import some
from fedapa.site.alone import Alone, Choice, alone
from fedapa.site.measures import (
    ACCURACY,
    AUC,
    RECALL,
    Measure,
    at_threshold,
    chosen_threshold,
    measures_of,
    threshold_of,
)
from fedapa.store.run_folder import kept_engine

BY_HEART = 0.1  # AUC or R² on train rows above that on test rows
FEW = 5  # wrong or right answers on a test set: fewer show too little of how splits differ
FEWEST_TRAIN, FEWEST_TEST = 10, 5  # rows of a site: from fewer there is no interval
TUNED, PLAIN, ALONE = "local, tuned", "plain model", "alone"  # beside the methods; the last is the better of both
CLASSES = (ACCURACY, AUC)
LISTED = 3  # sites with a note of their own; more share one


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
    fixed: tuple[Any, Floats] | None = None  # test labels and predictions, where all splits have the same test rows

    @property
    def is_tiny(self) -> bool:
        return self.rows < FEWEST_TEST or self.rows * (1 / self.test_share - 1) < FEWEST_TRAIN


def score_run(folder: Path) -> list[Scored]:
    """Every site of a finished run."""
    config = read_config(folder)
    method, task, data, plan = assemble(config, kept_engine(config.run.engine, folder))
    point, found = last_checkpoint(folder, plan.rounds), []
    measures = measures_of(task.objective, data.classes)
    for i, client in enumerate(data.clients):
        own = task.for_client(i)
        state = in_use(method, own, point, i, client, plan.seed)
        predict = partial(predictions, method, own, state)
        test, train = (predict(part.x) for part in (client.test, client.train))
        threshold = chosen_threshold(measures, client, predict)
        judged = measures if threshold is None else at_threshold(measures, threshold.value)
        found.append(scored_one(config, plan.seed, client, config.methods[0], judged, test, train))
    return found


def scored_one(
    config: Config, seed: int, client: ClientData, method: str, measures: Sequence[Measure], test: Floats, train: Floats
) -> Scored:
    y, rows = client.test.y.numpy(), len(client.test.y)
    aside = 0 if client.validation is None else len(client.validation.y)
    share = rows / (rows + aside + len(client.train.y))
    values = {m.name: m.of(y, test) for m in measures}
    seen = client.train.y.numpy()
    trained = {m.name: m.of(seen, train[: len(seen)]) for m in measures}
    is_fixed = config.sites is not None and config.sites.split in ("time", "order")
    return Scored(method, seed, client.name, rows, share, values, trained, (y, test) if is_fixed else None)


def score_alone(config: Config, seed: int) -> tuple[list[Scored], list[dict[str, Any]]]:
    """Every site alone on one split: the tuned network, the plain model, the better of both; and what was chosen."""
    parts = assemble(single(config, "local", seed))
    measures = measures_of(parts.task.objective, parts.data.classes)
    scored, chosen = [], []
    for client, mine in zip(parts.data.clients, alone(config, seed), strict=True):
        scored += scored_ways(config, seed, client, mine, measures)
        best, network = mine.best[0], mine.network[0]
        chosen.append({"site": client.name, "seed": seed, **_told(best), "network": _told(network)})
    return scored, chosen


def scored_ways(
    config: Config, seed: int, client: ClientData, found: Alone, measures: Sequence[Measure]
) -> list[Scored]:
    """The ways of one site alone; the threshold between two classes is chosen on train rows."""
    seen, scored = client.train.y.numpy(), []
    for name, (_, test, train) in _ways(found):
        is_cut = any(measure.name == RECALL.name for measure in measures)
        judged = at_threshold(measures, threshold_of(seen, train[: len(seen)])) if is_cut else measures
        scored.append(scored_one(config, seed, client, name, judged, test, train))
    return scored


def _ways(found: Alone) -> Iterator[tuple[str, tuple[Choice, Floats, Floats]]]:
    yield from ((TUNED, found.network), (PLAIN, found.plain), (ALONE, found.best))


def _told(choice: Choice) -> dict[str, Any]:
    return {"kind": choice.kind, "settings": dict(choice.settings), "held": choice.held}


def measures_in(folder: Path) -> list[Measure]:
    """What the sites of a run are judged by."""
    config = read_config(folder)
    parts = assemble(config, kept_engine(config.run.engine, folder))
    return measures_of(parts.task.objective, parts.data.classes)


def reference(scored: Iterable[Scored]) -> str:
    """Whom gains are counted against: the best that sites can do alone, where that was tried; else Local."""
    return ALONE if any(s.method == ALONE for s in scored) else "local"


def table(scored: Iterable[Scored], measures: Sequence[Measure] = CLASSES) -> list[dict[str, Any]]:
    """Mean and confidence interval over the splits, one row per site and method; the gain is over ``reference``.

    Intervals need three splits. Where answers are nearly all right, or there are fewer splits, the interval of the
    accuracy is the exact one of a single split's test rows. A gain is above 0 where the method is better.
    """
    scored = list(scored)
    rival = reference(scored)
    keys = list(dict.fromkeys((s.site, s.method) for s in scored))
    sites = list(dict.fromkeys(site for site, _ in keys))
    rows = []
    for site, method in sorted(keys, key=lambda key: sites.index(key[0])):
        mine = [s for s in scored if (s.site, s.method) == (site, method)]
        alone = {s.seed: s for s in scored if (s.site, s.method) == (site, rival)}
        row: dict[str, Any] = {"site": site, "method": method, "splits": len(mine), "test rows": mine[0].rows}
        for measure in measures:
            row[measure.name] = _spread(measure, mine)
            row[f"{measure.name} gain"] = _gain(measure, mine, alone)
        rows.append(row)
    return rows


def overall(
    scored: Sequence[Scored], measures: Sequence[Measure] = CLASSES, rows: Sequence[Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """One row per method: means over the sites, then over the splits; and how many sites surely gain and lose by it.

    ``rows`` is their ``table``, where it was made already: its bootstraps take time.
    """
    rows, rival, found = table(scored, measures) if rows is None else rows, reference(scored), []
    for method in dict.fromkeys(s.method for s in scored):
        row: dict[str, Any] = {"method": method}
        for measure in measures:
            row[measure.name] = _over_sites(scored, method, measure, None)
            row[f"{measure.name} gain"] = _over_sites(scored, method, measure, rival)
        gains = [r[f"{measures[0].name} gain"] for r in rows if r["method"] == method]
        known = [gain for gain in gains if gain is not None and gain.low is not None]
        row["gain"] = sum(gain.low > 0 for gain in known)
        row["lose"] = sum(gain.high < 0 for gain in known)
        row["unclear"] = len(gains) - row["gain"] - row["lose"]
        found.append(row)
    return found


def _over_sites(scored: Sequence[Scored], method: str, measure: Measure, rival: str | None) -> Interval | None:
    """Over the splits, of the mean over the sites: the value, or how much better it is than the rival's."""
    theirs = {(s.seed, s.site): s.values[measure.name] for s in scored if s.method == rival}
    by_seed: dict[int, list[float]] = {}
    mine = [s for s in scored if s.method == method]
    for s in mine:
        value, other = s.values[measure.name], theirs.get((s.seed, s.site)) if rival else 0.0
        if value is not None and other is not None:
            by_seed.setdefault(s.seed, []).append(measure.sign * (value - other) if rival else value)
    means = [sum(values) / len(values) for values in by_seed.values()]
    if not means:
        return None
    if any(s.fixed is not None for s in mine):  # the same test rows in all splits: splits show no spread of rows
        return statistics.interval(means)._replace(low=None, high=None)
    return statistics.interval(means, measure.gap_bounds if rival else measure.bounds, _overlap(mine))


def doubts(scored: Sequence[Scored], chosen: Sequence[Mapping[str, Any]] = (), trained: float = 0.0) -> Iterator[str]:
    """Warn of sites whose scores say little: too few rows, or trained too long or too briefly when alone. Compared with
    badly trained ones, joining looks better than it is. ``trained``: rate times epochs of the config."""
    tiny = list(dict.fromkeys(s.site for s in scored if s.is_tiny))
    if tiny:
        rows = f"fewer than {FEWEST_TRAIN} train rows or {FEWEST_TEST} test rows"
        yield f"{some(tiny)}: {rows}; no interval, and the score says next to nothing"
    short = _trained_briefly(chosen, trained)
    if short:
        yield (
            f"{some(short)}: held-out rows ask for more training than these settings give (rate times epochs): all"
            " methods may be undertrained, so try more rounds or a higher rate before you believe in a gain or a loss"
        )
    yield from _weighted(chosen)
    yield from _trained_by_heart([s for s in scored if s.method == "local" and s.site not in (*tiny, *short)])


def _trained_by_heart(scored: Sequence[Scored]) -> Iterator[str]:
    """Sites that are much better on their train rows when alone, by AUC, R² or concordance, mean over the splits."""
    found: dict[str, str] = {}
    for site, name in product(dict.fromkeys(s.site for s in scored), (AUC.name, R2.name, CONCORDANCE.name)):
        pairs = [(s.train.get(name), s.values.get(name)) for s in scored if s.site == site]
        known = [(train, test) for train, test in pairs if train is not None and test is not None]
        if known:
            train, test = (sum(side) / len(known) for side in zip(*known, strict=True))
            if train - test > BY_HEART:
                shown = AUC.title if name == AUC.name else name
                found[site] = f"{shown} {train:.2f} on its train rows and {test:.2f} on its test rows"
    why = "trained too long, or too few rows? Try fewer rounds before you believe in a gain"
    if len(found) > LISTED:
        site, said = next(iter(found.items()))
        yield f"{some(list(found))} alone do better on their train rows ({site}: {said}): {why}"
    else:
        yield from (f"{site} alone has {said}: {why}" for site, said in found.items())


def _trained_briefly(chosen: Sequence[Mapping[str, Any]], trained: float) -> list[str]:
    """Sites that want at least twice the training on held-out rows, in most of the splits."""
    short: dict[str, list[bool]] = {}
    for one in chosen:
        wanted = one["network"]["settings"]
        short.setdefault(one["site"], []).append(wanted["lr"] * wanted["epochs"] >= 1.9 * trained > 0)
    return [site for site, said in short.items() if sum(said) > len(said) / 2]


def _weighted(chosen: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where most sites choose class weights on held-out rows, in most of the splits."""
    wanted = [one["site"] for one in chosen if "class_weights" in one["network"]["settings"]]
    if len(wanted) > len(chosen) / 2:
        yield (
            f"held-out rows of {some(list(dict.fromkeys(wanted)))} ask for class weights: try them for all methods,"
            " --set objective.class_weights=balanced"
        )


def _spread(measure: Measure, mine: Sequence[Scored]) -> Interval | None:
    values = [s.values[measure.name] for s in mine]
    if any(s.is_tiny for s in mine):
        return _bare(values)
    if mine[0].fixed is not None:
        y, p = mine[0].fixed
        return _moved(measure.own(y, p), values)
    if measure.is_share:
        return _share(mine, [value for value in values if value is not None])
    return _over_splits(values, mine, measure.bounds)


def _gain(measure: Measure, mine: Sequence[Scored], alone: Mapping[int, Scored]) -> Interval | None:
    pairs = [(s.values[measure.name], alone[s.seed].values[measure.name]) for s in mine if s.seed in alone]
    gaps = [None if a is None or b is None else measure.sign * (a - b) for a, b in pairs]
    if any(s.is_tiny for s in mine):
        return _bare(gaps)
    if mine[0].fixed is not None and mine[0].seed in alone:
        return _moved(_paired(measure, mine[0], alone[mine[0].seed]), gaps)
    return _over_splits(gaps, mine, measure.gap_bounds)


def _bare(values: Sequence[float | None]) -> Interval | None:
    """A mean without an interval."""
    known = [value for value in values if value is not None]
    return Interval(sum(known) / len(known), None, None, None) if known else None


def _moved(found: Interval, values: Sequence[float | None]) -> Interval | None:
    """The interval that the test rows of one split give, around the mean of all."""
    bare = _bare(values)
    if bare is None or found.low is None or found.high is None:
        return bare
    shift = bare.mean - found.mean
    return Interval(bare.mean, found.sd, found.low + shift, found.high + shift)


def _paired(measure: Measure, mine: Scored, alone: Scored) -> Interval:
    """The gain of one split by bootstrap: the same redrawn rows for both, in runs of neighbours, which may be alike."""
    assert mine.fixed is not None
    assert alone.fixed is not None
    (y, p), (_, q) = mine.fixed, alone.fixed

    def gap(rows: Any, _: Any) -> float | None:
        a, b = measure.of(y[rows], p[rows]), measure.of(y[rows], q[rows])
        return None if a is None or b is None else measure.sign * (a - b)

    places = np.arange(len(y))
    return statistics.bootstrap(places, places, gap, block=max(1, round(len(y) ** (1 / 3))))


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


def as_dict(
    scored: Sequence[Scored],
    measures: Sequence[Measure] = CLASSES,
    chosen: Sequence[Mapping[str, Any]] = (),
    trained: float = 0.0,
) -> dict[str, Any]:
    """Everything, for silo.json."""
    rows = table(scored, measures)
    found = {"sites": rows, "overall": overall(scored, measures, rows)}
    plain = {
        name: [{k: v._asdict() if isinstance(v, Interval) else v for k, v in row.items()} for row in rows]
        for name, rows in found.items()
    }
    told = {"primary": measures[0].name, "gain over": reference(scored), "alone": list(chosen)}
    notes = [*doubts(scored, chosen, trained), *who_gains(scored, measures, found["overall"])]
    return {**plain, **told, "notes": notes, "runs": [_flat(s) for s in scored]}


def who_gains(
    scored: Sequence[Scored], measures: Sequence[Measure], methods: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """One line per method: how many sites surely gain and lose against the best that they can do alone."""
    first, rival = measures[0], reference(scored)
    if rival != ALONE:
        return
    for row in methods:
        if row["method"] not in ("local", TUNED, PLAIN, ALONE):
            gain = shown(first, row[f"{first.name} gain"], signed=True)
            counts = f"{row['gain']} sites gain, {row['lose']} lose, {row['unclear']} cannot be told"
            yield f"{row['method']}{BESIDE_ALONE}, {first.title}: {gain}; {counts}"


def _flat(scored: Scored) -> dict[str, Any]:
    row: dict[str, Any] = asdict(scored)
    values, train, _ = row.pop("values"), row.pop("train"), row.pop("fixed")
    flat: dict[str, Any] = {**row, **values, **{f"train {name}": value for name, value in train.items()}}
    return flat


def shown(measure: Measure, interval: Interval | None, signed: bool = False) -> str:
    return readable(interval, measure.scale, measure.digits, signed)


def readable(interval: Interval | None, scale: float = 1.0, digits: int = 3, signed: bool = False) -> str:
    """mean (low to high)"""
    if interval is None or interval.mean != interval.mean:
        return "–"
    sign = "+z" if signed else "z"  # no -0.0
    mean = fixed(scale * interval.mean, digits, sign)
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} ({fixed(scale * interval.low, digits, sign)} to {fixed(scale * interval.high, digits, sign)})"
