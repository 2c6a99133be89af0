"""FedPAC (Xu, Tong and Huang, ICLR 2023): features aligned to global prototypes, heads combined by a QP.

Down    theta, the client's own combined head phi_i, prototypes c [C, d] and the counts behind them
Client  with theta as it arrived: h_i[k] = sum of z over class k / n_i, V_i = (mean |z|^2 - |h_i|^2) / n_i
        then head_epochs on phi_i with theta frozen, then the task's epochs on theta with phi_i frozen:
        cross-entropy + lam * mean (z - c_y)^2
Up      theta_i, phi_i, sums of the new z and counts per class, h_i, V_i
Server  theta <- sum_i n_i theta_i / sum_i n_i;  c_k <- sum_i n_ik c_ik / sum_i n_ik;
        phi_i <- sum_j a_ij phi_j with a_i = argmin a' (diag(V) + U_i U_i') a on the simplex,
        row j of U_i being vec(h_i - h_j)

Deviations:
- The QP runs over the clients that answered this round, as in the authors' code, by an exact active-set
  method (core.simplex; of more than 128 clients together, core.simplex_rows) instead of cvxpy.
  It always has an answer, so the code's fallbacks (eigenvalues <
  0.01 dropped, local head if that fails) have no counterpart. Weights below 1e-3 become zero, as there.
- lr .1, momentum .5 and weight decay 5e-4 of the head's epoch are the authors'. Both optimisers are new at
  every visit, as in the authors' code. The extractor's epochs follow the task (authors: E = 5, lr .01 or .02,
  momentum .5, weight decay 5e-4).
- A class without a global prototype is pulled to the client's own mean before training; without any global
  prototype (the first round) there is no pull at all. Both as in the authors' code.
- A class that no client of a round holds keeps its last prototype; the authors' code drops it.
- PFLlib and FL-bench pair V and h with the wrong heads when uploads arrive in another order, and PFLlib
  averages prototypes without weights; here everything of a client is in one message.
- Evaluated: after local training (the authors' code prints both); PFLlib evaluates what arrives.
- Idle clients keep their last combined head on the server; who was never heard from has the common first
  head and takes no part in any QP. The counts down (C floats) are more than the paper sends: they say which
  classes exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedapa.core import exact_rows, simplex, simplex_rows
from fedapa.core import prototypes as proto
from fedapa.core.simplex_rows import Programs
from fedapa.core.threads import in_order
from fedapa.core.tree import Tree, weighted_mean, with_rows
from fedapa.methods.fedproto import attracted
from fedapa.methods.method import Claims, Method, Role, Roles, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss

SMALL = 1e-3  # QP weights below this are dropped


@dataclass(frozen=True)
class FedPAC(Method):
    roles: ClassVar[Roles] = {"counts": Role.CLASS_COUNTS, "sums": Role.SUMS}

    lam: float = hyper(
        1.0, "strength of the pull to the prototypes", 0.0, source="paper, section 5", search="log:0.1..10"
    )
    head_epochs: int = hyper(1, "epochs of the head, before the extractor's", 0, source="paper, section 5")
    head_lr: float = hyper(
        0.1, "learning rate of the head's epochs", 0.0, source="authors' code", search="log:0.01..0.3"
    )
    head_momentum: float = hyper(0.5, "momentum of the head's epochs", 0.0, 0.999, source="authors' code")
    head_weight_decay: float = hyper(5e-4, "weight decay of the head's epochs", 0.0, source="authors' code")
    collaborate: bool = hyper(True, "combine the heads; off: everybody keeps their own (ablation)")

    needs_classes = True
    needs_head = True
    relative_cost = 1.9
    revision = 1

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        none = {"prototypes": torch.zeros(task.classes, task.d), "counts": torch.zeros(task.classes)}
        return {"theta": theta, "phi": phi.repeat(task.clients, 1), **none}, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {**server, "phi": server["phi"][i].clone()}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {"theta": down["theta"], "phi": down["phi"]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        counts, z = local.counts(), local.features(client)
        sums = proto.class_sums(z, local.data.y, task.classes)
        h, V = statistics(z, sums)
        phi = local.sgd(
            task_loss,
            {"phi": client["phi"]},
            given={"theta": client["theta"]},
            epochs=self.head_epochs,
            lr=self.head_lr,
            momentum=self.head_momentum,
            weight_decay=self.head_weight_decay,
            memory=None,
        )
        given = phi | self._targets(down, proto.class_means(sums, counts))
        theta = local.sgd(attracted, {"theta": client["theta"]}, given=given, replaced=True)
        client = {**theta, **phi}
        new = proto.class_sums(local.features(client), local.data.y, task.classes)
        return client, {**client, "sums": new, "counts": counts, "h": h, "V": V}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        phi, sums, counts, h, V = (
            torch.stack([up[name] for up in ups]) for name in ("phi", "sums", "counts", "h", "V")
        )
        if self.collaborate:
            phi = combination(h.flatten(1), V[:, 0]) @ phi
        means, seen = proto.refreshed(server["prototypes"], server["counts"], sums.sum(0), counts.sum(0))
        return {
            "theta": weighted_mean([up["theta"] for up in ups], counts.sum(1)),
            "phi": with_rows(server["phi"], torch.tensor(list(ids)), phi, task.donate),
            "prototypes": means,
            "counts": seen,
        }

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> Claims:
        return Claims(regularisers=("lam",))

    def _targets(self, down: Tree, own: Tensor) -> Tree:
        """Where each class is pulled to, and how strongly: not at all before the first global prototype."""
        seen = down["counts"] > 0
        target = torch.where(seen.unsqueeze(1), down["prototypes"], own)
        return {"target": target, "present": torch.ones_like(down["counts"]), "lam": self.lam * seen.any().float()}


def statistics(z: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """h [C, d], class means times class shares, and V [1], the variance of an estimate by n samples."""
    n = len(z)
    h = sums / n
    V = (z.square().sum(1).mean() - h.square().sum()).clamp(min=0) / n
    return h, V.reshape(1)


def combination(h: Tensor, V: Tensor) -> Tensor:
    """[S, S] row i weighs the heads for client i; from h [S, C d] and V [S]."""
    h, V = h.double(), V.double()
    h = h - h.mean(0)  # only differences count; centred, they lose fewer digits below
    inner = h @ h.T
    if len(h) > exact_rows.MANY and V.min() > 0:
        rows = list(_rows(inner, V))
    else:
        rows = [simplex.minimise(torch.diag(V) + _around(inner, i)) for i in range(len(h))]
    return torch.stack([simplex.drop_small(a, SMALL) for a in rows]).float()


def _rows(inner: Tensor, V: Tensor) -> Iterator[Tensor]:
    """The same of many clients together: around the mean, all programs have the matrix inner + diag(V)."""
    least = V.min()
    shared = inner + torch.diag(V - least)

    def solve(ids: Tensor) -> Tensor:
        everybody = torch.ones(len(ids), len(V), dtype=torch.bool)
        ridge, start = least.expand(len(ids)), torch.zeros(len(ids), len(V))
        return simplex_rows.minimise(Programs(shared, inner[ids], ridge, everybody, start))

    for part in in_order(solve, torch.split(torch.arange(len(V)), exact_rows.ROWS)):
        yield from part


def _around(inner: Tensor, i: int) -> Tensor:
    """(h_j - h_i) . (h_k - h_i) from all h_j . h_k, without a product of its own for every client."""
    return inner - inner[i] - inner[:, i, None] + inner[i, i]
