"""IFCA (Ghosh et al., NeurIPS 2020): k models for k groups; every client chooses the one that fits its data best.

Server: omega [k, D], one model per cluster; choice [M], 1 + the last choice of every client, for reports alone
Down    all k models
Client  c_i = argmin_c F_i(w_c) on its own train data; then E epochs from w_{c_i}
Up      w_i, c_i (one-hot), n_i
Server  w_c <- sum n_i w_i / sum n_i over the clients that chose c; a cluster that nobody chose keeps its model

The number of clusters has to be known. Set to the true number of groups it is an oracle, and a table should say so; 2
(the authors' for CIFAR-10) and twice the true number show what a wrong one costs.

The k models start from independent random weights; equal ones would be chosen in one order for ever. The first of them
is the start of every other method, so that k = 1 is FedAvg. Clusters can starve: one that is a little better early is
chosen by all. Every round shows the choices and how many clients each cluster has.

Deviations:
- This is the paper's model averaging. Its other form sends one gradient per round.
- The authors' code for CIFAR-10 draws the k models again until each attracts a tenth (k = 4) or a third (k = 2) of the
  first clients, and for FEMNIST it starts from a trained model. Here the first draw counts.
- The authors' code chooses the cluster of a test client by its test loss, and another public code even chooses by test
  accuracy while training. Here train data alone choose.
- Weighted by samples (``average``). The authors' clients for MNIST and CIFAR-10 all have as many samples, and those
  for FEMNIST are weighted.
- The paper's variant with one extractor for all and k heads is not here. ``shared="extractor"`` is the other way round:
  k extractors, which a client tries under its own private head, as FedAPA has it. That head grew with one of them,
  so that clients change their minds less.

Partial participation needs no care; a client that joins later tries all k models like everybody else.
Every client sees all k models, and the server sees who belongs together.
Evaluated: the model of the chosen cluster as it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core.tree import Tree, weighted_mean
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.methods.sharing import PART, Average, Shared, candidates, installed, losses_of, shared_part, starts
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss


@dataclass(frozen=True)
class IFCA(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES, "groups": Role.CLUSTERS}

    clusters: int = hyper(
        2,
        "k, the number of models; the true number of groups is an oracle",
        1,
        source="authors' code, CIFAR-10",
        search="2,5,10",
    )
    average: Average = hyper(
        "samples", "clients of a cluster count by samples or alike", source="authors' code, FEMNIST"
    )
    shared: Shared = hyper("model", PART, source="paper")

    @property
    def evaluated(self) -> When:
        return "before"

    @property
    def relative_cost(self) -> float:
        return 1 + self.clusters / 6  # every cluster scored once in two epochs

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        models = starts(task, seed, self.clusters)
        omega, choice = shared_part(models, self.shared), torch.zeros(task.clients, dtype=torch.int64)
        client = {"theta": models["theta"][0], "phi": models["phi"][0], "choice": torch.zeros(1, dtype=torch.int64)}
        return {"omega": omega, "choice": choice}, client

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        models = candidates(task, client, down["omega"], self.shared)
        best = losses_of(task, models, local).mean(0).argmin()
        return {**installed(task, client, down["omega"][best], self.shared), "choice": best[None]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        model = local.sgd(task_loss, {k: client[k] for k in ("theta", "phi")}, replaced=True)
        chosen = F.one_hot(client["choice"][0], self.clusters).float()
        up = {"omega": shared_part(model, self.shared), "choice": chosen, "n": torch.tensor([float(local.n)])}
        return {**client, **model}, up

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        omega, choice = server["omega"].clone(), server["choice"].clone()
        chosen = torch.stack([up["choice"] for up in ups]).argmax(1)
        for c in set(chosen.tolist()):
            members = [up for up, own in zip(ups, chosen.tolist(), strict=True) if own == c]
            omega[c] = weighted_mean([up["omega"] for up in members], self._weights(members))
        choice[list(ids)] = 1 + chosen
        return {"omega": omega, "choice": choice}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def watch(self, server: Tree) -> Tree:
        """Everybody's last choice, -1 before the first, and how many clients every cluster has."""
        return {"groups": server["choice"] - 1, "members": server["choice"].bincount(minlength=1 + self.clusters)[1:]}

    def claims(self) -> Claims:
        one = replace(self, clusters=1, average="samples")
        return Claims(adapts=True, limits={"fedavg" if self.shared == "model" else "fedper": one})

    def _weights(self, members: Sequence[Tree]) -> Tensor:
        n = torch.cat([up["n"] for up in members])
        return n if self.average == "samples" else torch.ones_like(n)
