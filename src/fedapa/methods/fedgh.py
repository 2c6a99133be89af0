"""FedGH (Yi et al., ACM MM 2023): private extractors under one global head that the server trains.

Down    phi
Client  cross-entropy over [theta_i; phi], all layers; the head is replaced at the next visit
Up      class means of z with the trained extractor, and counts per class
Server  one gradient step of cross-entropy on phi for every (mean, label) pair received

Deviations:
- The authors' code never trains phi: the server steps the clients' optimiser, so that the head stays random.
  This follows the paper.
- Pairs go in ascending order of client and class, one per step with the rate .01 of the clients;
  ``server_batch`` = s takes the mean loss of s pairs at a time. PFLlib: rate 1, one shuffled pass with
  batches of 10 (``server_lr=1``, ``server_batch=10``). The number of samples behind a mean plays no role.
- Class means are exact, after training; the authors' code takes the mean of per-batch means.
- Local training is the task's (authors: 10 epochs, weight decay 1e-3, gradient norm clipped to 50).
- Messages are dense: C (d + 1) floats up, counts of zero for absent classes; the paper counts owned classes
  only.
- Evaluated: after local training, as in the authors' code; PFLlib evaluates right after the head was
  replaced.
- Idle clients keep extractor and head; whoever returns gets the head of the day. In the first round it is
  the common start. BatchNorm statistics kept with the head (private buffers) stay on the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedapa.core.prototypes import class_means, class_sums
from fedapa.core.tree import Tree
from fedapa.methods.method import Method, Role, Roles, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss


@dataclass(frozen=True)
class FedGH(Method):
    roles: ClassVar[Roles] = {"counts": Role.CLASS_COUNTS}

    server_lr: float = hyper(
        0.01, "learning rate of the global head", 0.0, source="clients' rate; PFLlib: 1", search="log:0.001..1"
    )
    server_batch: int = hyper(1, "pairs of mean and label per step", 1, source="paper; PFLlib: 10")
    server_epochs: int = hyper(1, "passes over the pairs of a round", 0, source="paper")

    needs_classes = True
    needs_head = True
    mixes_architectures = True
    relative_cost = 1.1

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {"phi": phi[: task.model.phi_trainable].clone()}, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"phi": server["phi"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, "phi": torch.cat([down["phi"], client["phi"][len(down["phi"]) :]])}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client, counts = local.sgd(task_loss, client), local.counts()
        sums = class_sums(local.features(client), local.data.y, task.classes)
        return client, {"means": class_means(sums, counts), "counts": counts}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        ups = [ups[k] for k in sorted(range(len(ids)), key=lambda k: ids[k])]
        owned = torch.stack([up["counts"] for up in ups]) > 0  # [S, C]
        z, y = torch.stack([up["means"] for up in ups])[owned], owned.nonzero()[:, 1]
        phi, tail = server["phi"], torch.zeros(task.Q - len(server["phi"]))
        for _ in range(self.server_epochs):
            for k in range(0, len(y), self.server_batch):
                pairs = slice(k, k + self.server_batch)
                phi = phi - self.server_lr * slope(task, phi, tail, z[pairs], y[pairs])
        return {"phi": phi}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)


def slope(task: Task, phi: Tensor, tail: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Gradient of the mean cross-entropy of features z in the trainable part of the head."""
    leaf = phi.detach().requires_grad_()
    loss = task.loss(task.logits({"phi": torch.cat([leaf, tail])}, z), y)
    return torch.autograd.grad(loss, leaf)[0]
