"""The loop that everybody writes: a DataLoader over a list of (x, y), autograd, torch.optim.SGD. The yardstick."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedapa.data.federated import Split
from fedapa.training.settings import Training
from fedapa.training.task import Task

Samples = list[tuple[Tensor, int]]
EVALUATION_BATCH = 256


def samples(task: Task, data: Split) -> Samples:
    """Normalised once and for all, as a Dataset kept in memory would be."""
    return list(zip(task.prepare(data.x), data.y.tolist(), strict=True))


def shuffled(data: Samples, training: Training) -> DataLoader[tuple[Tensor, Tensor]]:
    drop = training.drop_last and len(data) >= training.batch
    return DataLoader(data, training.batch, shuffle=True, drop_last=drop)  # type: ignore[arg-type]


def in_batches(data: Samples, batches: Sequence[Tensor]) -> DataLoader[tuple[Tensor, Tensor]]:
    """A loader of given batches, so that two ways of training see the same ones."""
    return DataLoader(data, batch_sampler=[index.tolist() for index in batches])  # type: ignore[arg-type]


def optimiser(model: nn.Module, training: Training) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay)


def train(model: nn.Module, optimiser: torch.optim.Optimizer, loader: DataLoader[tuple[Tensor, Tensor]]) -> None:
    """One pass over the loader."""
    for x, y in loader:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def count_correct(model: nn.Module, data: Samples) -> int:
    """How many samples the model gets right, one loader of large batches."""
    with torch.no_grad():
        loader = DataLoader(data, EVALUATION_BATCH)  # type: ignore[arg-type,var-annotated]
        return sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)


def count_correct_sliced(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """The same on tensors: nothing but the network is left to measure."""
    with torch.no_grad():
        pairs = zip(torch.split(x, EVALUATION_BATCH), torch.split(y, EVALUATION_BATCH), strict=True)
        return sum(int((model(a).argmax(1) == b).sum()) for a, b in pairs)
