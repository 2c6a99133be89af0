"""pFedMe (T. Dinh et al., NeurIPS 2020): FedAvg on the Moreau envelopes of the clients' losses.

Objective  min_w sum_i F_i(w) with F_i(w) = min_v f_i(v) + lambda/2 |v - w|^2, so that grad F_i(w) = lambda (w - v_i(w))
Down    w
Client  w_i = v_i = w; for every mini-batch: ``inner_steps`` gradient steps of size ``inner_lr`` on
        f_i(v_i; batch) + lambda/2 |v_i - w_i|^2, then one step on w_i with gradient lambda (w_i - v_i)
Up      w_i, n_i; the personal model v_i never leaves
Server  w <- (1 - beta) w + beta sum_i n_i w_i / sum_i n_i over the clients that answered

Deviations:
- The steps on w_i follow the run's training settings (rate, momentum, batch, epochs), as for every method. The authors
  take 20 mini-batches of 20 per visit (``local_steps=20``) without momentum.
- Between mini-batches v_i goes on from where it is, as in every public code; ``restart`` puts it back to w_i.
- The authors' inner optimiser has a weight decay of 0.001 that is in no formula. It is left out.
- Authors' code, PFLlib, FL-bench and fluke evaluate another model than v_i: the list of personal parameters is the
  network's own, which is overwritten by w_i (authors, PFLlib), or it is never written (FL-bench). So published rows are
  those of w_i. ``used="local"`` evaluates w_i here, and w as it arrives.
- PFLlib's default beta = 0 keeps w at its start for ever; fluke pulls v_i to itself.
- ``shared="extractor"`` averages extractors alone; the head of w_i then stays with its client.
- Statistics (BatchNorm) are those that the inner steps leave; neither step moves them.

The inner steps are stable while inner_lr (lambda + curvature) < 2, the outer ones while lr lambda stays well below 1.
With one inner step of size 1/lambda and ``restart`` the gradient of w_i is that of f_i, and w_i is FedAvg's model.
First round: v_i = w. Idle clients keep v_i; who never trained holds the common start. A newcomer needs one visit.
Evaluated: v_i after local training; before it, v_i as the client's last visit left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.common_part import SHARED, Shared, common_part, mean_part, with_common_part
from fedapa.methods.method import Claims, Method, Role, Roles, hyper
from fedapa.training.inner_steps import step
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task, proximal

PARTS = ("theta", "phi")


@dataclass(frozen=True)
class PFedMe(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    lam: float = hyper(
        15.0, "lambda: pull of the personal model to w_i", 0.0, source="authors' code", search="log:1..50"
    )
    inner_lr: float = hyper(
        0.01, "step size of the personal model", 0.0, source="authors' code, CIFAR-10", search="log:0.003..0.03"
    )
    inner_steps: int = hyper(5, "steps of the personal model per mini-batch", 1, source="authors' code", search="1,3,5")
    beta: float = hyper(1.0, "step of the server towards the mean", 0.0, source="authors' code", search="0.5..2")
    local_steps: int = hyper(0, "mini-batches per visit; 0: the task's epochs", 0, source="authors' code: 20")
    restart: bool = hyper(False, "the personal model starts from w_i at every mini-batch")
    used: Literal["personal", "local"] = hyper("personal", "the model in use: v_i (paper) or w_i (public codes)")
    shared: Shared = hyper("model", SHARED)

    @property
    def relative_cost(self) -> float:
        return float(self.inner_steps)  # a pass for every inner step

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        model = {"theta": theta, "phi": phi}
        return common_part(task, model, self.shared), {**model, **_as_personal(model)}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return dict(server)

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, **with_common_part(task, client, down)}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        model = {k: client[k] for k in PARTS}
        steps = self.local_steps or None
        found = local.sgd(self.envelope, model, carry=_as_personal(model), steps=steps, replaced=True)
        model = {k: found[k] for k in PARTS}
        personal = with_statistics(task, _personal(found), model)
        up = {**common_part(task, model, self.shared), "n": torch.tensor([float(local.n)])}
        return {**model, **_as_personal(personal)}, up

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {k: mean + (self.beta - 1) * (mean - server[k]) for k, mean in mean_part(ups).items()}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client if self.used == "local" else _personal(client), x)

    def envelope(self, task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
        """lambda/2 |w_i - v_i|^2 with v_i from the inner steps, a constant: its gradient is that of the envelope."""
        anchor = {k: v.detach() for k, v in params.items()}
        pulled = {"rho": torch.tensor(self.lam), **{f"anchor_{k}": v for k, v in anchor.items()}}
        personal = anchor if self.restart else _personal(given)
        for _ in range(self.inner_steps):
            personal = step(task, proximal, personal, batch, pulled, self.inner_lr)
        gaps = [(params[k] - personal[k]).square().sum() for k in PARTS]
        return 0.5 * self.lam * torch.stack(gaps).sum(), _as_personal(personal)

    def claims(self) -> Claims:
        lam = self.lam or 1.0
        plain = replace(self, lam=lam, inner_lr=1 / lam, inner_steps=1, beta=1.0, local_steps=0, restart=True)
        limits = {"fedavg": replace(plain, shared="model"), "fedper": replace(plain, shared="extractor")}
        return Claims(regularisers=("lam",), limits=limits)


def with_statistics(task: Task, model: Tree, other: Tree) -> Tree:
    """``model`` with the statistics (BatchNorm) of ``other``."""
    stops = {"theta": task.model.theta_trainable, "phi": task.model.phi_trainable}
    return {k: torch.cat([model[k][:stop], other[k][stop:]]) for k, stop in stops.items()}


def _as_personal(model: Tree) -> Tree:
    return {f"personal_{k}": model[k] for k in PARTS}


def _personal(tree: Tree) -> Tree:
    return {k: tree[f"personal_{k}"] for k in PARTS}
