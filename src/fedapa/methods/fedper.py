"""FedPer (Arivazhagan et al., 2019): a shared extractor, averaged; a private head, trained together with it.

Down    theta
Client  E epochs on [theta; phi_i], both parts at once; the head phi_i never leaves
Up      theta_i, n_i
Server  theta <- sum_i n_i theta_i / sum_i n_i over the clients that answered

Deviations:
- The paper weights by n_i / N over all clients, which all take part; here over the clients that answered.
- The paper's heads may span several layers and start at random per client; here the head is the model's
  last layer (where the model is split) and all start from the same phi. PFLlib does the same.
- Buffers of the extractor (BatchNorm) ride with theta and are averaged, unless the model keeps them private.
- Momentum of extractor and head starts afresh at every visit, because the extractor was replaced.

Idle clients keep head and model as they are; never-sampled ones show the current theta under the initial
head. Missing classes need no care: the head sees only what its client has. First round: everybody starts
from one model. Evaluated: [theta_i; phi_i] after local training, the personal model of the paper's client
procedure; PFLlib scores [theta; phi_i] as it arrives, which every run records as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean
from fedapa.methods.method import Method, Role, Roles
from fedapa.training.local import Local
from fedapa.training.task import Task, cross_entropy


@dataclass(frozen=True)
class FedPer(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {"theta": theta}, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"theta": server["theta"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, "theta": down["theta"]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = local.sgd(cross_entropy, client, replaced=True)
        return client, {"theta": client["theta"], "n": torch.tensor([float(local.n)])}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {**server, "theta": sample_mean(ups, "theta")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)
