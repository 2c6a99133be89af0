"""Did a site gain by joining? Two models on the same test rows, and which of them to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.analysis.statistics import FEWEST_ROWS, Floats, Interval
from fedapa.core.scores import fixed
from fedapa.site.measures import Measure
from fedapa.site.silo_scores import shown

DRAWS = 500
ALONE, JOINED = "alone", "joined"


class Verdict(NamedTuple):
    measure: Measure
    gain: Interval  # above 0: the joined model is better
    use: str  # ALONE or JOINED
    text: str


def judge(
    measures: Sequence[Measure], y: npt.NDArray[Any], alone: Floats, joined: Floats, what: str, rival: str = ""
) -> Verdict:
    """By the primary measure, or the first that has a value; ``what`` names the joined model, and ``rival`` the other
    one if it is not the same network trained alone."""
    values = [(m, m.of(y, alone), m.of(y, joined)) for m in measures]
    known = [(m, a, b) for m, a, b in values if a is not None and b is not None]
    if not known:
        nothing = Interval(float("nan"), None, None, None)
        return Verdict(measures[0], nothing, ALONE, "the test rows are too few or too alike to compare the models")
    measure, one, other = known[0]
    gain = paired(measure, y, alone, joined)
    use = JOINED if gain.mean > 0 else ALONE
    before, after = (fixed(measure.scale * value, measure.digits) for value in (one, other))
    scores = f"{measure.title} {before} {f'of the {rival}' if rival else 'alone'}, "
    scores += f"{after} {what}, gain {shown(measure, gain, signed=True)}"
    return Verdict(measure, gain, use, f"{_words(gain, what, rival or 'model trained alone')} ({scores})")


def paired(measure: Measure, y: npt.NDArray[Any], alone: Floats, joined: Floats) -> Interval:
    """The gain, with the percentile interval over redrawn rows; both models are judged on the same redrawn rows."""

    def gap(rows: npt.NDArray[np.int64]) -> float | None:
        a, b = measure.of(y[rows], alone[rows]), measure.of(y[rows], joined[rows])
        return None if a is None or b is None else measure.sign * (b - a)

    value = gap(np.arange(len(y)))
    if value is None:
        return Interval(float("nan"), None, None, None)
    draws = np.random.default_rng(0).integers(len(y), size=(DRAWS, len(y)))
    found = np.array([v for rows in draws if (v := gap(rows)) is not None])
    if len(y) < FEWEST_ROWS or len(found) < 2 or not np.ptp(found) > 0:
        return Interval(value, None, None, None)
    low, high = np.quantile(found, [0.025, 0.975])
    return Interval(value, float(found.std(ddof=1)), float(low), float(high))


def _words(gain: Interval, what: str, rival: str) -> str:
    if gain.low is not None and gain.low > 0:
        return f"the {what} model is better than the {rival}"
    if gain.high is not None and gain.high < 0:
        return f"the {rival} is better: use that one"
    if gain.mean <= 0:
        return f"no gain is shown: use the {rival}"
    return f"the {what} model is ahead, by less than chance allows to tell"
