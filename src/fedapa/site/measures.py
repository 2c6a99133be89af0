"""Measures of a site's model on the site's own rows: accuracy and AUC for classes, else the objective's scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedapa.analysis import statistics
from fedapa.analysis.statistics import Floats, Interval
from fedapa.core.scores import LOSS, Score
from fedapa.training.objective import Classification, Objective


class Measure(NamedTuple):
    """One measure of predictions p on the labels y, and how it is shown."""

    name: str
    title: str
    of: Callable[[Any, Floats], float | None]
    sign: int = 1  # -1 where less is better
    bounds: tuple[float, float] = (0.0, 1.0)
    scale: float = 1.0  # of what is shown
    digits: int = 3
    is_share: bool = False  # of right answers: exact intervals hold

    @property
    def gap_bounds(self) -> tuple[float, float]:
        return self.bounds[0] - self.bounds[1], self.bounds[1] - self.bounds[0]

    def own(self, y: npt.NDArray[Any], p: Floats) -> Interval:
        """Of one model on its site's test rows: exact, or by bootstrap."""
        return statistics.own_accuracy(y, p) if self.is_share else statistics.bootstrap(y, p, self.of)


ACCURACY = Measure("accuracy", "accuracy %", statistics.accuracy, scale=100.0, digits=1, is_share=True)
AUC = Measure("auc", "AUC", statistics.auc)


def measures_of(objective: Objective) -> list[Measure]:
    """The primary one first."""
    if isinstance(objective, Classification):
        return [ACCURACY, AUC]
    kept = [score for score in objective.scores if score.name != LOSS.name] or list(objective.scores)
    return [_measure(objective, score) for score in kept]


def _measure(objective: Objective, score: Score) -> Measure:
    of = partial(_value, objective, score)
    return Measure(score.name, score.heading, of, score.sign, score.bounds, 1.0, score.digits)


def _value(objective: Objective, score: Score, y: npt.NDArray[Any], p: Floats) -> float | None:
    """From predictions in the unit of the target, which these objectives can be measured by as by outputs."""
    found = objective.measure(objective.outputs_of(torch.from_numpy(p)), torch.from_numpy(np.ascontiguousarray(y)))
    value = score.value(*found[score.name])
    return value if np.isfinite(value) else None
