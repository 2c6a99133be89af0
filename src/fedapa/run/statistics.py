"""How sure a comparison is: intervals over allocations, paired tests over clients, ranks over scenarios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]


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
