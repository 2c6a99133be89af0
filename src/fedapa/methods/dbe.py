"""DBE (Zhang et al., NeurIPS 2023): FedAvg plus a private bias on the features, and their mean aligned.

First round, the initialisation phase (``ready`` = 0): plain local training that tracks the running mean of
        features m <- (1 - mu) m + mu mean_batch(z), from m = 0; the server averages the m_i by samples to the
        consensus mean, which stays for ever, and discards the trained models
Down    omega, mean, ready
Client  logits = head(z + b_i); cross-entropy + kappa * mean_d 1/2 (m - mean)^2 with m as above, again from 0,
        and a gradient through the current batch only; b_i is trained along, starts at 0 and never leaves
Up      omega_i, n_i, m_i
Server  omega <- sum_i n_i omega_i / sum_i n_i over the clients that answered

Deviations:
- mu = 1 and kappa = 50 are those of the authors' run script. The defaults of their program, and of PFLlib,
  leave the mean regularisation off (kappa = 0).
- The authors let all clients take part in the initialisation. Here it is the first round with whoever
  answers, so of T rounds T - 1 train the global model; ``keep_first=True`` keeps the models of that round
  too.
- Mean and flag travel in every message, so that shapes are static: d + 1 floats more than FedAvg down, d up
  (340 and 336 bytes beside 248,024 on LeNet-5); a wire could send them once.
- b_i has the rate and the momentum of everything else. ``train_bias=False`` freezes it.
- Evaluated: the global omega with the client's own b_i, before local training.
- Idle clients keep b_i; who missed the first round gets the same mean as all others; who never trained has
  b_i = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean, upload
from fedapa.methods.method import Method, When, hyper
from fedapa.task.local import Local
from fedapa.task.task import Batch, Task


@dataclass(frozen=True)
class DBE(Method):
    kappa: float = hyper(50.0, "strength of the mean regularisation", 0.0, source="authors' run script")
    mu: float = hyper(1.0, "share of the batch in the running mean", 0.0, 1.0, source="authors' run script")
    train_bias: bool = hyper(True, "train the bias vector; off leaves it at 0")
    keep_first: bool = hyper(False, "keep the models of the initialisation phase", source="paper: discarded")

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        server = {"omega": task.join(theta, phi), "mean": torch.zeros(task.d), "ready": torch.zeros(1)}
        return server, {"theta": theta, "phi": phi, "b": torch.zeros(task.d)}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return dict(server)

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, **task.parts(down["omega"])}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        given = {
            "mean": down["mean"], "ready": down["ready"],
            "kappa": torch.tensor(self.kappa), "mu": torch.tensor(self.mu), "b": client["b"],
        }  # fmt: skip
        params = client if self.train_bias else {k: client[k] for k in ("theta", "phi")}
        trained = local.sgd(debiased, params, given=given, carry={"m": torch.zeros(task.d)})
        client = {k: trained.get(k, client[k]) for k in client}
        return client, {**upload(task, client, local), "mean": trained["m"]}

    def absorb(
        self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]
    ) -> Tree:
        ready = bool(server["ready"] > 0)
        return {
            "omega": sample_mean(ups, "omega") if ready or self.keep_first else server["omega"],
            "mean": server["mean"] if ready else sample_mean(ups, "mean"),
            "ready": torch.ones(1),
        }

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.logits(client, task.features(client, x) + client["b"])


def debiased(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    """Cross-entropy of head(z + b) plus the pull of m to the consensus mean; both off until ready."""
    both = {**given, **params}
    z = task.features(both, batch.x)
    m = (1 - given["mu"]) * given["m"] + given["mu"] * z.mean(0)
    loss = F.cross_entropy(task.logits(both, z + given["ready"] * both["b"]), batch.y)
    pull = 0.5 * (m - given["mean"]).square().mean()
    return loss + (given["ready"] * given["kappa"]).squeeze() * pull, {"m": m}
