"""APFL (Deng et al., 2020): a private model, mixed with the global one by a share that every client learns.

Client  v_i, a model of its own, and alpha_i, its share in the personal model u_i = alpha_i v_i + (1 - alpha_i) w_i
Down    w
Client  alpha_i <- clip(alpha_i - alpha_lr <v_i - w, grad f_i(u_i)>, 0, 1) on one mini-batch
        then for every mini-batch, from w_i = w:  a step on w_i with grad f_i(w_i), as in FedAvg
                                                  a step on v_i with alpha_i grad f_i(u_i), w_i taken as constant
Up      w_i, n_i; v_i and alpha_i never leave
Server  w <- sum_i n_i w_i / sum_i n_i over the clients that answered

Momentum stays with v_i, which goes on, and starts afresh for w_i, which was replaced.
Deviations:
- The authors' code (FedTorch), FL-bench and FL4Health mix the two models' logits instead of their parameters, which is
  the same for linear models only: ``mix="logits"``.
- alpha is learned by default; the authors' code fixes it at 0.5 unless told otherwise (``alpha_lr=0``). All codes
  add 0.02 alpha to its gradient, a pull to the global model that is in no formula; it is left out.
- PFLlib starts from alpha = 1, trains v_i on its own loss instead of the mixture's, and overwrites v_i by the mixture
  at every visit. FL-bench applies the gradient of w_i twice.
- ``start``: v_i begins as the w of the client's first visit ("received"), so that a client that comes late mixes no
  random network. With "common" it begins as the common start, as it does in the paper, where all come at once.
- Statistics (BatchNorm) of the mixture are those of w_i.

alpha = 0 is FedAvg, alpha = 1 Local (each with ``alpha_lr=0``; Local with ``start="common"``). Idle clients keep v_i
and alpha_i; who never trained is shown w. Evaluated: u_i after local training; before it, v_i mixed with the new w.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean, upload
from fedapa.methods.method import Claims, Method, Role, Roles, hyper
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task, task_loss

STREAMS = 10_000  # the step on alpha draws from a stream of its own: local training sees the batches of FedAvg's
PARTS = ("theta", "phi")


@dataclass(frozen=True)
class APFL(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    alpha: float = hyper(
        0.5, "share of the private model at the start", 0.0, 1.0, source="authors' code", search="0.1..0.9"
    )
    alpha_lr: float = hyper(
        0.01, "learning rate of that share; 0: it is fixed", 0.0, source="paper: the model's", search="log:0.001..1"
    )
    mix: Literal["parameters", "logits"] = hyper("parameters", "what of the two models is mixed", source="paper")
    start: Literal["received", "common"] = hyper("received", "the private model's start: the first w, or everybody's")

    relative_cost = 2.0  # two models

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        model = {"theta": theta, "phi": phi}
        begun = torch.tensor([float(self.start == "common")])
        client = {**model, **_named("own", model), "alpha": torch.tensor([self.alpha]), "begun": begun}
        return {"omega": task.join(theta, phi)}, {**client, **self._beside(model)}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return self._mixed(task, _begun(client, task.parts(down["omega"])), task.parts(down["omega"]))

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        w, own = task.parts(down["omega"]), {f"own_{k}": client[f"own_{k}"] for k in PARTS}
        alpha = self._learned(client, {**own, **_named("w", w)}, local)
        found = local.sgd(self.both, {**w, **own}, given={"alpha": alpha})
        _forget_replaced(task, local)
        w = {k: found[k] for k in PARTS}
        client = {**client, **{k: found[k] for k in own}, "alpha": alpha, "begun": torch.ones(1)}
        return self._mixed(task, client, w), upload(task, w, local)

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {**server, "omega": sample_mean(ups, "omega")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x) if self.mix == "parameters" else self._logits(task, client, x)

    def both(self, task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
        """Loss of the mixture, in the private model alone, plus that of w_i."""
        fixed = {f"w_{k}": params[k].detach() for k in PARTS}
        return self.mixture(task, {**params, **fixed}, batch, given) + task_loss(task, params, batch, {})

    def mixture(self, task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
        """Loss of the personal model."""
        tree = {**given, **params}
        if self.mix == "logits":
            return task.loss(self._logits(task, tree, batch.x), batch.y)
        return task_loss(task, mixed(task, tree), batch, {})

    def _logits(self, task: Task, tree: Tree, x: Tensor) -> Tensor:
        return torch.lerp(task.predict(_part(tree, "w"), x), task.predict(_part(tree, "own"), x), tree["alpha"])

    def _learned(self, client: Tree, models: Tree, local: Local) -> Tensor:
        if self.alpha_lr == 0:
            return client["alpha"]
        found = replace(local, calls=STREAMS).sgd(
            self.mixture, {"alpha": client["alpha"]}, given=models, steps=1, lr=self.alpha_lr, momentum=0.0,
            weight_decay=0.0, project=unit_interval, memory=None,
        )  # fmt: skip
        return found["alpha"]

    def _mixed(self, task: Task, client: Tree, w: Tree) -> Tree:
        return {**client, **mixed(task, {**client, **_named("w", w)}), **self._beside(w)}

    def _beside(self, w: Tree) -> Tree:
        """Logits are mixed when the model is used, which takes w_i itself."""
        return _named("w", w) if self.mix == "logits" else {}

    def claims(self) -> Claims:
        fixed = replace(self, alpha_lr=0.0, mix="parameters", start="common")
        return Claims(limits={"fedavg": replace(fixed, alpha=0.0), "local": replace(fixed, alpha=1.0)})


def mixed(task: Task, tree: Tree) -> Tree:
    """alpha own + (1 - alpha) w, exactly one of them at 1 and 0; statistics are those of w."""
    stops = {"theta": task.model.theta_trainable, "phi": task.model.phi_trainable}
    both = {k: torch.lerp(tree[f"w_{k}"][:stop], tree[f"own_{k}"][:stop], tree["alpha"]) for k, stop in stops.items()}
    return {k: torch.cat([both[k], tree[f"w_{k}"][stop:]]) for k, stop in stops.items()}


def unit_interval(params: Tree) -> Tree:
    return {"alpha": params["alpha"].clamp(0, 1)}


def _begun(client: Tree, w: Tree) -> Tree:
    """A client at its first visit has w for its private model."""
    own = {f"own_{k}": torch.where(client["begun"] > 0, client[f"own_{k}"], w[k]) for k in PARTS}
    return {**client, **own}


def _forget_replaced(task: Task, local: Local) -> None:
    """The momentum of w_i belongs to weights that the next visit replaces."""
    if task.training.keep_momentum == "auto":
        gone = ("main/theta", "main/phi")  # and Adam's further moments below these names
        local.memory = {k: v for k, v in local.memory.items() if "/".join(k.split("/")[:2]) not in gone}


def _named(name: str, model: Tree) -> Tree:
    return {f"{name}_{k}": model[k] for k in PARTS}


def _part(tree: Tree, name: str) -> Tree:
    return {k: tree[f"{name}_{k}"] for k in PARTS}
