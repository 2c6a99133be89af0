"""Three small clients and the network of their task written out, for the cases worked by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from fedapa.data.federated import Split
from fedapa.training.local import Local
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Task

SIZES = (12, 7, 5)


def make_task(**training: float) -> Task:
    return Task(build_model("mlp", (4,), 3), 3, torch.tensor(SIZES), Training(**training), rounds=10)


def make_data() -> list[Split]:
    """Three clients, full batches; the second one lacks a class."""
    random = torch.Generator().manual_seed(5)
    labels = [torch.arange(12) % 3, torch.arange(7) % 2, torch.arange(5) % 3]
    return [Split(torch.randn(len(y), 4, generator=random), y) for y in labels]


def net(w: Tensor, x: Tensor) -> Tensor:
    """The same network, written out."""
    for rows, columns, last in ((64, 4, False), (64, 64, False), (3, 64, True)):
        weight, bias = w[: rows * columns].view(rows, columns), w[rows * columns : rows * (columns + 1)]
        x, w = x @ weight.T + bias, w[rows * (columns + 1) :]
        x = x if last else x.relu()
    return x


def visit(method, task, state, server, i, data, t=0, memory=None):
    """One client's round: (state after receive, state after train, down, up)."""
    local = Local(task, i, t, 0, data[i], memory or {})
    down = method.send(task, server, i)
    shown = method.receive(task, state, down, local)
    trained, up = method.train(task, shown, down, local)
    return shown, trained, down, up


def omega(tree) -> Tensor:
    return torch.cat([tree["theta"], tree["phi"]])
