"""Ditto (Li et al., ICML 2021): a personal model beside the global one, tied to it by a proximal pull.

Down    w, the global model
Client  w_i = E epochs of SGD on F_i from w, as in FedAvg                       (Algorithm 1)
        v_i <- E epochs of SGD on F_i(v) + lambda/2 |v - w|^2 from its last v_i  (Algorithm 1)
Up      w_i, n_i; the personal model v_i never leaves
Server  w <- sum_i n_i w_i / sum_i n_i over the clients that answered

Momentum stays with the personal model, which goes on, and starts afresh for the global one, which was replaced.
Both see the same mini-batches, as in the released code.
Deviations:
- Algorithm 1 and the released code take the plain mean of the updates of clients drawn with probability n_i
  / N; here clients are drawn by the run's plan and weighted by samples.
- The released code takes one step on v_i and one on w_i in turn, without momentum. The two do not read each
  other (the pull is to the received w), so the order is immaterial; here w_i is trained first, then v_i.
- lambda: the paper lets devices choose among {0.1, 1, 2} (or {0.05, 0.1, 0.2} under strong attack) by
  validation and falls back to 1; here it is one constant, 1. PFLlib's default is 0 (Local) with one
  personal epoch per round.
- With SGD the pull is stable while lr * lambda stays well below 1.

Idle clients keep v_i; never-sampled ones hold the common start, not the current w (which is FedAvg's
model). lambda = 0 is Local training beside FedAvg. First round: v_i = w. Evaluated: v_i after local
training; before it, the run records v_i as the client's last visit left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean, upload
from fedapa.methods.fedprox import pull
from fedapa.methods.method import Claims, Method, Role, Roles, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, proximal, task_loss


@dataclass(frozen=True)
class Ditto(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    lam: float = hyper(
        1.0,
        "lambda: pull of the personal model to the global one",
        0.0,
        source="paper, experiments",
        search="log:0.01..10",
    )

    relative_cost = 2.1

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {"omega": task.join(theta, phi)}, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return client  # the personal model is not replaced; the global one is trained from ``down``

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        anchored, calls = pull(task, down["omega"], self.lam), local.calls
        shared = local.sgd(task_loss, task.parts(down["omega"]), memory="global", replaced=True)
        local.calls = calls  # the same mini-batches again
        personal = local.sgd(proximal, client, given=anchored, memory="personal")
        return personal, upload(task, shared, local)

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {**server, "omega": sample_mean(ups, "omega")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> Claims:
        return Claims(regularisers=("lam",), limits={"local": replace(self, lam=0.0)})
