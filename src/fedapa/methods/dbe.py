"""DBE (Zhang et al., NeurIPS 2023): FedAvg plus a private bias on the features, and their mean aligned.

First round, the initialisation phase (``ready`` = 0): plain local training that tracks the running mean of
        features m <- (1 - mu) m + mu mean_batch(z), from m = 0; the server averages the m_i by samples to the
        consensus mean, which stays for ever, and discards the trained models
Down    omega, and the mean once to every client
Client  logits = head(z + b_i); cross-entropy + kappa * mean_d 1/2 (m - mean)^2 with m as above, again from 0,
        and a gradient through the current batch only; b_i is trained along, starts at 0 and never leaves
Up      omega_i, n_i; in the first round m_i, n_i
Server  omega <- sum_i n_i omega_i / sum_i n_i over the clients that answered

Deviations:
- mu = 1 and kappa = 50 are those of the authors' run script, for features 512 wide. The pull of one feature is
  kappa / d, so the same kappa pulls six times as hard at d = 84. ``width`` = 512 keeps the pull of one feature:
  kappa is scaled by d / width. ``width`` = 0 takes kappa as it is. The defaults of the authors' program, and of
  PFLlib, leave the mean regularisation off (kappa = 0).
- The authors let all clients take part in the initialisation. Here it is the first round with whoever
  answers, so of T rounds T - 1 train the global model; ``keep_first=True`` keeps the models of that round
  too.
- The server remembers whom it told the mean (whose first upload after it was accepted); who missed a round is told
  later. A flag of one float in every message says which of the three phases it is.
- b_i has the rate and the momentum of everything else. Momentum starts afresh at every visit; the authors have none.
  ``train_bias=False`` freezes it.
- Evaluated: the global omega with the client's own b_i, before local training.
- Idle clients keep b_i; who missed the first round gets the same mean as all others; who never trained has
  b_i = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean, upload
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.training.engines.native import MeanPull, Terms
from fedapa.training.fused import WholeModel, in_kernel
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task

FINDING, TELLING = 0, 1  # phases of a message: the mean is being found, is told now; 2: was told before


@dataclass(frozen=True)
class DBE(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    kappa: float = hyper(
        50.0, "strength of the mean regularisation", 0.0, source="authors' run script", search="log:0.5..500"
    )
    width: int = hyper(512, "width of the features that kappa is meant for; 0: any", 0, source="authors' CNN")
    mu: float = hyper(
        1.0, "share of the batch in the running mean", 0.0, 1.0, source="authors' run script", search="0.1..1"
    )
    train_bias: bool = hyper(True, "train the bias vector; off leaves it at 0")
    keep_first: bool = hyper(False, "keep the models of the initialisation phase", source="paper: discarded")

    needs_head = True
    relative_cost = 1.1
    revision = 1

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        server = {"omega": task.join(theta, phi), "mean": torch.zeros(task.d), "ready": torch.zeros(1)}
        client = {"theta": theta, "phi": phi, "b": torch.zeros(task.d), "mean": torch.zeros(task.d)}
        return {**server, "told": torch.zeros(task.clients)}, client

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        phase = server["ready"] * (1 + server["told"][[i]])
        down = {"omega": server["omega"], "phase": phase}
        return {**down, "mean": server["mean"]} if phase == TELLING else down

    def phase(self, down: Tree) -> int:
        return int(down["phase"])

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, **task.parts(down["omega"]), "mean": down.get("mean", client["mean"])}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        given = {
            "mean": client["mean"],
            "ready": (down["phase"] > FINDING).float(),
            "kappa": torch.tensor(self.pull(task.d)),
            "mu": torch.tensor(self.mu),
            "b": client["b"],
        }
        params = {k: client[k] for k in ("theta", "phi", "b") if self.train_bias or k != "b"}
        trained = local.sgd(debiased, params, given=given, carry={"m": torch.zeros(task.d)}, replaced=True)
        client = {k: trained.get(k, client[k]) for k in client}
        up = upload(task, client, local)
        if down["phase"] > FINDING:
            return client, up
        return client, {**up, "mean": trained["m"]} if self.keep_first else {"n": up["n"], "mean": trained["m"]}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        ready, told = bool(server["ready"] > 0), server["told"].clone()
        if ready:
            told[list(ids)] = 1.0
        return {
            "omega": sample_mean(ups, "omega") if ready or self.keep_first else server["omega"],
            "mean": server["mean"] if ready else sample_mean(ups, "mean"),
            "ready": torch.ones(1),
            "told": told,
        }

    def pull(self, d: int) -> float:
        """Strength of the mean regularisation for features of size d."""
        return self.kappa * d / self.width if self.width else self.kappa

    def claims(self) -> Claims:
        plain = replace(self, kappa=0.0, train_bias=False, keep_first=True)
        return Claims(regularisers=("kappa",), limits={"fedavg": plain})

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.logits(client, task.features(client, x) + client["b"])


def _terms(tree: Tree) -> Terms:
    ready = float(tree["ready"])
    mean = MeanPull(tree["m"], tree["mean"], float(tree["mu"]), ready * float(tree["kappa"]))
    return Terms(mean=mean, shift=ready)


@in_kernel(WholeModel(_terms, extra="b", carry="m"))
def debiased(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    """Cross-entropy of head(z + b) plus the pull of m to the consensus mean; both off until ready."""
    both = {**given, **params}
    z = task.features(both, batch.x)
    m = (1 - given["mu"]) * given["m"] + given["mu"] * z.mean(0)
    loss = task.loss(task.logits(both, z + given["ready"] * both["b"]), batch.y)
    pull = 0.5 * (m - given["mean"]).square().mean()
    return loss + (given["ready"] * given["kappa"]).squeeze() * pull, {"m": m}
