"""Evaluation of a round: every score of every client's model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedapa.core.summaries import Sums
from fedapa.core.tree import Tree, digest
from fedapa.data.federated import ClientData, Split
from fedapa.errors import RunError
from fedapa.methods.method import Method
from fedapa.training.local import Engine, Pass, Plain
from fedapa.training.task import CPU, Task


class Known:
    """Scores of one client's last two models. A model that did not change, bit by bit, is not scored again."""

    def __init__(self) -> None:
        self._kept: dict[str, Sums] = {}

    def scores(self, model: Tree, score: Callable[[], Sums]) -> Sums:
        key = digest(model)
        found = self._kept.pop(key, None)
        found = score() if found is None else found
        self._kept[key] = found
        for oldest in list(self._kept)[:-2]:
            del self._kept[oldest]
        return found.copy()


def measure(
    method: Method,
    task: Task,
    client: Tree,
    data: ClientData,
    engine: Engine | None = None,
    known: Known | None = None,
) -> Sums:
    """Every score of one client's model. A model that outputs NaN raises RunError on every engine."""
    model = method.shown(client)

    def of(split: Split | None) -> Sums:
        if split is None:
            return np.zeros((len(task.objective.scores), 2))
        outputs = (engine or Plain()).outputs(Pass(method.predict, task, model, split.x))
        outputs, y = outputs.cpu(), split.y.cpu()  # scores are in double precision, which not every device has
        if outputs.isnan().any():
            raise RunError("the network computed NaN", "lower the learning rate, or look for NaN in the data")
        with CPU:
            found = task.objective.measure(outputs, y)
        return np.array([found[score.name] for score in task.objective.scores], dtype=np.float64)

    def score() -> Sums:
        return np.concatenate([of(data.test), of(data.validation)], axis=1)

    return score() if known is None else known.scores(model, score)


def nothing(task: Task, fill: float = 0.0) -> Sums:
    """[S, 4] of a client that was not measured."""
    return np.full((len(task.objective.scores), 4), fill)
