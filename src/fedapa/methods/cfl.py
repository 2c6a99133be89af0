"""CFL, clustered federated learning (Sattler et al., IEEE TNNLS 2021): split a cluster whose members still disagree.

Server: omega [M, D], row i the model of i's cluster; cluster [M], 1 + its first member; delta [M, D], everybody's last
        update, and gram [M, M], their inner products; heard [M], since the last split of its cluster; rounds
Down    w_c, the model of the client's cluster
Client  E epochs from w_c
Up      w_i; the server takes Delta_i = w_i - w_c
Server  after ``warmup`` rounds, a cluster of more than two whose members were all heard from is split in two if
        relative: |mean Delta| < ratio max_i |Delta_i|
        absolute: |mean Delta| < eps1 and max_i |Delta_i| > eps2: still for the mean, not for its members
        into the halves whose largest similarity cos(Delta_i, Delta_j) across is least
        w_c <- w_c + mean of Delta_i over the members that answered; halves start from their parent's model

Single linkage on similarity finds those halves exactly. The released code uses complete linkage, which finds others.
Every split is for good: two clients that were parted never meet again.

Deviations:
- The released thresholds 0.4 and 1.6 are lengths of updates of another model at another learning rate, so that the
  default is a rule without a scale. Every round shows both lengths of every client's cluster, to read thresholds off.
  With LeNet-5 on CIFAR-10, 20 clients, two classes each and the common settings, their ratio is 0.14 to 0.25 for all
  clients together and 0.45 to 0.7 in a true group of four: 0.3 finds the five groups and stops, 0.5 goes on.
- The released notebook writes positions within the parent instead of clients into its list of clusters, so that from
  the second split on clients are in wrong clusters, in several or in none. Most public ports have copied it.
- The paper stops a split that would part similar clients, by an estimate of the gradients' noise; here only the rule
  and the size stop it.
- All members count alike, as in the code; ``average="samples"`` weighs them by samples, as FedAvg does.
- The notebook picks for every client the best of all models by the data it reports. Here it has its cluster's.
- The paper shares the whole model; ``shared="extractor"`` keeps heads private, as FedAPA does.

Partial participation is not defined in the paper. Here a member's last update counts in the rule, only fresh ones move
the model, and a cluster waits until all its members were heard from since its last split. A client that joins later
gets the mean of all models; its first update puts it into the cluster with the highest mean similarity.
Evaluated: the cluster's model as it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core import weights
from fedapa.core.tree import Tree, weighted_mean, with_rows, writable
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.methods.sharing import PART, Average, Shared, installed, shared_part, trainable
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss

Linkage = Literal["single", "complete"]
NOWHERE = 0  # the cluster of a client that joined and was not heard from yet
PAIR = 2  # members that are never parted


@dataclass(frozen=True)
class CFL(Method):
    roles: ClassVar[Roles] = {"groups": Role.CLUSTERS}

    rule: Literal["relative", "absolute"] = hyper("relative", "when a cluster is split: by a ratio or by two lengths")
    ratio: float = hyper(
        0.3,
        "of the mean update's length to the largest (relative)",
        0.0,
        1.0,
        source="ours",
        search="0.1..0.9 if rule=relative",
    )
    eps1: float = hyper(
        0.4,
        "length of the mean update below which it is still (absolute)",
        0.0,
        source="authors' code",
        search="log:0.04..4 if rule=absolute",
    )
    eps2: float = hyper(
        1.6,
        "length of the largest update above which members disagree (absolute)",
        0.0,
        source="authors' code",
        search="log:0.16..16 if rule=absolute",
    )
    warmup: int = hyper(20, "rounds before the first split", 0, source="authors' code", search="5,10,20")
    linkage: Linkage = hyper("single", "how halves are found: as in the paper, or in the released code (complete)")
    average: Average = hyper("clients", "members of a cluster count alike, or by samples", source="authors' code")
    shared: Shared = hyper("model", PART, source="paper")

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        client, M = {"theta": theta, "phi": phi}, task.clients
        start = shared_part(client, self.shared)
        server = {
            "omega": start.expand(M, -1),
            "delta": torch.zeros_like(start).expand(M, -1),
            "gram": torch.zeros(M, M, dtype=torch.float64),
            "cluster": torch.ones(M, dtype=torch.int64),
            "heard": torch.zeros(M),
            "rounds": torch.zeros(1),
        }
        return server, client

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"][i].clone()}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return installed(task, client, down["omega"], self.shared)

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = local.sgd(task_loss, client, replaced=True)
        return client, {"omega": shared_part(client, self.shared)}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        own, heard, rounds = torch.tensor(list(ids)), server["heard"].clone(), server["rounds"] + 1
        new = [up["omega"] - server["omega"][i] for i, up in zip(ids, ups, strict=True)]
        delta, gram = with_rows(server["delta"], own, new, task.donate), server["gram"].clone()
        gram[own] = weights.inner_products(new, delta, ranges=trainable(task, self.shared))
        gram[:, own] = gram[own].T
        heard[own] = 1.0
        cluster, known = placed(server["cluster"], gram, own), server["cluster"] != NOWHERE
        for members in clusters(cluster):
            if rounds > self.warmup and heard[members].all() and self._disagree(task, gram, members):
                leaving = parted(gram, members, self.linkage)
                cluster[leaving], heard[members] = 1 + leaving[0], 0.0
        omega = writable(server["omega"], task.donate)
        for members in clusters(cluster):
            omega[members] = self._moved(task, omega, delta, members, known, own)
        return {"omega": omega, "delta": delta, "gram": gram, "cluster": cluster, "heard": heard, "rounds": rounds}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def watch(self, server: Tree) -> Tree:
        """Every client's cluster, by its first member, and its two lengths: of the mean and of the largest update."""
        cluster, found = server["cluster"], torch.zeros(2, len(server["cluster"]))
        for members in clusters(cluster):
            found[:, members] = torch.stack(lengths(server["gram"], members, torch.ones(len(members))))[:, None].float()
        return {"groups": cluster - 1, "mean_update": found[0], "largest_update": found[1]}

    def claims(self) -> Claims:
        one = replace(self, rule="relative", ratio=0.0, average="samples")
        return Claims(resting=("cluster",), limits={"fedavg" if self.shared == "model" else "fedper": one})

    def _disagree(self, task: Task, gram: Tensor, members: Tensor) -> bool:
        mean, largest = lengths(gram, members, self._weights(task, members))
        if len(members) <= PAIR:
            return False
        if self.rule == "relative":
            return bool(mean < self.ratio * largest)
        return bool(mean < self.eps1) and bool(largest > self.eps2)

    def _moved(self, task: Task, omega: Tensor, delta: Tensor, members: Tensor, known: Tensor, own: Tensor) -> Tensor:
        """The cluster's model after the updates of the members that answered."""
        model, answered = omega[members[known[members]][0]], members[torch.isin(members, own)]
        if not len(answered):
            return model.clone()
        return model + weighted_mean(delta[answered], self._weights(task, answered))

    def _weights(self, task: Task, members: Tensor) -> Tensor:
        return task.sizes[members].float() if self.average == "samples" else torch.ones(len(members))


def clusters(cluster: Tensor) -> list[Tensor]:
    """The members of every cluster, ascending; who is in none is left out."""
    return [(cluster == name).nonzero()[:, 0] for name in sorted(set(cluster.tolist())) if name != NOWHERE]


def lengths(gram: Tensor, members: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """|mean of the members' updates| and the largest |update|, from their inner products."""
    inner, share = gram[members][:, members], share.double() / share.sum()
    return (share @ inner @ share).clamp(min=0).sqrt(), inner.diagonal().max().clamp(min=0).sqrt()


def parted(gram: Tensor, members: Tensor, linkage: Linkage) -> Tensor:
    """The half of the members without the first of them."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    far = (1 - cosines(gram, members, members)).clamp(min=0)
    tree = hierarchy.to_tree(hierarchy.linkage(squareform(far.cpu().numpy(), checks=False), linkage))
    halves = [sorted(half.pre_order()) for half in (tree.get_left(), tree.get_right()) if half]
    return members[max(halves)]  # the first member is in the half whose list is smaller


def placed(cluster: Tensor, gram: Tensor, own: Tensor) -> Tensor:
    """Every client in a cluster: whoever answers for the first time in the one whose members it resembles most."""
    cluster = cluster.clone()
    there = clusters(cluster)
    for i in own[cluster[own] == NOWHERE]:
        alike = torch.stack([cosines(gram, i[None], members).mean() for members in there])
        cluster[i] = cluster[there[int(alike.argmax())][0]]
    return cluster


def cosines(gram: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    length = gram.diagonal().clamp(min=0).sqrt()
    scale = (length[rows, None] * length[columns]).clamp(min=torch.finfo(gram.dtype).tiny)
    return gram[rows][:, columns] / scale
