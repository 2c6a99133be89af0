"""FedBN (Li et al., ICLR 2021): FedAvg of everything but the BatchNorm layers, which stay with their client.

Client  scale, shift and running statistics of its BatchNorm layers
Down    w, all other parameters of the model
Client  E epochs on the whole model
Up      w_i, n_i
Server  w <- sum_i n_i w_i / sum_i n_i over the clients that answered

Made for clients whose *inputs* differ (scanners, cameras), not their classes. A model without BatchNorm has nothing
that could stay: this is then FedAvg, and `fedapa run` and `fedapa plan` say so.
Deviations:
- What is BatchNorm is told by the kind of a layer. The authors' code, PFLlib and FL-bench look for "bn" in its name,
  which misses layers inside a Sequential or on a shortcut.
- The authors average without weights, here clients are weighted by samples.
- PFLlib never sends statistics, whatever the method, so that its FedBN keeps scale and shift beyond its FedAvg; its
  CNN has no BatchNorm at all.
- Momentum starts afresh at every visit, because most weights were replaced.

Idle clients keep their layers. Who never trained, and a newcomer, has those of the common start, whose statistics are
not those of any data: it needs one visit. Evaluated: w with own layers, as it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean
from fedapa.methods.method import Claims, Method, Role, Roles, When
from fedapa.training.local import Local
from fedapa.training.split_model import SplitModel
from fedapa.training.task import Task, task_loss


@dataclass(frozen=True)
class FedBN(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {"omega": _public(task, {"theta": theta, "phi": phi})}, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        omega = task.join(client["theta"], client["phi"])
        omega[~of_batch_norm(task.model)] = down["omega"]
        return task.parts(omega)

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = local.sgd(task_loss, client, replaced=True)
        return client, {"omega": _public(task, client), "n": torch.tensor([float(local.n)])}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {"omega": sample_mean(ups, "omega")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def remarks(self, task: Task) -> list[str]:
        found = of_batch_norm(task.model).any()
        return [] if found else ["the model has no BatchNorm layer that could stay with a client: this is FedAvg"]

    def claims(self) -> Claims:
        return Claims(limits={"fedavg": self})  # the laws' model has no BatchNorm


def of_batch_norm(model: SplitModel) -> Tensor:
    """[P + Q] which numbers of [theta; phi] belong to BatchNorm layers, weights and statistics alike."""
    sides = {"extractor": model.extractor, "head": model.head}
    layers = [
        f"{side}.{name}." if name else f"{side}."
        for side, module in sides.items()
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
    ]
    slots = [*model.theta_slots, *model.phi_slots]
    return torch.cat([torch.full((slot.stop - slot.start,), any(map(slot.name.startswith, layers))) for slot in slots])


def _public(task: Task, model: Tree) -> Tensor:
    return task.join(model["theta"], model["phi"])[~of_batch_norm(task.model)]
