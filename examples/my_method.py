"""A method of your own, whole: FedAvg with a proximal pull and a server that walks only part of the way.

    fedapa verify examples/my_method.py

Down w, up w_i and n_i. Client: E epochs on cross-entropy + rho/2 |w - w_received|^2.
Server: w <- w + step (mean_i w_i - w), which descends 1/2 |mean_i w_i - w|^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

import fedapa as fa
from fedapa.core.tree import Tree, weighted_mean


@dataclass(frozen=True)
class HalfWay(fa.Method):
    roles: ClassVar[Mapping[str, fa.Role]] = {"n": fa.Role.SAMPLES}

    step: float = fa.hyper(0.5, "share of the way to the clients' mean", 0.0, 1.0)
    rho: float = fa.hyper(0.1, "pull towards the received model", 0.0)

    def init(self, task: fa.Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        return {"omega": task.join(theta, phi)}, {"theta": theta, "phi": phi}

    def send(self, task: fa.Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: fa.Task, client: Tree, down: Tree, local: fa.Local) -> Tree:
        return task.parts(down["omega"])

    def train(self, task: fa.Task, client: Tree, down: Tree, local: fa.Local) -> tuple[Tree, Tree]:
        pull = {"anchor_theta": client["theta"], "anchor_phi": client["phi"], "rho": torch.tensor(self.rho)}
        client = local.sgd(fa.proximal, client, given=pull, replaced=True)
        return client, {"omega": task.join(client["theta"], client["phi"]), "n": torch.tensor([float(local.n)])}

    def absorb(
        self, task: fa.Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]
    ) -> Tree:
        mean = weighted_mean(torch.stack([up["omega"] for up in ups]), torch.cat([up["n"] for up in ups]))
        return {"omega": server["omega"] + self.step * (mean - server["omega"])}

    def predict(self, task: fa.Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> fa.Claims:
        return fa.Claims(
            regularisers=("rho",),
            surrogate=proxy,
            bare=replace(self, step=1e-3),
            limits={"fedavg": replace(self, step=1.0, rho=0.0)},
        )


def proxy(task: fa.Task, old: Tree, new: Tree, i: int, up: Tree) -> Tensor:
    return 0.5 * (up["omega"] - new["omega"]).square().sum()
