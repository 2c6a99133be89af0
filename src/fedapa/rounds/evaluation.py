"""Evaluation of a round: every score of every client's model, and its summary over clients."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fedapa.core.scores import Score
from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Split
from fedapa.errors import RunError
from fedapa.methods.method import Method
from fedapa.training.local import Engine, Pass, Plain
from fedapa.training.task import CPU, Task

# Sums and counts. Of one model [S, 4]: a row per score, in the objective's order, with sum and count on test data and
# sum and count on validation data; of all clients [M, S, 4].
Sums = npt.NDArray[np.float64]
TEST, VALIDATION = slice(0, 2), slice(2, 4)
UNKNOWN = -1.0  # count of what was not measured yet


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


@dataclass(frozen=True)
class Summary:
    """One score over all clients; pooled = of all test samples together."""

    pooled: float
    mean: float
    std: float
    worst: float
    worst10: float  # mean of the worst tenth of the clients, at least one

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def summarise(score: Score, sums: npt.ArrayLike, counts: npt.ArrayLike) -> Summary:
    """Clients without test samples count in no mean."""
    sums, counts = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    each = score.values(sums, counts)[counts > 0]
    if not len(each):
        return Summary(*(float("nan"),) * 5)
    tenth = np.sort(score.sign * each)[: max(1, len(each) // 10)] * score.sign
    pooled = score.value(sums.sum(), counts.sum())
    return Summary(pooled, float(each.mean()), float(each.std()), score.worst(each), float(tenth.mean()))
