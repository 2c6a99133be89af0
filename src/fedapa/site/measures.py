"""Measures of a site's model on the site's own rows: for classes accuracy and AUC, and where another primary score was
chosen those that fit rare classes; else the objective's scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedapa.analysis import statistics
from fedapa.analysis.statistics import Floats, Interval
from fedapa.core import ranking
from fedapa.core.scores import LOSS, Score
from fedapa.data.federated import ClientData
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
AUC = Measure("auc", "AUC", ranking.auc)
PRECISION = Measure("average precision", "average precision", ranking.average_precision)
BRIER = Measure("brier", "Brier", ranking.brier, sign=-1, bounds=(0.0, 2.0))
PRIMARY = {"accuracy": ACCURACY, "AUC": AUC, "average precision": PRECISION, "Brier": BRIER}


def recall_at(threshold: float, y: npt.NDArray[Any], p: Floats) -> float | None:
    """The share of rows of the last class that get at least this probability of it."""
    found = p[y == p.shape[1] - 1, -1] >= threshold
    return float(found.mean()) if len(found) else None


RECALL = Measure("recall", "recall", partial(recall_at, 0.5))


def threshold_of(y: npt.NDArray[Any], p: Floats) -> float:
    """The probability of the last class from which a row counts as one: where recall minus false alarms is highest."""
    positive = y == p.shape[1] - 1
    if positive.all() or not positive.any():
        return 0.5
    order = np.argsort(-p[:, -1], kind="stable")
    found = p[order, -1]
    gains = np.where(positive[order], 1 / positive.sum(), -1 / (~positive).sum()).cumsum()
    ends = np.append(np.diff(found) != 0, True)  # rows of one probability are on one side
    last = int(np.where(ends, gains, -np.inf).argmax())
    below = found[last + 1] if last + 1 < len(found) else 0.0
    return float((found[last] + below) / 2)  # between two rows, so that rounding moves none across


class Threshold(NamedTuple):
    value: float
    rows: int  # that it was chosen on
    is_held_out: bool  # they are no train rows

    @property
    def chosen_on(self) -> str:
        return f"{self.rows} {'held-out' if self.is_held_out else 'train'} rows"


def chosen_threshold(
    measures: Sequence[Measure], client: ClientData, predict: Callable[[Tensor], Floats]
) -> Threshold | None:
    """Where a primary score for rare classes was chosen: by held-out rows if there are some, else by train rows."""
    part = client.train if client.validation is None else client.validation
    if all(measure.name != RECALL.name for measure in measures):
        return None
    return Threshold(threshold_of(part.y.numpy(), predict(part.x)), len(part.y), client.validation is not None)


def decided(p: Floats, threshold: float | None) -> npt.NDArray[np.int64]:
    """The class of every row by number: of two classes by the threshold where there is one, else the likeliest."""
    if threshold is None or p.shape[1] != 2:
        return np.asarray(p.argmax(1), dtype=np.int64)
    return np.asarray(p[:, -1] >= threshold, dtype=np.int64)


def at_threshold(measures: Sequence[Measure], threshold: float) -> list[Measure]:
    """The same measures with this threshold in the recall."""
    return [m._replace(of=partial(recall_at, threshold)) if m.name == RECALL.name else m for m in measures]


def measures_of(objective: Objective, classes: int = 2) -> list[Measure]:
    """The primary one first."""
    if isinstance(objective, Classification):
        first = PRIMARY.get(objective.score, ACCURACY)
        rare = [AUC, PRECISION, *([RECALL] if classes == 2 else []), BRIER, ACCURACY]
        return [ACCURACY, AUC] if first is ACCURACY else [first, *(m for m in rare if m is not first)]
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
