"""How sure a comparison is: the allocation is the unit of every interval and every test.

Clients of one run share a server, an initial model and often samples of the same classes, so they are not independent:
a test over clients rejects too often. Methods are paired by allocation, the gap of each pair is one value, and the
printed test is the paired t-test over these values. It assumes that the gaps of allocations are independent and about
normal; a gap is a mean over many clients and test samples, so that is plausible. A sign-flip test needs no such
assumption, but cannot reach p < 0.25 with three allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special  # scipy.stats has the same functions by other names, and takes a second to load

from fedapa.core import ranking
from fedapa.core.ranking import auc as auc

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FEWEST = 3  # allocations: no interval and no test from fewer
FEWEST_ROWS = 2  # of a single site's test set: no interval from fewer
ANY = (-float("inf"), float("inf"))


class Interval(NamedTuple):
    mean: float
    sd: float | None  # None for a single value
    low: float | None  # None from too few values, and where all are equal: no spread to judge by
    high: float | None


class Ranks(NamedTuple):
    """Friedman's test over scenarios (rows), with the mean rank of every method; 1 is best."""

    mean_rank: dict[str, float]
    p: float | None
    allocations: int = 1  # behind every ranked number
    difference: float | None = None  # two methods whose mean ranks differ by less are not told apart (Nemenyi, 5 %)

    def alike(self) -> list[list[str]]:
        """The largest sets of methods, best first, that the critical difference does not tell apart."""
        if self.difference is None:
            return []
        order = sorted(self.mean_rank, key=lambda name: self.mean_rank[name])
        near = [[n for n in order[k:] if self.mean_rank[n] - self.mean_rank[order[k]] < self.difference]
                for k in range(len(order))]  # fmt: skip
        return [group for k, group in enumerate(near) if len(group) > 1 and (k == 0 or group[-1] != near[k - 1][-1])]


def interval(
    values: Sequence[float], bounds: tuple[float, float] = ANY, overlap: float = 0.0, level: float = 0.95
) -> Interval:
    """Mean, standard deviation and Student's confidence interval over allocations.

    ``bounds`` cuts the interval off: no accuracy is below 0 or above 100, so what lies outside is no candidate.
    ``overlap`` widens it where the values come from random splits of one data set: the variance of the mean is then
    s^2 (1/k + overlap) instead of s^2/k, with the ratio of test to train rows as overlap (Nadeau and Bengio, Machine
    Learning 52, 2003). Ten splits of the same patients are not ten studies.
    """
    mean, sd = _moments(values)
    if (error := _error(values, overlap)) is None:
        return Interval(mean, sd, None, None)
    half = float(special.stdtrit(len(values) - 1, 0.5 + level / 2)) * error
    return Interval(mean, sd, max(mean - half, bounds[0]), min(mean + half, bounds[1]))


def paired_p(gaps: Sequence[float], overlap: float = 0.0) -> float | None:
    """Two-sided p of the paired t-test over one gap per allocation; ``overlap`` as in ``interval``."""
    if (error := _error(gaps, overlap)) is None:
        return None
    return float(2 * special.stdtr(len(gaps) - 1, -abs(_moments(gaps)[0]) / error))


def _moments(values: Sequence[float]) -> tuple[float, float | None]:
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def _error(values: Sequence[float], overlap: float) -> float | None:
    """Standard error of the mean; None from too few values, or where they do not differ beyond rounding."""
    _, sd = _moments(values)
    if len(values) < FEWEST or sd is None or not sd > 1e-9:
        return None
    return float(sd * (1 / len(values) + overlap) ** 0.5)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values of one family; who has no p is not in it."""
    known = sorted((p, k) for k, p in enumerate(ps) if p is not None)
    found: list[float | None] = [None] * len(ps)
    largest = 0.0
    for place, (p, k) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - place) * p))
        found[k] = largest
    return found


def exact(correct: npt.ArrayLike, total: npt.ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Clopper and Pearson's interval of a share, which holds for few rows and for no errors too.

    NaN from fewer than two rows.
    """
    right, rows = np.asarray(correct, dtype=np.float64), np.asarray(total, dtype=np.float64)
    alpha = 1 - level
    low = np.where(right > 0, special.betaincinv(right, rows - right + 1, alpha / 2), 0.0)
    high = np.where(right < rows, special.betaincinv(right + 1, rows - right, 1 - alpha / 2), 1.0)
    enough = rows >= FEWEST_ROWS
    return np.where(enough, low, np.nan), np.where(enough, high, np.nan)


def share(correct: int, total: int) -> Interval:
    """A single test set's accuracy with its exact interval."""
    low, high = (float(bound) for bound in exact(correct, total))
    bounds = (low, high) if total >= FEWEST_ROWS else (None, None)
    return Interval(correct / total if total else float("nan"), None, *bounds)


def bootstrap(
    y: Any, p: Any, measure: Callable[[Any, Any], float | None], draws: int = 500, level: float = 0.95, block: int = 1
) -> Interval:
    """A measure of predictions p on labels y, with the percentile interval over redrawn rows.

    No interval where every redraw gives the same value: rows without an error say nothing about how rare errors are.
    scipy.stats.bootstrap cannot leave out the redraws that have no value, those of a single class for the AUC.
    ``block``: so many neighbouring rows are drawn together, where neighbours are alike (circular block bootstrap).
    """
    value, random = measure(y, p), np.random.default_rng(0)
    if value is None:
        return Interval(float("nan"), None, None, None)
    begins = random.integers(len(y), size=(draws, -(-len(y) // block)))
    rows = ((begins[:, :, None] + np.arange(block)) % len(y)).reshape(draws, -1)[:, : len(y)]
    found = np.array([v for draw in rows if (v := measure(y[draw], p[draw])) is not None])
    if len(found) < 2 or not np.ptp(found) > 0:
        return Interval(value, None, None, None)
    low, high = np.quantile(found, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(value, float(found.std(ddof=1)), float(low), float(high))


def accuracy(y: Ints, p: Floats) -> float:
    return float((p.argmax(1) == y).mean())


def own_accuracy(y: Ints, p: Floats) -> Interval:
    """Accuracy of one model on its site's test rows, with the exact interval."""
    return share(int((p.argmax(1) == y).sum()), len(y))


def ranks(scores: Mapping[str, Sequence[float]]) -> Ranks:
    """``scores[method]`` holds one accuracy per scenario, in the same order for every method."""
    table = np.array([list(row) for row in scores.values()]).T  # [scenarios, methods]
    order = np.array([ranking.ranks(-row) for row in table])
    enough = table.shape[0] > 1 and table.shape[1] > 2
    p = friedman(order) if enough and np.ptp(order) > 0 else None
    apart = None if p is None else critical_difference(table.shape[1], table.shape[0])
    return Ranks(dict(zip(scores, order.mean(0).tolist(), strict=True)), p, difference=apart)


def friedman(order: Floats) -> float:
    """p of Friedman's test on ranks [scenarios, methods], allowing for ties (Conover, section 5.8)."""
    rows, methods = order.shape
    mean = (methods + 1) / 2
    apart = np.square(order.sum(0) - rows * mean).sum()
    return float(special.chdtrc(methods - 1, (methods - 1) * apart / np.square(order - mean).sum()))


def critical_difference(methods: int, scenarios: int, level: float = 0.05) -> float:
    """Nemenyi's: mean ranks over so many scenarios that differ by less are not told apart (Demsar, JMLR 2006)."""
    q = studentized_range(methods, level) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * scenarios)))


@cache
def studentized_range(groups: int, level: float) -> float:
    """What the range of so many standard normal values exceeds with this probability.

    It is below q if all others are within q below the largest, z: groups * E[(Phi(z) - Phi(z - q))^(groups - 1)].
    """
    z = np.linspace(-9.0, 9.0, 721)
    density, under = np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0]), special.ndtr(z)
    low, high = 0.0, 18.0
    while high - low > 1e-12 * high:
        q = (low + high) / 2
        below = groups * density @ (under - special.ndtr(z - q)) ** (groups - 1)
        low, high = (q, high) if below < 1 - level else (low, q)
    return high
