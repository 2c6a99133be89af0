"""APPLE (Luo & Wu, IJCAI 2022): every client downloads all core models and learns how much of each it wants.

Client i owns a core model c_i and a vector p_i [M], free in sign and sum, which never leaves.
Down    the other M - 1 core models
Client  w_i = sum_j p_ij c_j, the personal model; E epochs of SGD on c_i and p_i, the other cores frozen, on
        F_i(w_i) + lambda(r) mu/2 |p_i - p_0|^2, with p_0 = n / N and lambda(r) falling to 0 at round L T
Up      c_i
Server  stores it

So dF/dc_i = p_ii g and dF/dp_ij = <g, c_j>, with g the gradient at w_i.
Deviations:
- Authors' code: mu |p - p_0|^2 without the half (set mu = 0.2); a new optimiser every round (ours follows
  the run's training settings, as for every method); learning rates that may decay by round (ours follow
  ``training.lr_schedule``; lr_p is constant).
- ``start``: the authors give each core its own random weights ("own"); as the other methods, we start from
  one common model by default, under which w_i is that model itself at first. PFLlib does so too.
- Limited bandwidth (at most K cores per round) is not built: all others are sent every round.
- PFLlib differs in so much that it is another algorithm: p stays at 1/M by default, its gradient is a mean
  instead of an inner product, the learning rate is multiplied by M, and the personal model is uploaded as
  the core.
- Statistics of the model (BatchNorm) are not mixed, since p need not sum to 1: w_i takes those of c_i.

Idle clients: their last core goes on being sent, their p_i waits; who never trained contributes the start.
A client with p = e_i and lr_p = 0 trains alone. With M = 1, p = 1. Evaluated: w_i after local training,
with the cores as downloaded at the client's last visit; before it, w_i from the newest cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core.tree import Tree, with_rows
from fedapa.methods.method import Claims, Method, hyper
from fedapa.training.engines.native import Mixture, Terms
from fedapa.training.fused import WholeModel, in_kernel
from fedapa.training.local import Local, own_start
from fedapa.training.task import Batch, Task, task_loss


@dataclass(frozen=True)
class APPLE(Method):
    lr_p: float = hyper(
        0.001, "learning rate of the relationship vector p", 0.0, source="authors' code", search="log:0.0001..0.01"
    )
    mu: float = hyper(0.1, "pull of p towards the sample shares", 0.0, source="authors' code", search="log:0.01..1")
    L: float = hyper(0.1, "share of the rounds in which p is pulled", 0.0, 1.0, source="authors' code")
    decay: Literal["exponential", "cosine"] = hyper("exponential", "how the pull fades", source="authors' code")
    start: Literal["common", "own"] = hyper("common", "cores start from one model or at random (authors' code)")

    relative_cost = 1.4
    revision = 1

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        core = task.join(theta, phi)
        cores = core.expand(task.clients, -1)
        if self.start == "own":
            starts = (_own_start(task, seed, j) for j in range(task.clients))
            cores = with_rows(cores, torch.arange(task.clients), starts)
        client = {
            "theta": theta,
            "phi": phi,
            "core": core,
            "p": _sample_shares(task),
            "begun": torch.zeros(1),
        }
        return {"cores": cores}, client

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"others": torch.cat([server["cores"][:i], server["cores"][i + 1 :]])}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        client = {**client, "p": longer(client["p"], task.clients)}
        if self.start == "own" and client["begun"] == 0:
            client = {**client, "core": task.join(*local.fresh()), "begun": torch.ones(1)}
        return self._personal(task, client, down, local.client)

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        i = local.client
        given = {
            "others": down["others"],
            "p_0": own_first(_sample_shares(task), i),
            "strength": torch.tensor(self.mu * self.fade(local.round, local.rounds)),
        }
        params = {**task.parts(client["core"]), "p": own_first(client["p"], i)}
        rates = {"theta": None, "phi": None, "p": self.lr_p}
        params = local.sgd(mixture, params, given=given, lr=rates, judge=mixture)
        core, p = task.join(params["theta"], params["phi"]), by_client(params["p"], i)
        return self._personal(task, {**client, "core": core, "p": p}, down, i), {"core": core}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        new = [up["core"] for up in ups]
        return {"cores": with_rows(server["cores"], torch.tensor(list(ids)), new, task.donate)}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> Claims:
        return Claims(regularisers=("mu",))

    def fade(self, r: int, rounds: int) -> float:
        """lambda(r), from 1 at the first round to 0 from round L T on."""
        end = self.L * rounds
        if r >= end:
            return 0.0
        return 0.001 ** (r / end) if self.decay == "exponential" else (math.cos(math.pi * r / end) + 1) / 2

    def _personal(self, task: Task, client: Tree, down: Tree, i: int) -> Tree:
        core = task.parts(client["core"])
        return {**client, **combine(task, core, own_first(client["p"], i), down["others"])}


def _terms(tree: Tree) -> Terms:
    return Terms(mixture=Mixture(tree["others"], tree["p_0"], float(tree["strength"])))


@in_kernel(WholeModel(_terms, extra="p"))
def mixture(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """Loss of the personal model in the own core [theta; phi] and in p (own entry first)."""
    model = combine(task, params, params["p"], given["others"])
    pull = (params["p"] - given["p_0"]).square().sum()
    return task_loss(task, model, batch, {}) + 0.5 * given["strength"] * pull


def combine(task: Task, core: Tree, p: Tensor, others: Tensor) -> Tree:
    """The personal model p[0] core + p[1:] @ others; statistics (BatchNorm) are those of the own core."""
    rest = task.parts(p[1:] @ others)
    stops = {"theta": task.model.theta_trainable, "phi": task.model.phi_trainable}
    mixed = {k: p[0] * core[k] + rest[k] for k in stops}
    return {k: torch.cat([mixed[k][:stop], core[k][stop:]]) for k, stop in stops.items()}


def own_first(p: Tensor, i: int) -> Tensor:
    """p [M] by client becomes p in the order of the cores at client i: its own, then the others."""
    return torch.cat([p[i : i + 1], p[:i], p[i + 1 :]])


def by_client(p: Tensor, i: int) -> Tensor:
    """The way back."""
    return torch.cat([p[1 : i + 1], p[:1], p[i + 1 :]])


def longer(p: Tensor, clients: int) -> Tensor:
    """p with 0 for clients that joined since."""
    return F.pad(p, (0, clients - len(p)))


def _sample_shares(task: Task) -> Tensor:
    return task.sizes / task.sizes.sum()


def _own_start(task: Task, seed: int, j: int) -> Tensor:
    """The start that ``Local.fresh`` gives client j, so that server and client agree without sending it."""
    return task.join(*task.init(own_start(seed, j)))
