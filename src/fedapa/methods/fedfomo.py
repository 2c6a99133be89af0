"""FedFomo (Zhang et al., ICLR 2021): a client weighs the models of others by how much they lower its own loss.

Server: omega [M, D], the last model of every client; P [M, M], how much j's models have helped i; heard; rounds; seed
Down    m models of others, as they are: those with the highest P_ij, each place given to a random other one with
        probability max(0, explore - explore_decay t)
Client  on receipt, for every model that was offered and for its own last one w_i, with L on held-out samples:
        g_n = (L(w_prev) - L(w_n)) / |w_n - w_prev|;  w = sum_n g_n+ w_n / sum_n g_n+
        w_prev is what its last local training started from; if no g_n is positive, w = w_prev
        then E epochs from w on the other samples
Up      w_i, the g_n of the offered models
Server  P_ij <- P_ij + g_j

The held-out samples, ``holdout`` of the client's train data, never train and are the same in every round. The other
methods train on all of them: a comparison should say so.
A client receives other clients' models one by one, as they are, without being told whose they are.

Deviations:
- The client's own model is among the candidates, as in the paper. A public code takes it as the reference instead of
  w_prev, so that its own weight is 0 and its training is lost as soon as anybody helps.
- |.| is the Euclidean norm, as in public codes; the released code sums absolute values (``norm="l1"``).
- If nothing helps, the released code goes back to w_prev, which undoes a training that raised the held-out loss; public
  codes keep w_i (``fallback="keep"``).
- P adds the g_n as they are, as public codes do; the released code divides them by their sum first. Where P is tied,
  the order is drawn; a public code offers low numbers first and explores nothing. The released code seeds its draws
  anew every round, so that they repeat; here they are keyed by seed, round and client.
- Evaluated: the mixture as it arrives. The released code logs it beside the model after training; PFLlib shows the
  latter.
- The paper shares the whole model; with ``shared="extractor"`` all candidates are tried under the client's own head.

Without offers, with ``fallback="keep"`` and nothing held out it is local training. Idle clients: their last model goes
on being offered. Whoever was never heard from is offered last. A client that joins later begins without P: its first
offers are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedapa.core import exact_weights
from fedapa.core.tree import Tree, with_rows
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.methods.sharing import (
    PART,
    Shared,
    candidates,
    held_out,
    installed,
    losses_of,
    shared_part,
    trainable,
)
from fedapa.streams import stream
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss

Norm = Literal["l2", "l1"]


@dataclass(frozen=True)
class FedFomo(Method):
    roles: ClassVar[Roles] = {"groups": Role.CLUSTERS}

    offers: int = hyper(5, "m, how many models of others a client is sent", 0, source="authors' code", search="3,5,10")
    explore: float = hyper(
        0.3, "probability that an offered model is a random one", 0.0, 1.0, source="authors' code", search="0..1"
    )
    explore_decay: float = hyper(0.05, "how much less of it in every round", 0.0, 1.0, source="authors' code")
    holdout: float = hyper(
        0.2,
        "share of a client's samples that scores and never trains; 0: all do both",
        0.0,
        0.9,
        source="authors' code",
        search="0.1,0.2,0.3",
    )
    norm: Norm = hyper("l2", "length of the way to a model", source="public codes")
    fallback: Literal["back", "keep"] = hyper(
        "back", "if nothing helps: w_prev, or its own model", source="authors' code"
    )
    shared: Shared = hyper("model", PART, source="paper")

    @property
    def evaluated(self) -> When:
        return "before"

    @property
    def relative_cost(self) -> float:
        return 1 + self.offers * self.holdout / 6  # every offer scored on held-out samples

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        client, M = {"theta": theta, "phi": phi}, task.clients
        start = shared_part(client, self.shared)
        server = {
            "omega": start.expand(M, -1),
            "P": torch.zeros(M, M),
            "heard": torch.zeros(M),
            "rounds": torch.zeros(1, dtype=torch.int64),
            "seed": torch.tensor([seed]),
        }
        return server, {**client, "prev": start, "gains": torch.zeros(self._count(M))}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"][self.offered(server, i)]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        own, prev = shared_part(client, self.shared), client["prev"]
        models = torch.cat([down["omega"], torch.stack([own, prev])])
        with local.only(self._parts(local)[1]):
            losses = losses_of(task, candidates(task, client, models, self.shared), local).mean(0)
        way = torch.cat([models[:-1, piece] - prev[piece] for piece in trainable(task, self.shared)], 1)
        gains = helped(losses, way.norm(dim=1, p=2 if self.norm == "l2" else 1))
        mixed = mixture(gains, models[:-1], prev if self.fallback == "back" else own)
        return {**installed(task, client, mixed, self.shared), "gains": gains[:-1]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        with local.only(self._parts(local)[0]):
            model = local.sgd(task_loss, {k: client[k] for k in ("theta", "phi")})
        prev, up = shared_part(client, self.shared), shared_part(model, self.shared)
        return {**client, **model, "prev": prev}, {"omega": up, "gains": client["gains"]}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        P, heard = server["P"].clone(), server["heard"].clone()
        for i, up in zip(ids, ups, strict=True):
            P[i, self.offered(server, i)] += up["gains"]
            heard[i] = 1.0
        omega = with_rows(server["omega"], torch.tensor(list(ids)), [up["omega"] for up in ups], task.donate)
        return {**server, "omega": omega, "P": P, "heard": heard, "rounds": server["rounds"] + 1}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def watch(self, server: Tree) -> Tree:
        """Who has helped whom, and the groups of those who helped each other more than others."""
        return {"P": server["P"], "groups": exact_weights.found_groups(server["P"])}

    def claims(self) -> Claims:
        alone = replace(self, offers=0, fallback="keep", holdout=0.0)
        return Claims(adapts=True, resting=("seed",), limits={"local": alone})

    def offered(self, server: Tree, i: int) -> Tensor:
        """[m] whose models client i is sent in this round."""
        t, M = int(server["rounds"]), len(server["heard"])
        random, explore = stream(int(server["seed"]), "offers", t, i), max(0.0, self.explore - self.explore_decay * t)
        stays, lot = random.random(self._count(M)) >= explore, random.random(M)  # in this order: M may grow
        P, unheard = server["P"][i].cpu().numpy(), 1 - server["heard"].cpu().numpy()
        best, drawn = (order[order != i] for order in (np.lexsort((lot, -P, unheard)), np.lexsort((lot, unheard))))
        kept = best[: len(stays)][stays]
        return torch.from_numpy(np.concatenate([kept, drawn[~np.isin(drawn, kept)]])[: len(stays)])

    def _count(self, clients: int) -> int:
        return min(self.offers, clients - 1)

    def _parts(self, local: Local) -> tuple[Tensor, Tensor]:
        everything = torch.arange(local.n)
        return held_out(local, self.holdout) if self.holdout else (everything, everything)


def helped(losses: Tensor, way: Tensor) -> Tensor:
    """g [m + 1]: how much lower than the last loss the others are, per length of the way there; 0 without a way."""
    lower = losses[-1] - losses[:-1]
    return torch.where(way > 0, lower / way.clamp(min=torch.finfo(way.dtype).tiny), 0.0)


def mixture(gains: Tensor, models: Tensor, otherwise: Tensor) -> Tensor:
    """The mean of the models by their positive gains."""
    share = gains.clamp(min=0)
    return (share / share.sum()) @ models if share.sum() > 0 else otherwise
