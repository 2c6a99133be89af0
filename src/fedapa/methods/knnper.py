"""kNN-Per (Marfoq et al., ICML 2022): FedAvg, and a memory of own samples that has a say in every answer.

Training is FedAvg's. When a model arrives, a client stores features z and labels of its own train data under it.
Use     p(y | x) = lambda p_kNN(y | x) + (1 - lambda) softmax(logits)(y)
        p_kNN(y | x) in proportion to the sum of exp(-|z(x) - z_j|^2 / (d scale)) over those of the k nearest stored
        samples that have label y
Down    w
Up      w_i, n_i; the store never leaves
Server  w <- sum_i n_i w_i / sum_i n_i over the clients that answered

Deviations:
- Stores have a fixed ``capacity``; a larger client stores a random part, the same in every round.
- lambda is one setting for all clients. The authors score a grid of it on test data; `fedapa tune` chooses it on
  validation data taken from train data. 0.5 is the middle of that grid.
- The authors' evaluation and FL-bench mix p_kNN with raw *logits*: an option whose default is a non-empty string counts
  as true. Here probabilities are mixed. FL-bench also compares the capacity with a number of batches.
- ``shared="extractor"``: heads stay private, as in FedPer.

The store is made anew whenever a model arrives and after training, so that it is never stale. An idle client is shown
the current w with a new store; a newcomer needs no training, only a pass over its data. lambda = 0 is FedAvg, whose
models it trains at any lambda. Evaluated: the model and store as they arrive. Classification only. A model that is
exported holds the store: features and labels of train samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.common_part import SHARED, Shared, common_part, mean_part, with_common_part
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.streams import stream
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss


@dataclass(frozen=True)
class KNNPer(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    lam: float = hyper(0.5, "lambda: share of the neighbours in an answer", 0.0, 1.0, search="0..1")
    k: int = hyper(10, "neighbours that answer", 1, source="paper, experiments", search="1,5,10")
    scale: float = hyper(
        1.0,
        "squared distance per feature at which a neighbour fades",
        1e-9,
        source="authors' code",
        search="log:0.1..10",
    )
    capacity: int = hyper(500, "samples that a client stores", 1, source="ours; the authors store all")
    shared: Shared = hyper("model", SHARED)

    needs_classes = True
    needs_head = True
    relative_cost = 1 + 2 / 6  # features are stored twice in two epochs

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        model = {"theta": theta, "phi": phi}
        size = self.capacity
        store = {"z": torch.zeros(size, task.d), "y": torch.zeros(size, dtype=torch.int64), "kept": torch.zeros(size)}
        return common_part(task, model, self.shared), {**model, **store}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return dict(server)

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return self._stored(with_common_part(task, client, down), local)

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        model = local.sgd(task_loss, {k: client[k] for k in ("theta", "phi")}, replaced=True)
        up = {**common_part(task, model, self.shared), "n": torch.tensor([float(local.n)])}
        return self._stored(model, local), up

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return mean_part(ups)

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        z = task.features(client, x)
        own = task.logits(client, z).softmax(1)
        near = neighbours(z, client, min(self.k, self.capacity), task.classes, task.d * self.scale)
        share = self.lam * (client["kept"].sum() > 0)
        return (share * near + (1 - share) * own).clamp(min=torch.finfo(own.dtype).tiny).log()

    def _stored(self, model: Tree, local: Local) -> Tree:
        """The model with a store of own samples under it."""
        size = min(self.capacity, local.n)
        order = stream(local.seed, "stored", local.client).permutation(local.n)[:size]
        index = torch.from_numpy(np.sort(order))
        with local.only(index):
            z, y = local.features(model), local.data.y
        empty = self.capacity - size
        z, y = torch.cat([z, z.new_zeros(empty, z.shape[1])]), torch.cat([y, y.new_zeros(empty)])
        return {**model, "z": z, "y": y, "kept": (torch.arange(self.capacity) < size).float()}

    def claims(self) -> Claims:
        return Claims(limits={"fedavg": replace(self, shared="model"), "fedper": replace(self, shared="extractor")})


def neighbours(z: Tensor, store: Tree, k: int, classes: int, width: float) -> Tensor:
    """[n, C] what the k nearest stored samples answer to features z [n, d]; 0 where nothing is stored."""
    gaps = z.square().sum(1, keepdim=True) + store["z"].square().sum(1) - 2 * z @ store["z"].T
    gaps = torch.where(store["kept"] > 0, gaps.clamp(min=0), torch.inf)
    nearest = gaps.topk(k, largest=False)
    weights = torch.softmax(-nearest.values / width, 1).nan_to_num()
    labels = store["y"][nearest.indices]
    return (weights[:, :, None] * (labels[:, :, None] == torch.arange(classes))).sum(1)
