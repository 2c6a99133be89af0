"""FedALA (Zhang et al., AAAI 2023): each client first learns how much of the global model to take in.

Down    w
Client  on receipt: all but the top p parameter tensors are taken from w; the top ones become
        v = w_i + (w - w_i) * W, element by element, with w_i the client's own last model
        W <- clip(W - eta dF/dv * (w - w_i), 0, 1) on a random share s of the data, the rest frozen
        the first time epoch after epoch until the loss settles, later for one epoch; W starts at 1 and stays
        then E epochs of SGD on everything
Up      w_i, n_i
Server  w <- sum_i n_i w_i / sum_i n_i over the clients that answered

Settled: the standard deviation of the last ``window`` epoch losses (each that of the epoch's last batch) is
below ``threshold``; after ``cap`` epochs we go on anyway, where the authors' loop might never end.
Deviations:
- p counts parameter tensors as the authors' code does (2 = weight and bias of the head); the paper counts
  layers.
- threshold: 0.1 as in the authors' code; its notes for the paper say 0.01. Our batches are shuffled (as
  PFLlib's now are, the authors' are not), so that the last batch differs from epoch to epoch and 0.01 is
  seldom met before the cap.
- The authors adapt W at idle clients too, every round. Here an idle client is only shown what it would
  receive and W moves when the client takes part.
- Skipped when w equals w_i (the authors compare one tensor by the sum of its differences, here every
  element).
- The share s is drawn sample by sample. The authors take a contiguous block of data that were shuffled before.
- Local training has a new optimiser at every visit (the authors train without momentum).
- W has no momentum and no weight decay, whatever the run's training settings. Statistics (BatchNorm) come
  from w, and where only the head is mixed they are used as they are, not renewed batch by batch.

First round: w = w_i, so nothing is learned and W stays 1. A client that is first drawn later mixes the
common start with w. W = 1 and eta = 0 is FedAvg, bit for bit. Missing classes: W sees own data only.
Evaluated: the model after this mixing and before local training, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.data.federated import Split
from fedapa.methods.fedavg import sample_mean, upload
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.training.fused import MixedHead, in_kernel
from fedapa.training.job import Loss
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task, task_loss

STREAMS = 10_000  # the mixing draws from streams of its own: local training sees the batches that FedAvg's would


@dataclass(frozen=True)
class FedALA(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    eta: float = hyper(1.0, "learning rate of the mixing weights W", 0.0, source="authors' code", search="log:0.1..10")
    s: float = hyper(
        80.0, "percent of the local data that W learns from", 0.0, 100.0, source="authors' code", search="20..100"
    )
    p: int = hyper(2, "parameter tensors that are mixed, from the top", 1, source="authors' code", search="2,4")
    threshold: float = hyper(0.1, "spread of epoch losses that counts as settled", 0.0, source="authors' code")
    window: int = hyper(10, "epochs that the spread is taken over", 1, source="authors' code")
    cap: int = hyper(100, "most epochs of the first mixing", 1, source="ours; the authors have none")

    needs_head = True
    relative_cost = 1.4
    revision = 1

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        mixed = sum(stop - start for start, stop in top_tensors(task, self.p).values())
        client = {"theta": theta, "phi": phi, "W": torch.ones(mixed), "settled": torch.zeros(1)}
        return {"omega": task.join(theta, phi)}, client

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        arrived = task.parts(down["omega"])
        if all(torch.equal(arrived[k], client[k]) for k in arrived):
            return client
        given = pieces(arrived, client, top_tensors(task, self.p))
        W = self._learn(task, given, client, local)
        return {**mix(task, W, given), "W": W, "settled": torch.ones(1)}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        model = local.sgd(task_loss, {k: client[k] for k in ("theta", "phi")}, replaced=True)
        return {**client, **model}, upload(task, model, local)

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {**server, "omega": sample_mean(ups, "omega")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> Claims:
        return Claims(adapts=True, limits={"fedavg": replace(self, eta=0.0)})

    def _learn(self, task: Task, given: Tree, client: Tree, local: Local) -> Tensor:
        """W after one epoch, or after as many as the first time needs."""
        share, loss = frozen_below(task, given, replace(local, calls=STREAMS).part(self.s / 100))
        W, losses, most = client["W"], list[float](), 1 if client["settled"] else self.cap
        while len(losses) < most and not self._has_settled(losses):
            found = share.sgd(
                loss,
                {"W": W},
                given=given,
                carry={"loss": torch.zeros(())},
                epochs=1,
                lr=self.eta,
                momentum=0.0,
                weight_decay=0.0,
                project=unit_box,
                memory=None,
            )
            W = found["W"]
            losses.append(float(found["loss"]))
        return W

    def _has_settled(self, losses: Sequence[float]) -> bool:
        return len(losses) > self.window and bool(np.std(losses[-self.window :]) < self.threshold)


def unit_box(params: Tree) -> Tree:
    return {"W": params["W"].clamp(0, 1)}


def frozen_below(task: Task, given: Tree, share: Local) -> tuple[Local, Loss]:
    """Data and loss of the mixing; where only the head is mixed, one pass gives the features for all epochs."""
    if len(given["theta_below"]) + len(given["theta_above"]) < task.P:
        return share, mixing
    z = share.features(mix(task, torch.ones_like(given["global"]), given))
    return replace(share, data=Split(z, share.data.y)), mixing_heads


def mixing(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    """Loss of the mixed model in W; the value is carried on, so that the epoch's last one can be read."""
    value = task_loss(task, mix(task, params["W"], given), batch, {})
    return value, {"loss": value}


@in_kernel(MixedHead("W", arrived="global", own="local", carry="loss", project=unit_box))
def mixing_heads(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    """The same on features instead of samples."""
    value = task.loss(task.logits(mix(task, params["W"], given), batch.x), batch.y)
    return value, {"loss": value}


def mix(task: Task, W: Tensor, given: Tree) -> Tree:
    """The model with w_i + (w - w_i) W in its mixed part, written so that W = 1 gives exactly w."""
    part = given["global"] + (given["local"] - given["global"]) * (1 - W)
    of_phi = task.Q - len(given["phi_below"]) - len(given["phi_above"])
    theta, phi = part[: len(part) - of_phi], part[len(part) - of_phi :]
    return {
        "theta": torch.cat([given["theta_below"], theta, given["theta_above"]]),
        "phi": torch.cat([given["phi_below"], phi, given["phi_above"]]),
    }


def pieces(arrived: Tree, own: Tree, top: Mapping[str, tuple[int, int]]) -> Tree:
    """Both versions of the mixed part; what lies below and above it is taken from what arrived."""
    given = {
        "global": torch.cat([arrived[k][start:stop] for k, (start, stop) in top.items()]),
        "local": torch.cat([own[k][start:stop] for k, (start, stop) in top.items()]),
    }
    below = {f"{k}_below": arrived[k][:start] for k, (start, _) in top.items()}
    return given | below | {f"{k}_above": arrived[k][stop:] for k, (_, stop) in top.items()}


def top_tensors(task: Task, p: int) -> dict[str, tuple[int, int]]:
    """Where the last p parameter tensors lie in theta and in phi; statistics do not count."""
    model = task.model
    stops = {"theta": model.theta_trainable, "phi": model.phi_trainable}
    slots = [("theta", slot) for slot in model.theta_slots] + [("phi", slot) for slot in model.phi_slots]
    top = [(k, slot.start) for k, slot in slots if slot.stop <= stops[k]][-p:]
    return {k: (min([start for name, start in top if name == k], default=stop), stop) for k, stop in stops.items()}
