"""What methods with several models have in common: the part that travels, held-out samples, many models on own data."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.streams import stream, torch_seed
from fedapa.training.local import Local, Pass
from fedapa.training.task import Task

Shared = Literal["model", "extractor"]
Average = Literal["samples", "clients"]
PART = "what is sent and mixed; extractor: heads stay private, as in FedAPA"


def shared_part(client: Tree, shared: Shared) -> Tensor:
    """The vector that travels (or one in every row, of a client with several models)."""
    return client["theta"] if shared == "extractor" else torch.cat([client["theta"], client["phi"]], -1)


def installed(task: Task, client: Tree, omega: Tensor, shared: Shared) -> Tree:
    """The client's state with the vector that arrived in its place."""
    return {**client, "theta": omega} if shared == "extractor" else {**client, **task.parts(omega)}


def trainable(task: Task, shared: Shared) -> list[slice]:
    """Where the weights are in the vector that travels; the rest are statistics of BatchNorm."""
    theta, phi = slice(0, task.model.theta_trainable), slice(task.P, task.P + task.model.phi_trainable)
    return [theta] if shared == "extractor" else [theta, phi]


def starts(task: Task, seed: int, count: int) -> Tree:
    """theta [count, P] and phi [count, Q] of independent random models; the first is every method's common start.

    Equal models would stay equal: nobody could ever prefer one of them.
    """
    pairs = [task.init(seed if k == 0 else torch_seed(seed, "component", k)) for k in range(count)]
    return {"theta": torch.stack([theta for theta, _ in pairs]), "phi": torch.stack([phi for _, phi in pairs])}


def candidates(task: Task, client: Tree, omegas: Tensor, shared: Shared) -> Tree:
    """theta [k, P] and phi [k, Q] of k models that arrived; where heads are private, every one gets the client's."""
    whole = task.parts(omegas)
    return whole if shared == "model" else {"theta": omegas, "phi": client["phi"].expand(len(omegas), -1)}


def answers(task: Task, models: Tree, x: Tensor) -> Tensor:
    """[n, k, C] logits of every model; theta and phi hold one of them in every row."""
    pairs = zip(models["theta"], models["phi"], strict=True)
    return torch.stack([task.predict({"theta": theta, "phi": phi}, x) for theta, phi in pairs], 1)


def sample_losses(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """[n, ...] loss of every sample under every model that answered, from outputs [n, ..., K]."""
    if not task.objective.by_sample and outputs.ndim > 2:
        return torch.stack([sample_losses(task, model, y) for model in outputs.unbind(1)], 1)
    wanted = y.view(-1, *[1] * (outputs.ndim - 2)).expand(outputs.shape[:-1])
    return task.objective.losses(outputs.flatten(0, -2), wanted.flatten()).view(wanted.shape)


def losses_of(task: Task, models: Tree, local: Local) -> Tensor:
    """[n, k] loss of every own sample under every model, without gradients."""
    return sample_losses(task, local.engine.outputs(Pass(answers, task, models, local.data.x)), local.data.y)


def held_out(local: Local, share: float) -> tuple[Tensor, Tensor]:
    """Which of a client's train samples train and which score, the same in every round; at least one scores.

    A client with one sample trains and scores on it.
    """
    order = torch.from_numpy(stream(local.seed, "held-out", local.client).permutation(local.n))
    size = min(max(1, int(share * local.n)), local.n - 1)
    return (order[size:], order[:size]) if size > 0 else (order, order)
