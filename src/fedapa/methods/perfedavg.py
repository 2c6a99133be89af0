"""Per-FedAvg (Fallah et al., NeurIPS 2020): a start from which one gradient step on own data makes a good model.

Objective  min_w sum_i f_i(w - alpha grad f_i(w)), as in MAML
Down    w
Client  every mini-batch is cut in two: w' = w_i - alpha grad f_i(w_i; first half), then a step on w_i with gradient
        first:  grad f_i(w'; second half), the first-order form
        exact:  (I - alpha Hess f_i(w_i; first half)) grad f_i(w'; second half)
Up      w_i, n_i
Server  w <- sum_i n_i w_i / sum_i n_i over the clients that answered
Use     w after ``adapt_steps`` steps of size alpha on mini-batches of the client's own train data

Deviations:
- The paper has three independent batches; here the Hessian is that of the first half. ``split=False`` takes the whole
  batch for all. A batch is not cut where a half would be empty, or be one sample for BatchNorm.
- The paper's second approximation (HF) replaces the product with the Hessian by a difference of two gradients, for
  those without second derivatives. Here the product is exact and costs one backward pass more.
- There is no code by the authors. The paper's beta is the run's learning rate; its momentum applies to the steps on
  w_i, not to those of size alpha. alpha = 0.01 is FL-bench's; PFLlib has 0.005, pFedGraph's copy 0.001.
- The paper averages without weights; here clients are weighted by samples, as in FedAvg.
- The repository of pFedMe takes the personal step on *test* batches with their labels. Here only train data are used.
- fluke never goes back to w_i before the second step; pFedGraph's copy evaluates w_i without the step of size alpha.
- ``shared="extractor"``: the head of w_i stays with its client.

Idle and never-sampled clients keep nothing (the head of w_i with ``shared="extractor"``) and adapt the current w; a
newcomer does the same. alpha = 0 with whole batches is FedAvg. Evaluated: w as it arrives, adapted; after local
training, w_i adapted in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.common_part import SHARED, Shared, common_part, mean_part, with_common_part
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.training.inner_steps import step
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task, task_loss

STREAMS = 10_000  # personal steps draw from streams of their own: local training sees the batches that FedAvg's would


@dataclass(frozen=True)
class PerFedAvg(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    alpha: float = hyper(0.01, "size of a personal step", 0.0, source="FL-bench", search="log:0.001..0.1")
    adapt_steps: int = hyper(1, "personal steps that make the model in use", 0, source="paper", search="1,5,20")
    order: Literal["first", "exact"] = hyper("first", "gradient without or with second derivatives", source="PFLlib")
    split: bool = hyper(True, "half of a batch for each of the two gradients; off: the whole batch for both")
    shared: Shared = hyper("model", SHARED)

    @property
    def evaluated(self) -> When:
        return "before"

    @property
    def relative_cost(self) -> float:
        return 1.0 if self.split else 2.0  # two passes over half a batch each, or over all of it

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        model = {"theta": theta, "phi": phi}
        return common_part(task, model, self.shared), {**model, **self._private(model)}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return dict(server)

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, **self._adapted(_start(task, client, down), local, STREAMS)}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        model = local.sgd(self.meta, _start(task, client, down), replaced=True)
        up = {**common_part(task, model, self.shared), "n": torch.tensor([float(local.n)])}
        return {**self._adapted(model, local, 2 * STREAMS), **self._private(model)}, up

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return mean_part(ups)

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def meta(self, task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
        """Loss of the adapted model; without second derivatives unless ``order`` is exact."""
        first, second = halves(batch, 2 if task.model.batch_statistics else 1) if self.split else (batch, batch)
        adapted = step(task, task_loss, params, first, given, self.alpha, graph=self.order == "exact")
        return task_loss(task, adapted, second, given)

    def _adapted(self, model: Tree, local: Local, streams: int) -> Tree:
        own = replace(local, calls=streams)
        return own.sgd(
            task_loss, model, steps=self.adapt_steps, lr=self.alpha, momentum=0.0, weight_decay=0.0, memory=None
        )

    def _private(self, model: Tree) -> Tree:
        """The head that local training goes on with; the one in use is adapted."""
        return {"head": model["phi"]} if self.shared == "extractor" else {}

    def claims(self) -> Claims:
        plain = replace(self, alpha=0.0, split=False)
        limits = {"fedavg": replace(plain, shared="model"), "fedper": replace(plain, shared="extractor")}
        return Claims(regularisers=("alpha",), adapts=True, limits=limits)


def halves(batch: Batch, least: int = 1) -> tuple[Batch, Batch]:
    """A batch cut in two; one whose halves were smaller than ``least`` serves twice."""
    half = len(batch.y) // 2
    if half < least:
        return batch, batch
    return Batch(batch.x[:half], batch.y[:half]), Batch(batch.x[half:], batch.y[half:])


def _start(task: Task, client: Tree, down: Tree) -> Tree:
    return with_common_part(task, {"phi": client.get("head", client["phi"])}, down)
