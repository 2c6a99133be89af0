"""Evaluation of a round: every score of every client's model."""

from __future__ import annotations

import numpy as np

from fedapa.core.summaries import Sums
from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Split
from fedapa.errors import RunError
from fedapa.methods.method import Method
from fedapa.training.local import Engine, Pass, Plain
from fedapa.training.task import CPU, Task


def measure(method: Method, task: Task, client: Tree, data: ClientData, engine: Engine | None = None) -> Sums:
    """Every score of one client's model. A model that outputs NaN raises RunError on every engine."""

    def of(split: Split | None) -> Sums:
        if split is None:
            return np.zeros((len(task.objective.scores), 2))
        outputs = (engine or Plain()).outputs(Pass(method.predict, task, client, split.x))
        outputs, y = outputs.cpu(), split.y.cpu()  # scores are in double precision, which not every device has
        if outputs.isnan().any():
            raise RunError("the network computed NaN", "lower the learning rate, or look for NaN in the data")
        with CPU:
            found = task.objective.measure(outputs, y)
        return np.array([found[score.name] for score in task.objective.scores], dtype=np.float64)

    return np.concatenate([of(data.test), of(data.validation)], axis=1)


def nothing(task: Task, fill: float = 0.0) -> Sums:
    """[S, 4] of a client that was not measured."""
    return np.full((len(task.objective.scores), 4), fill)
