"""Three small clients with three, two and one classes, for the cases worked by hand."""

from __future__ import annotations

import torch

from fedapa.data.federated import Split
from fedapa.training.local import Local
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Task

SIZES = (12, 7, 5)
LABELS = (torch.arange(12) % 3, torch.arange(7) % 2, torch.zeros(5, dtype=torch.long))  # 3, 2 and 1 classes


def make_task(**training: float) -> Task:
    return Task(build_model("mlp", (4,), 3), 3, torch.tensor(SIZES), Training(**training), rounds=10)


def make_data() -> list[Split]:
    random = torch.Generator().manual_seed(5)
    return [Split(torch.randn(len(y), 4, generator=random), y) for y in LABELS]


def visit(method, task, server, client, i, t=0, data=None):
    """One client's round: its new state, what it got, what it sends."""
    local = Local(task, i, t, 0, data or make_data()[i])
    down = method.send(task, server, i)
    client, up = method.train(task, method.receive(task, client, down, local), down, local)
    return client, down, up


def play(method, task, server, client, ids, t=0):
    """One round of some clients that all start from ``client``."""
    visits = [visit(method, task, server, client, i, t) for i in ids]
    return method.absorb(task, server, ids, [v[1] for v in visits], [v[2] for v in visits])


def lenet_task() -> Task:
    return Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 10))
