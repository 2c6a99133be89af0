"""FedRoD (Chen & Chao, ICLR 2022): a balanced head that is shared, and a private one on top of it.

Client  psi_i, a second head, which never leaves
Down    w = [theta; phi]
Client  logits g = phi(z), z = theta(x); E epochs on the sum of two losses, from w
        generic:   cross-entropy of g + gamma log n_i, n_i the client's samples of every class; moves theta and phi
        personal:  cross-entropy of g + psi_i(z), with g and z held constant; moves psi_i
Up      w_i, n
Server  w <- sum_i n w_i / sum_i n over the clients that answered
Use     g + psi_i(z), or g alone (``used="generic"``)

A class that the client lacks has log 0: it is out of the generic softmax, and its row of phi stays.
Deviations:
- The authors' repository holds no code. Rate, momentum and epochs are the run's.
- psi_i starts at 0, where the personal model is the generic one. PFLlib and fluke start it as a copy of phi
  (``start="head"``), which doubles the logits.
- FL-bench uses psi_i(z) alone and lets its gradient into the extractor, which is another method. PFLlib counts classes
  without the last batch, so that a class can have no samples and yet a loss, which is infinite.
- The variant that generates psi_i from class frequencies (a shared network) is not built.
- Momentum starts afresh at every visit, that of psi_i included.

gamma = 0 is FedAvg beside private heads, and so are classes of equal size. Idle clients keep psi_i; who never trained,
and a newcomer, has psi_i = 0 and needs one visit. Evaluated: the personal model after local training; before it, the
new w with psi_i as the last visit left it. Classification only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean, upload
from fedapa.methods.method import Claims, Method, Role, Roles, hyper
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task

ABSENT = -1e9  # log 0, but finite: 0 times it is 0


@dataclass(frozen=True)
class FedRoD(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    gamma: float = hyper(1.0, "weight of the log class sizes", 0.0, source="paper", search="0.25..2")
    start: Literal["zero", "head"] = hyper("zero", "first private head: 0, or a copy of the shared one (PFLlib)")
    used: Literal["personal", "generic"] = hyper("personal", "the model in use: both heads, or the shared one")

    needs_classes = True
    needs_head = True

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        psi = phi.clone() if self.start == "head" else torch.zeros_like(phi)
        return {"omega": task.join(theta, phi)}, {"theta": theta, "phi": phi, "psi": psi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, **task.parts(down["omega"])}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        given = {"shift": self.gamma * log_sizes(local.counts())}
        client = local.sgd(two_heads, client, given=given, replaced=True)
        return client, upload(task, client, local)

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {**server, "omega": sample_mean(ups, "omega")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        z = task.features(client, x)
        generic = task.logits(client, z)
        return generic if self.used == "generic" else generic + task.logits({"phi": client["psi"]}, z)

    def claims(self) -> Claims:
        return Claims(regularisers=("gamma",), limits={"fedavg": replace(self, gamma=0.0)})


def two_heads(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """The balanced loss of the shared model, plus that of both heads together in the private one."""
    z = task.features(params, batch.x)
    generic = task.logits(params, z)
    personal = generic.detach() + task.logits({"phi": params["psi"]}, z.detach())
    return task.loss(generic + given["shift"], batch.y) + task.loss(personal, batch.y)


def log_sizes(counts: Tensor) -> Tensor:
    """log n of every class, and a very small number for a class without samples."""
    return torch.where(counts > 0, counts.clamp(min=1).log(), ABSENT)
