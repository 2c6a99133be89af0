"""Trainings of a small LeNet-5, complete, for any engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedapa as fa
from fedapa.core.tree import Tree
from fedapa.data.federated import Split
from fedapa.training.job import Job
from fedapa.training.optimizers import Rule
from fedapa.training.task import Task

CLASSES = 3
Case = tuple[Any, Tree, Tree, Tree]  # loss, parameters, constants, carry


def images(clients: int = 3, each: int = 40) -> fa.Federated:
    random = np.random.default_rng(1)
    x = random.normal(size=(clients, 2 * each, 1, 16, 16)).astype(np.float32)
    y = random.integers(CLASSES, size=(clients, 2 * each))
    return fa.from_arrays([(a[:each], b[:each], a[each:], b[each:]) for a, b in zip(x, y, strict=True)], CLASSES)


def near(task: Task, seed: int) -> Tree:
    """A model in the neighbourhood of the first."""
    g = torch.Generator().manual_seed(seed)
    return {k: w + 0.05 * torch.randn(len(w), generator=g) for k, w in zip(("theta", "phi"), task.init(0), strict=True)}


def job(task: Task, case: Case, batches: list[Tensor], seed: int = 0, **changes: Any) -> Job:
    loss, params, given, carry = case
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 1, 16, 16, generator=g)
    y = torch.randint(0, CLASSES, (60,), generator=g)
    rates = {"theta": 0.1, "phi": 0.07, "b": 0.05, "p": 0.01, "W": 1.0}
    still = {k: torch.zeros_like(v) for k, v in params.items()}
    made = Job(
        task, loss, params, still, given, carry, Split(x, y), lambda: iter(batches),
        {k: rates[k] for k in params}, Rule(0.0), None, None,
    )  # fmt: skip
    return made._replace(**changes)
