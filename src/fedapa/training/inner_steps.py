"""Gradient steps inside a loss, for methods whose loss trains a second model on every batch (pFedMe, Per-FedAvg)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import grad

from fedapa.core.tree import Tree
from fedapa.training.task import Batch, Task

PlainLoss = Callable[[Task, Tree, Batch, Tree], Tensor]


def step(
    task: Task, loss: PlainLoss, params: Tree, batch: Batch, given: Tree, rate: float, graph: bool = False
) -> Tree:
    """``params`` after one gradient step; statistics (BatchNorm) stay.

    The step is a constant to whoever differentiates the result, unless ``graph`` keeps its second derivatives.
    """
    slopes = _slopes(task, loss, params, batch, given, graph)
    if not graph:
        slopes = {k: slope.detach() for k, slope in slopes.items()}
    return {k: _moved(task, k, params[k], slopes[k], rate) for k in params}


def _slopes(task: Task, loss: PlainLoss, params: Tree, batch: Batch, given: Tree, graph: bool) -> Tree:
    if task.vectorise and not task.model.has_buffers:  # vmap refuses torch.autograd.grad, and has no buffers
        slopes: Tree = grad(lambda leaves: loss(task, leaves, batch, given))(params)
        return slopes
    if graph:
        task = replace(task, kernel=None)  # the native kernel differentiates once
    leaves = params if graph else {k: v.detach().requires_grad_() for k, v in params.items()}
    found = torch.autograd.grad(loss(task, leaves, batch, given), list(leaves.values()), create_graph=graph)
    return dict(zip(params, found, strict=True))


def _moved(task: Task, name: str, param: Tensor, slope: Tensor, rate: float) -> Tensor:
    stop = {"theta": task.model.theta_trainable, "phi": task.model.phi_trainable}[name]
    return torch.cat([param[:stop] - rate * slope[:stop], param[stop:]])
