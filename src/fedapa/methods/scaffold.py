"""SCAFFOLD (Karimireddy et al., ICML 2020): local steps corrected by how a client's gradients differ from all others'.

Server  w, and c, the mean of all clients' control variates c_i; client c_i. All c start at 0; ``counted`` says whose
        c_i are in the mean
Down    w, c
Client  K local steps w_i <- w_i - lr (grad f_i(w_i) - c_i + c) from w_i = w
        c_i <- c_i - c + (w - w_i) / (a lr), the mean of its gradients on the way (option II); a = K without momentum
Up      w_i
Server  w <- w + server_lr mean_i(w_i - w) over the clients that answered
        c <- c + 1/M sum_i (new c_i - old c_i), which is (w - w_i) / (a lr) - c and needs no upload of its own

So c = 1/M sum_i c_i after every round, whoever took part.
Deviations:
- The paper uploads the change of c_i as well. The server can compute it, because K follows from the number of samples
  that a client declared; this saves a quarter of the bytes.
- Momentum rho is none in the paper. With it, (w - w_i) / lr is a sum of gradients with weights that add up to
  a = (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho) instead of K, which is up to 10 K at rho = 0.9. Dividing by K
  makes c_i so much too large. Here a is used and momentum starts at 0 at every visit. Weight decay and clipped
  gradients enter c_i. Whatever optimiser, schedule and patience a run has, this method trains with SGD at the rate
  ``training.lr``: from other steps c_i could not be read off.
- Option I of the paper (c_i is the gradient at w over all data) is not built.
- ``average="samples"`` weighs both sums by samples, so that corrections go on cancelling; the paper has no weights.
- FL-bench never writes c_i back, so that its correction is +c. fluke weighs models by samples and c uniformly. PFLlib
  divides by the planned number of participants. NIID-Bench starts all c from a random network.
- ``shared="extractor"``: c covers the extractor alone, heads stay private.
- ``correct=False`` leaves c at 0, which is FedAvg.

K = 1 with all clients is FedAvg without weights, because the corrections add up to 0. Idle clients keep c_i. A newcomer
begins with c_i = 0 and enters the mean with its first upload; nobody's message changes before. Evaluated: the global
model as it arrives; ``fine_tune`` uses the one after training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedapa.core.tree import Tree, weighted_mean
from fedapa.methods.common_part import SHARED, Shared, common_part, with_common_part
from fedapa.methods.method import Claims, Method, When, hyper
from fedapa.training.local import Local
from fedapa.training.optimizers import Rule
from fedapa.training.settings import Training
from fedapa.training.task import Batch, Task, task_loss


@dataclass(frozen=True)
class Scaffold(Method):
    server_lr: float = hyper(
        1.0, "step of the server towards the mean", 0.0, source="paper, experiments", search="0.5..1.5"
    )
    average: Literal["clients", "samples"] = hyper("clients", "weights of clients in both means", source="paper")
    correct: bool = hyper(True, "correct local steps; off is FedAvg")
    fine_tune: bool = hyper(False, "the model in use is the one after the client's own epochs")
    shared: Shared = hyper("model", SHARED)

    @property
    def evaluated(self) -> When:
        return "after" if self.fine_tune else "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        model = {"theta": theta, "phi": phi}
        part = common_part(task, model, self.shared)
        c = torch.zeros_like(part[_name(part)])
        return {**part, "c": c, "counted": torch.ones(task.clients)}, {**model, "c": c.clone()}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {name: leaf for name, leaf in server.items() if name != "counted"}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, **with_common_part(task, client, down)}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        model = {k: client[k] for k in ("theta", "phi")}
        model = local.sgd(
            corrected, model, given={"c": down["c"], "own": client["c"]}, memory=None, **self._plain(task)
        )
        up = common_part(task, model, self.shared)
        return {**model, "c": client["c"] + self._change(task, local.n, down, up)}, up

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        name, weights, sizes = _name(server), self._weights(task), task.sizes.tolist()
        mean = weighted_mean([up[name] for up in ups], weights[list(ids)])
        changes = [weights[i] * self._change(task, sizes[i], *pair) for i, *pair in zip(ids, downs, ups, strict=True)]
        counted = server["counted"].index_fill(0, torch.tensor(list(ids)), 1.0)
        c = (weights @ server["counted"] * server["c"] + torch.stack(changes).sum(0)) / (weights @ counted)
        return {name: mean + (self.server_lr - 1) * (mean - server[name]), "c": c, "counted": counted}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def _change(self, task: Task, samples: int, down: Tree, up: Tree) -> Tensor:
        """How a visit changes c_i, from what went down and up: both sides compute it."""
        name, training = _name(down), task.training
        steps = local_steps(training, samples)
        if not self.correct or steps == 0:
            return torch.zeros_like(down["c"])
        return (down[name] - up[name]) / (total_weight(steps, training.momentum) * training.lr) - down["c"]

    def _plain(self, task: Task) -> dict[str, Any]:
        """c_i is read off the way of SGD at one rate, so a correction is trained in no other way."""
        training = task.training
        rule = Rule(training.momentum, training.weight_decay)
        return {"lr": training.lr, "rule": rule} if self.correct else {}

    def remarks(self, task: Task) -> list[str]:
        training, plain = task.training, Training()
        told = ("optimizer", "nesterov", "lr_schedule", "lr_warmup", "lr_theta", "lr_phi", "patience")
        if not self.correct or all(getattr(training, name) == getattr(plain, name) for name in told):
            return []
        return ["its corrections are read off plain SGD: it trains with that, at the rate training.lr in every round"]

    def _weights(self, task: Task) -> Tensor:
        """[M] of the clients, in both means."""
        return task.sizes.float() if self.average == "samples" else torch.ones(task.clients)

    def claims(self) -> Claims:
        plain = replace(self, correct=False, average="samples", server_lr=1.0)
        limits = {"fedavg": replace(plain, shared="model"), "fedper": replace(plain, shared="extractor")}
        return Claims(resting=("counted",), limits=limits)


def corrected(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """Cross-entropy plus <c - c_i, params>, whose gradient is the correction."""
    push = given["c"] - given["own"]
    return task_loss(task, params, batch, {}) + push @ task.join(params["theta"], params["phi"])[: len(push)]


def local_steps(training: Training, samples: int) -> int:
    """K: the mini-batches of a visit."""
    whole, rest = divmod(samples, training.batch)
    return training.epochs * (whole if whole and training.drop_last else whole + (rest > 0))


def total_weight(steps: int, momentum: float) -> float:
    """a: what the weights of all gradients in K steps add up to; K itself without momentum."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def _name(tree: Tree) -> str:
    return "theta" if "theta" in tree else "omega"
