"""One training, complete: what an engine is asked for, and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.data.federated import Split
from fedapa.training.optimizers import Rule
from fedapa.training.task import Batch, Task

Loss = Callable[[Task, Tree, Batch, Tree], Tensor | tuple[Tensor, Tree]]
Project = Callable[[Tree], Tree]
Rates = Mapping[str, float]


class Held(NamedTuple):
    """Held-out samples: ``patience`` epochs of ``every`` steps in which their loss does not fall end a training."""

    data: Split
    loss: Loss
    every: int
    patience: int


class Job(NamedTuple):
    """One call of ``sgd``, complete: all that an engine needs to run it."""

    task: Task
    loss: Loss
    params: Tree
    velocity: Tree  # the optimiser's state: SGD's velocity, or Adam's moments
    given: Tree
    carry: Tree
    data: Split
    batches: Callable[[], Iterator[Tensor]]
    rates: Rates
    rule: Rule
    clip_norm: float | None
    project: Project | None
    pace: Callable[[float], Rates] | None = None  # the rates by the share of the steps that is over
    held: Held | None = None
    augment: Callable[[Any, int], Any] | None = None  # the samples of a batch, as its number in the training draws them

    @property
    def even(self) -> bool:
        """Every step is like the others, so that an engine may take many of them at once."""
        return self.pace is None and self.held is None and self.augment is None and not is_half(self.task)


class LossSum(NamedTuple):
    """The loss of the batches that were trained on, each before its step: summed over samples, and how many."""

    total: float = 0.0
    samples: int = 0

    @property
    def is_known(self) -> bool:
        return self.samples > 0 and math.isfinite(self.total)

    def plus(self, other: LossSum) -> LossSum:
        return LossSum(self.total + other.total, self.samples + other.samples)


class Trained(NamedTuple):
    params: Tree  # and what the loss carried
    velocity: Tree
    loss: LossSum = LossSum()


def is_half(task: Task) -> bool:
    """Whether passes are in half precision."""
    return task.training.precision != "float32"
