"""How sure a comparison is: intervals over allocations, paired tests over clients, ranks over scenarios."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Interval(NamedTuple):
    mean: float
    sd: float | None  # None for a single value
    low: float | None
    high: float | None


class Paired(NamedTuple):
    """One method against another on the same clients and allocations."""

    clients: int
    gain: float  # mean difference in percentage points
    better: int
    equal: int
    worse: int
    p: float | None  # two-sided Wilcoxon signed-rank test; None where every pair is equal


class Ranks(NamedTuple):
    """Friedman's test over scenarios (rows), with the mean rank of every method; 1 is best."""

    mean_rank: dict[str, float]
    p: float | None


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean, standard deviation and Student's confidence interval of a few allocations."""
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, None, None, None)
    sd = float(array.std(ddof=1))
    half = float(stats.t.ppf(0.5 + level / 2, len(array) - 1)) * sd / len(array) ** 0.5
    return Interval(mean, sd, mean - half, mean + half)


def resampled(values: Sequence[float], test_share: float, level: float = 0.95) -> Interval:
    """Student's interval over random splits of one data set, widened for the rows that the splits share.

    The variance of the mean is s^2 (1/k + test/train) instead of s^2/k (Nadeau and Bengio, Machine Learning 52, 2003):
    ten splits of the same patients are not ten studies.
    """
    plain = interval(values, level)
    if plain.sd is None:
        return plain
    spread = plain.sd * (1 / len(values) + test_share / (1 - test_share)) ** 0.5
    half = float(stats.t.ppf(0.5 + level / 2, len(values) - 1)) * spread
    return Interval(plain.mean, plain.sd, plain.mean - half, plain.mean + half)


def auc(y: Ints, p: Floats) -> float | None:
    """Area under the ROC curve of p [n, C]: of the last class if there are two, else the mean of one against the rest.

    None where the rows hold fewer than two classes.
    """
    present = [c for c in range(p.shape[1]) if 0 < (y == c).sum() < len(y)]
    if p.shape[1] == 2:
        present = present[-1:]
    areas = [_area(p[:, c], y == c) for c in present]
    return float(np.mean(areas)) if areas else None


def _area(score: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """The chance that a positive outranks a negative."""
    ones = int(positive.sum())
    ranked = float(stats.rankdata(score)[positive].sum()) - ones * (ones + 1) / 2
    return ranked / (ones * (len(positive) - ones))


def bootstrap(
    y: Ints, p: Floats, measure: Callable[[Ints, Floats], float | None], draws: int = 500, level: float = 0.95
) -> Interval:
    """A measure of predictions p on labels y, with the percentile interval over redrawn rows."""
    value, random = measure(y, p), np.random.default_rng(0)
    if value is None:
        return Interval(float("nan"), None, None, None)
    rows = random.integers(len(y), size=(draws, len(y)))
    found = np.array([v for draw in rows if (v := measure(y[draw], p[draw])) is not None])
    low, high = np.quantile(found, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(value, float(found.std(ddof=1)), float(low), float(high))


def accuracy(y: Ints, p: Floats) -> float:
    return float((p.argmax(1) == y).mean())


def paired(ours: Floats, theirs: Floats) -> Paired:
    """Accuracies in percent, client by client."""
    gaps = np.round(ours - theirs, 9)
    better, equal, worse = (int((np.sign(gaps) == sign).sum()) for sign in (1, 0, -1))
    p = float(stats.wilcoxon(gaps, zero_method="pratt").pvalue) if np.any(gaps) and len(gaps) > 1 else None
    return Paired(len(gaps), float(gaps.mean()), better, equal, worse, p)


def ranks(scores: Mapping[str, Sequence[float]]) -> Ranks:
    """``scores[method]`` holds one accuracy per scenario, in the same order for every method."""
    table = np.array([list(row) for row in scores.values()]).T  # [scenarios, methods]
    order = np.array([stats.rankdata(-row) for row in table])
    enough = table.shape[0] > 1 and table.shape[1] > 2
    p = float(stats.friedmanchisquare(*table.T).pvalue) if enough and np.ptp(order) > 0 else None
    return Ranks(dict(zip(scores, order.mean(0).tolist(), strict=True)), p)
