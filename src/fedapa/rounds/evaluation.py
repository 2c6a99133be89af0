"""What a round is worth: correct answers per client, and the few numbers that sum them up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Split
from fedapa.errors import RunError
from fedapa.methods.method import Method
from fedapa.training.local import Engine, Pass, Plain
from fedapa.training.task import Task

Counts = npt.NDArray[np.int64]


class Score(NamedTuple):
    """Right answers of one model at one client, on its test and (where there is one) validation data."""

    correct: int
    total: int
    valid_correct: int = 0
    valid_total: int = 0


def score(method: Method, task: Task, client: Tree, data: ClientData, engine: Engine | None = None) -> Score:
    """A model that answers NaN has no largest answer to count: RunError, on every engine."""

    def count(split: Split) -> tuple[int, int]:
        logits = (engine or Plain()).outputs(Pass(method.predict, task, client, split.x))
        if logits.isnan().any():
            raise RunError("the network computed NaN", "lower the learning rate, or look for NaN in the data")
        return int((logits.argmax(1) == split.y).sum()), len(split.y)

    return Score(*count(data.test), *(() if data.validation is None else count(data.validation)))


@dataclass(frozen=True)
class Summary:
    """Accuracies in percent over all clients; pooled = all right answers over all test samples."""

    pooled: float
    mean: float
    std: float
    worst: float
    worst10: float  # mean of the worst tenth of the clients, at least one

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def summarise(correct: Counts, total: Counts) -> Summary:
    """Clients without test samples count in no mean."""
    seen = total > 0
    each = 100.0 * correct[seen] / total[seen]
    if not len(each):
        return Summary(*(float("nan"),) * 5)
    tenth = np.sort(each)[: max(1, len(each) // 10)]
    pooled = 100.0 * correct.sum() / total.sum()
    return Summary(float(pooled), float(each.mean()), float(each.std()), float(each.min()), float(tenth.mean()))
