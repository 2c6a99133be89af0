"""FedRep (Collins et al., ICML 2021): a shared extractor, private heads, trained one after the other.

Down    theta
Client  head_epochs on the head phi_i with theta frozen, then the task's epochs on theta with phi_i frozen
Up      theta_i, n_i
Server  theta <- sum_i n_i theta_i / sum_i n_i over the clients that answered

Deviations:
- The paper lets the head take many steps for each of the extractor's: 10 epochs, then 1. Here the extractor
  takes the task's epochs, as for every method; ``extractor_epochs=1`` is the paper's. PFLlib has 1 and 1.
- The paper averages extractors without weights (its clients hold equal shares); its code and ours weigh by
  samples.
- Both phases use the task's SGD, each with a new optimiser at every visit, as in the authors' code.
- Evaluated: [theta; phi_i] as it arrives, as in the authors' code: after the aggregation, before more
  training.
- Idle clients keep their head and get the extractor of the day when they return; who never trained has the
  common first head. Missing classes and the first round need no special case.
- Statistics of BatchNorm move in the extractor's epochs only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean
from fedapa.methods.method import Method, Role, Roles, When, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss


@dataclass(frozen=True)
class FedRep(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    head_epochs: int = hyper(
        10, "epochs of the head, before the extractor's", 0, source="paper, section 5", search="1,2,5,10"
    )
    extractor_epochs: int = hyper(0, "epochs of the extractor; 0: those of the task", 0, source="paper: 1")

    relative_cost = 3.0

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {"theta": theta}, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"theta": server["theta"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, "theta": down["theta"]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        theta, phi = {"theta": client["theta"]}, {"phi": client["phi"]}
        phi = local.sgd(task_loss, phi, given=theta, epochs=self.head_epochs, replaced=True)
        epochs = self.extractor_epochs or None
        theta = local.sgd(task_loss, theta, given=phi, epochs=epochs, replaced=True)
        return {**theta, **phi}, {**theta, "n": torch.tensor([float(local.n)])}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {"theta": sample_mean(ups, "theta")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)
