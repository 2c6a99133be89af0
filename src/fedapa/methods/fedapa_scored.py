"""FedAPA-scored (ours): FedAPA-exact with one small upload more: clients score mixtures on data they held out.

FedAPA-exact trusts distances between models; here the client has the last word. It chooses between its own row and an
even mixture, and three steps between the two.

Server: that of FedAPA-exact, and losses [M, G], every client's running mean of its G = 5 scores
Down    ends [2, P]: the mixture by row A_i, and the even mixture of everybody heard from; losses_i [G]
Client  theta = (1 - c) ends_0 + c ends_1 with the c in 0, 1/4, 1/2, 3/4, 1 whose loss is least
        scores all five with its head as it is, on ``holdout`` of its data that never trains; then E epochs
Up      theta_i, and the G losses
Server  A as in FedAPA-exact; losses_i <- (losses_i + new) / 2

Notes:
- All mixtures between two are on a line, so that two models down are enough for five candidates: 716.7 KiB per client
  and round for LeNet-5 instead of 477.8.
- The held-out samples are the same in every round (drawn by seed and client), or their score would mean nothing. A
  client with one sample trains and scores on it.
- Before the first score all losses are 0 and c = 0, which is FedAPA-exact's row.
- Diagnostics: ``watch`` shows A with every client's c applied.
- Evaluated: as FedAPA-exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core import exact_weights, weights
from fedapa.core.tree import Tree
from fedapa.methods.fedapa_exact import FedAPAExact
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.streams import stream
from fedapa.training.local import Local, Pass
from fedapa.training.task import Task, cross_entropy

STEPS = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])


@dataclass(frozen=True)
class FedAPAScored(Method):
    roles: ClassVar[Roles] = {"A": Role.WEIGHTS}
    renamed: ClassVar[Mapping[str, str]] = {"keep": "row_ema"}

    holdout: float = hyper(
        0.1, "share of a client's samples that scores and never trains", 0.0, 0.9, search="0.1,0.2,0.3"
    )
    row_ema: float = hyper(0.5, "share of a row that stays from round to round", 0.0, 0.999, search="0..0.9")
    fine_tune: bool = hyper(False, "the model in use is the one after the client's own epochs")

    @property
    def evaluated(self) -> When:
        return "after" if self.fine_tune else "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        server, client = self._exact.init(task, seed)
        return {**server, "losses": torch.zeros(task.clients, len(STEPS))}, client

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        ends = torch.stack([server["A"][0, i], exact_weights.even(i, server["heard"] > 0).float()])
        return {"ends": torch.stack(weights.mix(ends, server["theta"])), "losses": server["losses"][i].clone()}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, "theta": between(down["ends"], STEPS[down["losses"].argmin()])}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        learn, score = self._parts(local)
        with local.only(score):
            losses = torch.stack([_loss(task, between(down["ends"], c), client["phi"], local) for c in STEPS])
        with local.only(learn):
            client = local.sgd(cross_entropy, client)
        return client, {"theta": client["theta"], "losses": losses}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        losses, new = server["losses"].clone(), torch.stack([up["losses"] for up in ups])
        first = ~server["heard"][list(ids)].bool()[:, None]
        losses[list(ids)] = torch.where(first, new, (losses[list(ids)] + new) / 2)
        return {**self._exact.absorb(task, server, ids, downs, ups), "losses": losses}

    def admit(self, task: Task, server: Tree) -> Tree:
        losses = torch.cat([server["losses"], torch.zeros(1, len(STEPS))])
        return {**self._exact.admit(task, server), "losses": losses}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> Claims:
        return Claims(adapts=True)

    def watch(self, server: Tree) -> Tree:
        c = STEPS[server["losses"].argmin(1)][:, None]
        even = torch.stack([exact_weights.even(i, server["heard"] > 0) for i in range(len(c))]).float()
        A = (1 - c) * server["A"][0] + c * even
        return {
            "A": A,
            "collaborators": exact_weights.collaborators(A),
            "groups": exact_weights.groups(A),
            "dial": c[:, 0],
        }

    @property
    def _exact(self) -> FedAPAExact:
        return FedAPAExact(row_ema=self.row_ema)

    def _parts(self, local: Local) -> tuple[Tensor, Tensor]:
        """Which samples train and which score; the same in every round."""
        order = torch.from_numpy(stream(local.seed, "held-out", local.client).permutation(local.n))
        size = min(max(1, int(self.holdout * local.n)), local.n - 1)
        return (order[size:], order[:size]) if size > 0 else (order, order)


def between(ends: Tensor, c: Tensor) -> Tensor:
    """The mixture at step c from the first end to the second; exactly an end at 0 and 1."""
    return torch.lerp(ends[0], ends[1], c)


def _loss(task: Task, theta: Tensor, phi: Tensor, local: Local) -> Tensor:
    logits = local.engine.outputs(Pass(Task.predict, task, {"theta": theta, "phi": phi}, local.data.x))
    return F.cross_entropy(logits, local.data.y)
