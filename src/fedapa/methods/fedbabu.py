"""FedBABU (Oh et al., ICLR 2022): extractors learn under a common random head; heads are trained for use only.

Down    theta
Client  E epochs on theta_i under the head phi_0 that everybody starts with and nobody ever changes
        for use: ``tune_epochs`` on [theta; phi_0] as they arrived, the whole model or the head alone
Up      theta_i, n_i
Server  theta <- sum_i n_i theta_i / sum_i n_i over the clients that answered

Deviations:
- The authors fine-tune once, after the last round. Here a client does so at every visit, so that every round has a
  score; what is sent up does not depend on it.
- Fine-tuning has the run's rate and momentum, with a new optimiser. PFLlib takes 10 epochs at the end.
- Momentum of theta_i starts afresh at every visit, because it was replaced.
- Statistics of the extractor (BatchNorm) ride with theta and are averaged, unless the model keeps them private.

Averaging phi as well would change nothing. Without fine-tuning it is FedRep without epochs for its heads. Idle clients
keep their tuned model; who never trained, and a newcomer, has theta under the random head, which is worth nothing
until its first visit. Evaluated: the tuned model, after local training; before it, theta under the random head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean
from fedapa.methods.method import Method, Role, Roles, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss


@dataclass(frozen=True)
class FedBABU(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    tune_epochs: int = hyper(5, "epochs of fine-tuning for use", 0, source="authors' code", search="1,2,5,10")
    tuned: Literal["model", "head"] = hyper("model", "what is fine-tuned", source="authors' code")

    @property
    def relative_cost(self) -> float:
        return 1 + self.tune_epochs / 2  # fine-tuning beside two epochs

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {"theta": theta}, {"theta": theta, "phi": phi, "common": phi.clone()}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"theta": server["theta"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, "theta": down["theta"], "phi": client["common"]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        theta, phi = {"theta": down["theta"]}, {"phi": client["common"]}
        learned = local.sgd(task_loss, theta, given=phi, replaced=True)
        up = {"theta": learned["theta"], "n": torch.tensor([float(local.n)])}
        moving, still = (phi, theta) if self.tuned == "head" else ({**theta, **phi}, {})
        found = local.sgd(task_loss, moving, given=still, epochs=self.tune_epochs, memory=None)
        return {**client, **found}, up

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {"theta": sample_mean(ups, "theta")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)
