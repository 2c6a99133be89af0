"""MOON (Li et al., CVPR 2021): FedAvg whose features are drawn to the global model's, away from the client's last.

Client  its last trained model, which never leaves
Down    w
Client  E epochs from w on cross-entropy + mu mean[-log e^(s+) / (e^(s+) + e^(s-))], with
        s+ = cos(z, z under w) / tau and s- = cos(z, z under the client's last model) / tau, both constant
Up      w_i, n_i
Server  w <- sum_i n_i w_i / sum_i n_i over the clients that answered

Deviations:
- z is what the head reads. The paper puts a projection of two layers between the two, which the classifier uses as
  well: another model. A model of that kind can be given. PFLlib, FL-bench and fluke have no projection either.
- mu: the paper's best is 5 on CIFAR-10, of {0.1, 1, 5, 10}. PFLlib's default is 0, which is FedAvg.
- FL-bench pairs last models with clients by who was done first when it runs several at a time.
- Momentum starts afresh at every visit, as in the authors' code.
- ``shared="extractor"``: heads stay private, as in FedPer.

A client at its first visit has the common start for its last model; in the first round that is w, and the term has no
gradient. Idle clients keep their last model; who never trained is shown w, and so is a newcomer. mu = 0 is FedAvg.
Evaluated: the global model as it arrives; ``fine_tune`` uses the one after training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.common_part import SHARED, Shared, common_part, mean_part, with_common_part
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task

PARTS = ("theta", "phi")


@dataclass(frozen=True)
class MOON(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    mu: float = hyper(5.0, "weight of the contrastive term", 0.0, source="paper, CIFAR-10", search="log:0.1..10")
    tau: float = hyper(0.5, "temperature of its cosines", 1e-3, source="paper", search="log:0.1..2")
    fine_tune: bool = hyper(False, "the model in use is the one after the client's own epochs")
    shared: Shared = hyper("model", SHARED)

    needs_head = True
    relative_cost = 5 / 3  # two models more, forward only

    @property
    def evaluated(self) -> When:
        return "after" if self.fine_tune else "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        model = {"theta": theta, "phi": phi}
        return common_part(task, model, self.shared), {**model, **_named("last", model)}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return dict(server)

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, **with_common_part(task, client, down)}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        arrived = {k: client[k] for k in PARTS}
        given = {**_named("global", arrived), **{f"last_{k}": client[f"last_{k}"] for k in PARTS}}
        model = local.sgd(self.contrasted, arrived, given=given, replaced=True)
        up = {**common_part(task, model, self.shared), "n": torch.tensor([float(local.n)])}
        return {**model, **_named("last", model)}, up

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return mean_part(ups)

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def contrasted(self, task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
        """Cross-entropy plus the contrastive term."""
        with torch.no_grad():
            near, far = (task.features(_part(given, name), batch.x) for name in ("global", "last"))
        z = task.features(params, batch.x)
        return task.loss(task.logits(params, z), batch.y) + self.mu * contrast(z, near, far, self.tau)

    def claims(self) -> Claims:
        plain = replace(self, mu=0.0)
        limits = {"fedavg": replace(plain, shared="model"), "fedper": replace(plain, shared="extractor")}
        return Claims(regularisers=("mu",), limits=limits)


def contrast(z: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """Mean of -log of the share of ``near`` in a softmax over the cosines of z with ``near`` and ``far``."""
    cosines = [F.cosine_similarity(z, other) for other in (near, far)]
    return F.softplus((cosines[1] - cosines[0]) / tau).mean()


def _named(name: str, model: Tree) -> Tree:
    return {f"{name}_{k}": model[k] for k in PARTS}


def _part(tree: Tree, name: str) -> Tree:
    return {k: tree[f"{name}_{k}"] for k in PARTS}
