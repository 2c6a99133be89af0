"""LG-FedAvg (Liang et al., 2020): private extractors under a shared head, the mirror image of FedPer.

Down    phi
Client  E epochs on [theta_i; phi], both parts at once; the extractor theta_i never leaves
Up      phi_i, n_i
Server  phi <- sum_i n_i phi_i / sum_i n_i over the clients that answered

Deviations:
- The authors begin with 400 (MNIST) or 1,200 (CIFAR-10) rounds of FedAvg on the whole model and go on with 200 of
  these. Here extractors start from the common random one. A FedAvg model as the start can be given as the run's model.
- The authors average without weights and share the last two or three layers; here clients are weighted by samples and
  the head is the model's last layer (where the model is split).
- The released CIFAR-10 run shares the two *convolutions*: its list of layers ends with them. FL-bench shares the first
  layers too. PFLlib and fluke share the head.
- The authors take the best round of every client by test accuracy. Here rounds are not chosen.
- Momentum of both parts starts afresh at every visit, because the head was replaced.
- Statistics of the extractor (BatchNorm) stay with it; with ``buffers = "private"`` they ride with the head and travel.

Extractors of different histories have no features in common, so that a mean of heads means little; expect results near
Local's. Idle clients keep theta_i; who never trained, and a newcomer, has the common first extractor under the current
phi. One client alone is Local training with a new optimiser at every visit. Evaluated: [theta_i; phi] as it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean
from fedapa.methods.method import Method, Role, Roles, When
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss


@dataclass(frozen=True)
class LGFedAvg(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    needs_head = True
    mixes_architectures = True

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {"phi": phi}, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"phi": server["phi"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, "phi": down["phi"]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = local.sgd(task_loss, client, replaced=True)
        return client, {"phi": client["phi"], "n": torch.tensor([float(local.n)])}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {"phi": sample_mean(ups, "phi")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)
