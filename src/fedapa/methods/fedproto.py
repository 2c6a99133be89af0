"""FedProto (Tan et al., AAAI 2022): clients share class prototypes instead of models.

Down    prototypes c [C, d] and the counts behind them
Client  cross-entropy + lam * mean (z - c_y)^2 over its whole private model
Up      sums of z and counts per class
Server  c_k <- sum_i n_ik c_ik / sum_i n_ik over the clients that hold class k

Deviations:
- The paper's aggregation has one more factor 1/|N_k|, which would shrink prototypes; nobody implements it.
  All public codes take the plain mean over clients: ``average="clients"``.
- ``prototypes="after"``: one clean pass over the data after training. ``"during"``: from the features seen
  in the last local epoch, while the model moves, as in the authors' code (PFLlib: in all epochs).
- The paper predicts by the nearest prototype, the authors' code reports that and the head, FL-bench the
  head. ``inference``: ``head`` (default: the model that is trained; with lam = 0 the method is Local),
  ``global_prototype`` (the paper; PFLlib), ``own_classes`` (global prototypes of the client's own classes:
  the authors' code), ``own_prototype`` (the client's own prototypes). Whoever has none yet predicts with the
  head.
- lam = 1 for MNIST and FEMNIST, 0.1 for CIFAR-10 in the paper; presets of CIFAR say 0.1. The mean is over batch
  and features; samples whose class has no global prototype add nothing.
- Prototypes of a class that nobody reported in a round stay (PFLlib forgets them).
- Messages are dense, C (d + 1) floats in each direction; the paper's count leaves absent classes and counts
  out.
- Evaluated: after local training. Idle clients keep their model; the first round has no pull.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core import prototypes as proto
from fedapa.core.tree import Tree
from fedapa.methods.method import Claims, Method, Role, Roles, hyper
from fedapa.training.engines.native import ClassPull, Terms
from fedapa.training.fused import WholeModel, in_kernel
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task


@dataclass(frozen=True)
class FedProto(Method):
    roles: ClassVar[Roles] = {"counts": Role.CLASS_COUNTS, "sums": Role.SUMS}

    lam: float = hyper(
        1.0, "strength of the pull to the prototypes", 0.0, source="paper, section 5 (MNIST)", search="log:0.01..10"
    )
    inference: Literal["head", "global_prototype", "own_classes", "own_prototype"] = hyper(
        "head", "predict by the head or by the nearest prototype of some kind"
    )
    average: Literal["samples", "clients"] = hyper("samples", "weights within a prototype", source="paper")
    prototypes: Literal["after", "during"] = hyper("after", "features after training or in its last epoch")

    needs_classes = True
    needs_head = True
    mixes_architectures = True
    relative_cost = 1.3
    revision = 1

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        none, nobody = torch.zeros(task.classes, task.d), torch.zeros(task.classes)
        server = {"prototypes": none, "counts": nobody}
        return server, {"theta": theta, "phi": phi, **server, "own": none.clone(), "owned": nobody.clone()}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return dict(server)

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, **down}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        params = {k: client[k] for k in ("theta", "phi")}
        given = {"target": down["prototypes"], "present": down["counts"], "lam": torch.tensor(self.lam)}
        learn = self._learn_and_watch if self.prototypes == "during" else self._learn_then_look
        params, sums, counts = learn(task, params, given, local)
        client = {**client, **params, "own": proto.class_means(sums, counts), "owned": counts}
        return client, {"sums": sums, "counts": counts}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        sums, counts = (torch.stack([up[name] for up in ups]) for name in ("sums", "counts"))
        if self.average == "clients":
            sums, counts = sums / counts.clamp(min=1).unsqueeze(2), (counts > 0).float()
        means, seen = proto.refreshed(server["prototypes"], server["counts"], sums.sum(0), counts.sum(0))
        return {"prototypes": means, "counts": seen}

    def claims(self) -> Claims:
        return Claims(regularisers=("lam",), limits={"local": replace(self, lam=0.0)})

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        z = task.features(client, x)
        logits = task.logits(client, z)
        if self.inference == "head":
            return logits
        prototypes, counts = client["prototypes"], client["counts"]
        if self.inference == "own_prototype":
            prototypes, counts = client["own"], client["owned"]
        elif self.inference == "own_classes":
            counts = counts * client["owned"]
        return torch.where((counts > 0).any(), proto.nearest_logits(z, prototypes, counts), logits)

    def _learn_then_look(self, task: Task, params: Tree, given: Tree, local: Local) -> tuple[Tree, Tensor, Tensor]:
        params = local.sgd(attracted, params, given=given)
        return params, proto.class_sums(local.features(params), local.data.y, task.classes), local.counts()

    def _learn_and_watch(self, task: Task, params: Tree, given: Tree, local: Local) -> tuple[Tree, Tensor, Tensor]:
        params = local.sgd(attracted, params, given=given, epochs=task.training.epochs - 1)
        carry = {"sums": torch.zeros(task.classes, task.d), "counts": torch.zeros(task.classes)}
        params = local.sgd(watched, params, given=given, carry=carry, epochs=1)
        return {k: params[k] for k in ("theta", "phi")}, params["sums"], params["counts"]


@in_kernel(WholeModel(lambda tree: Terms(pull=ClassPull(tree["target"], tree["present"], float(tree["lam"])))))
def attracted(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """Cross-entropy plus lam times the mean squared distance of features to the prototype of their class."""
    return _loss(task, params, batch, given)[0]


def watched(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    """The same, adding up the features that it sees."""
    loss, z = _loss(task, params, batch, given)
    C = task.classes
    return loss, {
        "sums": given["sums"] + proto.class_sums(z, batch.y, C),
        "counts": given["counts"] + proto.class_counts(batch.y, C),
    }


def _loss(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tensor]:
    both = {**given, **params}
    z = task.features(both, batch.x)
    pull = proto.pull(z, batch.y, given["target"], given["present"])
    return task.loss(task.logits(both, z), batch.y) + given["lam"] * pull, z
