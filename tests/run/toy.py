"""A method whose every accuracy can be computed by hand: a model is a number, and it answers with that class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.data.federated import Federated, from_arrays
from fedapa.methods.method import Method
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import Result, make_task, simulate
from fedapa.training.local import Local
from fedapa.training.task import Task

CLASSES = 5
# How often every class is in the test data of clients 0 to 3.
TESTS = ((1, 2, 3, 4, 0), (5, 0, 0, 0, 5), (2, 2, 2, 2, 2), (0, 0, 1, 0, 0))


@dataclass(frozen=True)
class Toy(Method):
    """Server: a number w. Down: w + i. Training adds 1. The server adds 1 per round, however many answered."""

    nan: tuple[int, ...] = ()  # clients whose upload is NaN
    shapeless: tuple[int, ...] = ()  # clients whose upload has another shape

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        return {"w": torch.zeros(1)}, {"w": torch.zeros(1)}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"w": server["w"] + i, "spare": torch.zeros(3, dtype=torch.int64)}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {"w": down["w"]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        new = client["w"] + 1
        sent = new * float("nan") if local.client in self.nan and local.rounds > 1 and local.n > 1 else new
        return {"w": new}, {"w": sent.repeat(2) if local.client in self.shapeless and local.n > 1 else sent}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {"w": server["w"] + 1}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        answer = int(client["w"].item()) % CLASSES
        return torch.eye(CLASSES)[answer].repeat(len(x), 1)

    def watch(self, server: Tree) -> Tree:
        return {"w": server["w"]}


def toy_data(clients: int = len(TESTS)) -> Federated:
    """Clients with the test labels of TESTS (again from the start if there are more), and two train samples each."""
    arrays = []
    for i in range(clients):
        y = np.repeat(np.arange(CLASSES), TESTS[i % len(TESTS)])
        x = np.zeros((len(y), 3), np.float32)
        arrays.append((np.full((2, 3), i, np.float32), np.array([0, 1]), x, y))
    return from_arrays(arrays, CLASSES)


def play(method: Method, data: Federated, plan: Plan, **options: object) -> Result:
    task = make_task(data, "mlp", rounds=plan.rounds)
    return simulate(method, task, data, plan, **options)  # type: ignore[arg-type]


def rights(i: int, w: int) -> int:
    """Right answers of client i's model w."""
    return TESTS[i][w % CLASSES]
