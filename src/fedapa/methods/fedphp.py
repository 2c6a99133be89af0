"""FedPHP (Li et al., ECML-PKDD 2021): an inherited private model teaches the one that arrives.

Down    w
Client  E epochs on (1 - lambda) CE(w_i) + lambda R(w_i, h_i) from w_i = w, with h_i frozen; R is
        mmd: squared maximum mean discrepancy of the batch features of w_i and h_i, with 5 RBF kernels of
             bandwidth (1/4, 1/2, 1, 2, 4) x mean squared distance (held constant), biased estimator
        kd:  cross-entropy of w_i's softmax against softmax(logits of h_i / 4)
        h_i <- mu_i h_i + (1 - mu_i) w_i with mu_i = min(mu q_i / (Q T), mu), q_i visits before this one
Up      w_i, n_i; h_i never leaves
Server  w <- sum_i n_i w_i / sum_i n_i over the clients that answered

Deviations:
- Authors' code: lr 0.03, weight decay 1e-5, gradients clipped at norm 100; here the run's common training
  settings.
- lambda: authors' code uses 0.05 (both R) and 0.1 (mmd); default 0.05. mu: the authors' constant 0.9.
- Q T is the number of visits that a client expects; Q is the run's mean share of clients per round unless it is
  set. The authors round Q T down; we do not.
- A new optimiser at every visit, as in the authors' code.
- PFLlib: mmd with 4 fixed bandwidths, lambda 1 (no cross-entropy at all), mu_i by round and 0 by default,
  and it scores w_i. ``used="local"`` scores w_i here too.
- The bandwidth has a floor of 1e-3, reached only when all features of a batch coincide (one-sample
  clients), where the authors' quotient is 0/0.

First visit: mu_i = 0, so h_i becomes a copy of w_i; until then h_i is the common start and also teaches (as
in the authors' code). Idle clients keep h_i; never-sampled ones show the start. Missing classes: R looks at
own batches only. lambda = 0 is FedAvg plus a moving average. Evaluated: h_i after local training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean, upload
from fedapa.methods.method import Claims, Method, Role, Roles, hyper
from fedapa.training.engines.native import Mmd, SoftLabels, Terms
from fedapa.training.fused import WholeModel, in_kernel
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # each half of the next: the kernel computes one from the other
FLOOR = 1e-3
TEMPERATURE = 4.0


@dataclass(frozen=True)
class FedPHP(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    lam: float = hyper(
        0.05, "lambda: share of the teacher's loss", 0.0, 1.0, source="authors' code", search="log:0.01..0.5"
    )
    mu: float = hyper(
        0.9, "largest share of the past in the inherited model", 0.0, 1.0, source="authors' code", search="0.5..0.99"
    )
    Q: float = hyper(0.0, "share of rounds that a client takes part in; 0: the run's", 0.0, 1.0, source="paper")
    regulariser: Literal["mmd", "kd"] = hyper("mmd", "features (mmd) or soft labels (kd) are taught", source="paper")
    used: Literal["inherited", "local"] = hyper("inherited", "the model in use: h_i (paper) or w_i (PFLlib)")

    relative_cost = 1.3
    revision = 1

    @property
    def needs_classes(self) -> bool:
        return self.regulariser != "mmd"  # the teacher's answers are softened logits

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        inherited = {"inherited_theta": theta, "inherited_phi": phi, "visits": torch.zeros(1)}
        return {"omega": task.join(theta, phi)}, {"theta": theta, "phi": phi, **inherited}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, **task.parts(down["omega"])}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        teacher = {k: client[k] for k in ("inherited_theta", "inherited_phi")}
        loss = taught_features if self.regulariser == "mmd" else taught_labels
        given = {**teacher, "lam": torch.tensor(self.lam)}
        model = local.sgd(loss, task.parts(down["omega"]), given=given, replaced=True)
        mu = self._mu(client["visits"], self._share(task) * local.rounds)
        inherited = {f"inherited_{k}": mu * client[f"inherited_{k}"] + (1 - mu) * v for k, v in model.items()}
        return {**model, **inherited, "visits": client["visits"] + 1}, upload(task, model, local)

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {**server, "omega": sample_mean(ups, "omega")}

    @property
    def needs_head(self) -> bool:
        return self.regulariser == "mmd"  # which compares features

    def shown(self, client: Tree) -> Tree:
        return client if self.used == "local" else {k: client[k] for k in ("inherited_theta", "inherited_phi")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client if self.used == "local" else _teacher(client), x)

    def claims(self) -> Claims:
        return Claims(regularisers=("lam",), limits={"fedavg": replace(self, lam=0.0)})

    def _share(self, task: Task) -> float:
        return self.Q or task.participation

    def _mu(self, visits: Tensor, expected: float) -> Tensor:
        return (self.mu * visits / max(expected, 1.0)).clamp(max=self.mu)


def _features(tree: Tree) -> Terms:
    lam = float(tree["lam"])
    return Terms(1 - lam, teacher=Mmd(tree["inherited_theta"], lam, max(BANDWIDTHS), len(BANDWIDTHS), FLOOR))


def _labels(tree: Tree) -> Terms:
    lam = float(tree["lam"])
    return Terms(1 - lam, teacher=SoftLabels(tree["inherited_theta"], tree["inherited_phi"], lam, TEMPERATURE))


@in_kernel(WholeModel(_features))
def taught_features(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """(1 - lambda) CE + lambda MMD^2 between the features of the student and of its teacher."""
    z = task.features(params, batch.x)
    with torch.no_grad():
        target = task.features(_teacher(given), batch.x)
    own = task.loss(task.logits(params, z), batch.y)
    return (1 - given["lam"]) * own + given["lam"] * mmd(z, target)


@in_kernel(WholeModel(_labels))
def taught_labels(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """(1 - lambda) CE + lambda cross-entropy against the teacher's softened answers."""
    logits = task.predict(params, batch.x)
    with torch.no_grad():
        target = (task.predict(_teacher(given), batch.x) / TEMPERATURE).softmax(1)
    return (1 - given["lam"]) * task.loss(logits, batch.y) + given["lam"] * F.cross_entropy(logits, target)


def mmd(z: Tensor, target: Tensor) -> Tensor:
    """Biased squared maximum mean discrepancy of two sets of n features, under a sum of RBF kernels."""
    both, n = torch.cat([z, target]), len(z)
    square = both.square().sum(1)
    gaps = (square[:, None] + square - 2 * both @ both.T).clamp(min=0)
    width = (gaps.detach().sum() / (2 * n * (2 * n - 1))).clamp(min=FLOOR)
    kernel = torch.stack([torch.exp(-gaps / (b * width)) for b in BANDWIDTHS]).sum(0)
    return (kernel[:n, :n] + kernel[n:, n:] - kernel[:n, n:] - kernel[n:, :n]).mean()


def _teacher(tree: Tree) -> Tree:
    return {"theta": tree["inherited_theta"], "phi": tree["inherited_phi"]}
