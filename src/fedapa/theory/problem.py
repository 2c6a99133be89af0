"""Small federations with a smooth loss, whose constants L1 and L2 are proved instead of guessed.

``logistic``: multinomial logistic regression, the matrix shared (theta) and the biases private (phi). Its loss is
smooth and Lipschitz everywhere. ``tanh``: one hidden layer (theta) under a linear head (phi). Its loss is so wherever
the head stays within a ball, so that the constants depend on the largest head of a run. docs/theory.md has the proofs.

Assumption 2 holds exactly too: with fewer samples than two batches, and the rest dropped, every epoch is one batch,
drawn evenly and independently of all others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedapa.data.federated import Federated, from_arrays
from fedapa.simulation import make_task
from fedapa.training.settings import Training
from fedapa.training.task import Task

Array = npt.NDArray[Any]
FEATURES, CLASSES, HIDDEN = 4, 3, 4
SAMPLES, BATCH, STEPS = 48, 32, 5
STEEPEST = 4 / 3**1.5  # largest second derivative of tanh
RESIDUAL = 2**0.5  # largest norm of (probabilities - one-hot label)


class Bias(nn.Module):
    """A head that only adds."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, z: Tensor) -> Tensor:
        return z + self.bias


def logistic_model(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(OrderedDict(matrix=nn.Linear(shape[0], classes, bias=False), head=Bias(classes)))


def tanh_model(shape: tuple[int, ...], classes: int) -> nn.Module:
    hidden, head = nn.Linear(shape[0], HIDDEN), nn.Linear(HIDDEN, classes)
    return nn.Sequential(OrderedDict(hidden=hidden, tanh=nn.Tanh(), head=head))


def logistic_constants(x: Tensor, radius: float) -> tuple[float, float]:
    """(L1, L2) of one client's loss: its Hessian is a mean of (diag p - p p^T) (x) z z^T with z = (x, 1)."""
    z = _with_one(x)
    return float(torch.linalg.eigvalsh(z.T @ z / len(z))[-1]) / 2, RESIDUAL * float(x.norm(dim=1).mean())


def tanh_constants(x: Tensor, radius: float) -> tuple[float, float]:
    """(L1, L2) of one client's loss while the head's norm is at most ``radius``."""
    size = _with_one(x).norm(dim=1)
    first = (radius**2 * size.square() + HIDDEN + 1) / 2
    second = RESIDUAL * (STEEPEST * radius * size.square() + size)
    return float((first + second).mean()), RESIDUAL * radius * float(size.mean())


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1)], 1).double()


@dataclass(frozen=True)
class Problem:
    name: str
    model: Callable[[tuple[int, ...], int], nn.Module]
    lr: float
    bounds: Callable[[Tensor, float], tuple[float, float]]

    def data(self, clients: int, seed: int) -> Federated:
        """Two kinds of clients that read the same inputs differently, each client a little in its own way."""
        random = np.random.default_rng([seed, 17])
        teachers = random.normal(size=(2, FEATURES, CLASSES)) * 2
        return from_arrays([_client(random, teachers[i % 2]) for i in range(clients)], CLASSES)

    def task(self, data: Federated, rounds: int, training: Training | None = None) -> Task:
        training = training or Training(self.lr, 0.0, BATCH, STEPS, keep_momentum=False)
        return make_task(data, f"{__name__}:{self.model.__name__}", training, rounds, engine="torch")

    def constants(self, data: Federated, radius: float) -> tuple[float, float]:
        """L1 and L2 that hold for every client."""
        found = [self.bounds(client.train.x, radius) for client in data.clients]
        return max(smooth for smooth, _ in found), max(steep for _, steep in found)


def _client(random: np.random.Generator, teacher: Array) -> tuple[Array, Array, Array, Array]:
    x = random.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    scores = x @ (teacher + 0.5 * random.normal(size=teacher.shape)) + random.gumbel(size=(SAMPLES, CLASSES))
    y = scores.argmax(1)
    return x, y, x, y


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("logistic", logistic_model, 0.5, logistic_constants),
        Problem("tanh", tanh_model, 0.05, tanh_constants),
    )
}
