"""FedProx (Li et al., MLSys 2020): FedAvg with a pull towards the model that arrived, against drift.

Down    w
Client  min_v F_i(v) + mu/2 |v - w|^2, from v = w, by E epochs of SGD                      (Eq. 2, inexact)
Up      w_i, n_i
Server  w <- sum_i n_i w_i / sum_i n_i over the clients that answered

Deviations:
- The paper draws clients with probability n_i / N and takes their plain mean; here, as in FedAvg, clients
  are drawn by the run's plan and weighted by samples, which has the same expectation and needs no special
  sampling.
- The paper lets slow clients stop early (gamma_i-inexact solutions); here every client runs the same number
  of epochs.
- mu: the paper's best values are 1 (Synthetic, MNIST, FEMNIST), 0.001 (Shakespeare) and 0.01 (Sent140); the
  default is the one of them that leaves two epochs of a CNN room to move. PFLlib's default is 0, which is
  FedAvg.
- Buffers of the model (BatchNorm) are averaged like weights; the pull does not move them.
- Momentum starts afresh at every visit: the weights that it belonged to were replaced by what arrived.

First round: the pull starts at 0, because v = w. Idle and never-sampled clients keep nothing and are shown
the current w. mu = 0 is FedAvg. Evaluated: the global model as it arrives, as for FedAvg; ``fine_tune``
uses the one after training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean, upload
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, proximal


@dataclass(frozen=True)
class FedProx(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    mu: float = hyper(
        0.01, "strength of the pull towards the received model", 0.0, source="paper, experiments", search="log:0.001..1"
    )
    fine_tune: bool = hyper(False, "the model in use is the one after the client's own epochs")

    @property
    def evaluated(self) -> When:
        return "after" if self.fine_tune else "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {"omega": task.join(theta, phi)}, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return task.parts(down["omega"])

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = local.sgd(proximal, client, given=pull(task, down["omega"], self.mu), replaced=True)
        return client, upload(task, client, local)

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {**server, "omega": sample_mean(ups, "omega")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> Claims:
        return Claims(regularisers=("mu",), limits={"fedavg": replace(self, mu=0.0)})


def pull(task: Task, anchor: Tensor, strength: float) -> Tree:
    """What the ``proximal`` loss is given to add strength/2 |[theta; phi] - anchor|^2."""
    parts = task.parts(anchor)
    return {"rho": torch.tensor(strength), "anchor_theta": parts["theta"], "anchor_phi": parts["phi"]}
