"""Local training: every client alone. The reference that tells whether joining a federation was worth it.

w_i <- E epochs of SGD on own data, from the common start. Nothing is sent, nothing is received.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.method import Method
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss


@dataclass(frozen=True)
class LocalOnly(Method):
    mixes_architectures = True

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {}, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return client

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        return local.sgd(task_loss, client), {}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return server

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)
