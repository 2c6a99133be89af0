"""pFedGraph (Ye et al., ICML 2023): the server infers from directions of training who should be averaged with whom.

Server: omega [M, D], the last model of every client; start, the initial model; gram [M, M], inner products of the
        displacements delta_j = w_j - start, of which every round renews those of the clients who answered; n [M]
Down    w_bar_i = sum_j a_ij w_j
Client  E epochs on F_i(w) - lambda cos(w, w_bar_i), from w = w_bar_i
Up      w_i, n_i
Server  a_i = argmin over the simplex of alpha |a - p|^2 - s_i' a, with p_j = n_j / sum_k n_k and
        s_ij = cos(delta_i, delta_j), or 1 where that is above ``same``

The program is a projection: a_i is the point of the simplex nearest to p + s_i / (2 alpha), found by sorting. The
authors call a general solver. With equal sizes, a group of g with inner similarity 1 leaves outsiders of similarity c
without weight if and only if c <= 1 - 2 alpha / g: one alpha cannot be right for pairs and for tens.
alpha -> infinity is FedAvg, alpha -> 0 leaves a client alone with whoever is above ``same``.

Deviations:
- The released code adds +lambda cos(w, u_i) to the loss, which drives a model away from its collaborators; the
  server's own objective counts the similarity as a gain. ``sign="toward"`` is the default, ``"released"`` the code's.
- Of the code's two pulls this is the cheap one, towards the mixture that arrived. The other one sends as much again,
  u_i = sum_j a_ij w_j / |w_j|. The code has no pull in the first round; here it is towards the common start then.
- Similarity is taken over all weights (code: ``all``). The code's ``fc`` fills half of its matrix only. Statistics of
  BatchNorm are mixed and not measured.
- The code mixes the last round's clients only, and with sampling one of its variants fails. ``over="heard"`` mixes the
  last models of everybody heard from; ``"round"`` those of the last round, and the client's own.
- The paper shares the whole model; ``shared="extractor"`` keeps heads private, as FedAPA does.
- A new optimiser at every visit, as in the code. It takes 200 batches per visit instead of epochs (``local_steps``).

Idle clients: their last w_j goes on being mixed. Who was never heard from is mixed by nobody; it has no direction, so
that its similarity is 0 to all others and 1 to itself. Evaluated: the mixture as it arrives. The authors take, by
validation score, the best round and the better of the models before and after training; runs record both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core import exact_weights, simplex, weights
from fedapa.core.tree import Tree, with_rows
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.methods.sharing import PART, Shared, installed, shared_part, trainable
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task, task_loss

EVEN = 1e12  # an alpha at which similarity has no say


@dataclass(frozen=True)
class PFedGraph(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES, "A": Role.WEIGHTS}
    together: ClassVar[bool] = True

    alpha: float = hyper(
        0.8, "price of rows that differ from shares of samples", 1e-6, source="authors' code", search="log:0.1..10"
    )
    lam: float = hyper(
        0.01, "lambda: pull towards the direction of the mixture", 0.0, source="authors' code", search="log:0.001..1"
    )
    same: float = hyper(0.9, "cosines above it count as 1", 0.0, 1.0, source="authors' code")
    sign: Literal["toward", "released"] = hyper("toward", "direction of the pull; the released code's leads away")
    over: Literal["heard", "round"] = hyper("heard", "who is mixed: everybody heard from, or the last round's clients")
    shared: Shared = hyper("model", PART, source="paper")
    local_steps: int = hyper(0, "batches per visit; 0: the task's epochs", 0, source="authors' code: 200")

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        client, M = {"theta": theta, "phi": phi}, task.clients
        start = shared_part(client, self.shared)
        gram = torch.zeros(M, M, dtype=torch.float64)
        return {"omega": start.expand(M, -1), "start": start, "gram": gram, "n": torch.zeros(M)}, client

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return self.send_many(task, server, [i])[0]

    def send_many(self, task: Task, server: Tree, ids: Sequence[int]) -> list[Tree]:
        rows = self.rows(server, torch.tensor(list(ids))).to(server["omega"].dtype)
        return [{"omega": mixed} for mixed in weights.mix(rows, server["omega"])]

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return installed(task, client, down["omega"], self.shared)

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        loss, given = (pulled, self._pull(task, down["omega"])) if self.lam else (task_loss, {})
        client = local.sgd(loss, client, given=given, steps=self.local_steps or None, replaced=True)
        return client, {"omega": shared_part(client, self.shared), "n": torch.tensor([float(local.n)])}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        own, new, gram = torch.tensor(list(ids)), [up["omega"] for up in ups], server["gram"].clone()
        omega = with_rows(server["omega"], own, new, task.donate)
        gram[own] = weights.inner_products(new, omega, server["start"], trainable(task, self.shared))
        gram[:, own] = gram[own].T
        n = server["n"].clone() if self.over == "heard" else torch.zeros_like(server["n"])
        n[own] = torch.cat([up["n"] for up in ups])
        return {**server, "omega": omega, "gram": gram, "n": n}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def watch(self, server: Tree) -> Tree:
        A = self.rows(server, torch.arange(len(server["n"]))).float()
        return {"A": A, "collaborators": exact_weights.collaborators(A), "groups": exact_weights.groups(A)}

    def claims(self) -> Claims:
        even = replace(self, alpha=EVEN, lam=0.0, over="round", local_steps=0)
        return Claims(
            regularisers=("lam",),
            resting=("start",),
            surrogate=self._cost,
            bare=replace(self, same=1.0),
            limits={"fedavg" if self.shared == "model" else "fedper": even},
        )

    def rows(self, server: Tree, own: Tensor) -> Tensor:
        """a_i [S, M] for the clients ``own``."""
        s, p = self._similarity(server["gram"], own), shares(server["n"])
        mixed = (server["n"] > 0).expand(len(own), -1).clone()
        mixed[torch.arange(len(own)), own] = True
        return simplex.project((p + s / (2 * self.alpha)).masked_fill(~mixed, -torch.inf))

    def _similarity(self, gram: Tensor, own: Tensor) -> Tensor:
        length = gram.diagonal().clamp(min=0).sqrt()
        s = gram[own] / (length[own, None] * length).clamp(min=torch.finfo(gram.dtype).tiny)
        s[torch.arange(len(own)), own] = 1.0
        return torch.where(s > self.same, 1.0, s)

    def _pull(self, task: Task, omega: Tensor) -> Tree:
        parts = [omega[piece] for piece in trainable(task, self.shared)]
        target = {f"toward_{name}": part for name, part in zip(("theta", "phi"), parts, strict=False)}
        return {**target, "lam": torch.tensor(self.lam if self.sign == "toward" else -self.lam)}

    def _cost(self, task: Task, old: Tree, new: Tree, i: int, up: Tree) -> Tensor:
        """alpha |a - p|^2 - s_i' a of the row in ``new``, with similarities and sizes after the upload."""
        after, own = self.absorb(task, old, [i], [], [up]), torch.tensor([i])
        a, s, p = self.rows(new, own)[0], self._similarity(after["gram"], own)[0], shares(after["n"])
        return self.alpha * (a - p).square().sum() - s @ a


def shares(n: Tensor) -> Tensor:
    """p [M]; all 0 before anybody was heard from."""
    return n.double() / n.sum().clamp(min=1)


def pulled(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """Loss of the model, less lambda times the cosine between it and what arrived."""
    names = [name for name in ("theta", "phi") if f"toward_{name}" in given]
    target = torch.cat([given[f"toward_{name}"] for name in names])
    own = torch.cat([params[name][: len(given[f"toward_{name}"])] for name in names])
    return task_loss(task, params, batch, given) - given["lam"] * F.cosine_similarity(own, target, 0)
