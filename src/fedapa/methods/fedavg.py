"""FedAvg (McMahan et al., AISTATS 2017): one global model, the sample-weighted mean of what the clients trained.

w <- sum_i n_i w_i / sum_i n_i over the clients that answered.

Evaluated: the global model as it arrives (``fedavg``), or the same after the client's local epochs (``fedavg-ft``,
the fine-tuned baseline). The federation is the same in both; only the model that is used on site differs.
Deviations: PFLlib also sends the new model to idle clients; here an idle client is only shown what it would receive.
Buffers of the model (BatchNorm) are part of w and averaged with it, where PFLlib keeps those of the first uploader.
Clients keep nothing between visits, momentum included, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedapa.core.tree import Tree, weighted_mean
from fedapa.methods.method import Method, Role, Roles, When, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, cross_entropy


@dataclass(frozen=True)
class FedAvg(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    fine_tune: bool = hyper(False, "the model in use is the one after the client's own epochs (fedavg-ft)")

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
        client = local.sgd(cross_entropy, client, replaced=True)
        return client, upload(task, client, local)

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {**server, "omega": sample_mean(ups, "omega")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)


def upload(task: Task, client: Tree, local: Local) -> Tree:
    """The whole model and the number of samples behind it."""
    return {"omega": task.join(client["theta"], client["phi"]), "n": torch.tensor([float(local.n)])}


def sample_mean(ups: Sequence[Tree], name: str) -> Tensor:
    """Mean of one uploaded vector over clients, weighted by their samples."""
    return weighted_mean(torch.stack([up[name] for up in ups]), torch.cat([up["n"] for up in ups]))
