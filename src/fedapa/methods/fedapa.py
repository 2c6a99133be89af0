"""FedAPA (Sun et al., IJCAI 2025): the server learns, for every client, whose extractors to mix and how much.

Server: theta [M, P], the last extractor of every client, and A [M, M], a row of weights per client, A_i = e_i first.
Down    theta_bar_i = sum_j a_ij theta_j                                                        (Eq. 5)
Client  E epochs on [theta_bar_i; phi_i]; the head phi_i never leaves
Up      theta_i
Server  Delta_i = theta_i - theta_bar_i                                                         (Eq. 6)
        A_i <- A_i + eta Theta^T Delta_i, which descends 1/2 |Delta_i|^2                        (Eq. 7)
        clip to [0, 1]; a_ii = mu; divide by the sum                                            (Algorithm 1, 11-13)

Deviations:
- Eq. 7 as printed subtracts eta Theta^T Delta_i and so ascends its own proxy loss; the released code descends.
  ``sign="descend"`` is the default, ``"printed"`` stays for ablation.
- The released code differs from the paper in more: mu = 1 instead of 0.5; one SGD momentum buffer of 0.9 over the whole
  matrix, so that rows drift while their client is idle; self-weight and normalisation only when the client is served
  next; clients one after another within a round. ``FedAPA.reference()`` does all of that.
- mu is a raw value before normalising, so the self share is mu / (mu + rest), 1 while all other weights are 0.
  ``self_weight="share"`` makes it an exact share.
- ``top_k`` (not in the paper; for thousands of clients): after the clip, and before self-weight and normalisation, all
  but the k largest weights of a row besides its own become 0. The step before it moves all M weights, so that whoever
  was dropped can come back, from 0; mixing then reads k + 1 models instead of M. With ``project_at="send"`` rows are
  thinned when they are served.
- What was sent is mixed again to take Delta_i, in the same pass over Theta as Eq. 7, which costs less than keeping it.
- Idle clients: their last theta_j stays in Theta and goes on being mixed; who never trained contributes the start.
- Evaluated: [theta_i; phi_i] after local training, as in the released code; runs also record [theta_bar_i; phi_i].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core import weights
from fedapa.core.tree import Tree, with_rows, writable
from fedapa.core.weights import Buffer, SelfWeight, Sign
from fedapa.errors import InputError
from fedapa.methods.method import Claims, Method, Role, Roles, Schedule, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, cross_entropy


@dataclass(frozen=True)
class FedAPA(Method):
    roles: ClassVar[Roles] = {"A": Role.WEIGHTS, "velocity": Role.MOMENTUM}
    together: ClassVar[bool] = True

    eta: float = hyper(
        0.01, "learning rate of the aggregation weights", 0.0, source="paper, section 4.1", search="log:0.001..0.1"
    )
    mu: float = hyper(0.5, "self-weight", 0.0, 1.0, source="paper, Algorithm 1", search="0.1..1")
    sign: Sign = hyper("descend", "direction of Eq. 7", source="released code; the printed one ascends")
    self_weight: SelfWeight = hyper("raw", "mu before normalising, as the exact share after it, or not set at all")
    clip: bool = hyper(True, "clip weights to [0, 1]", source="paper, Algorithm 1")
    normalise: bool = hyper(True, "divide every row by its sum", source="paper, Algorithm 1")
    weight_momentum: float = hyper(0.0, "momentum of the aggregation weights", 0.0, 0.999, source="paper: plain step")
    buffer: Buffer = hyper("row", "one momentum buffer per row, or the released code's one over the matrix")
    project_at: Literal["update", "send"] = hyper("update", "self-weight and normalise after the update or when served")
    shared: Literal["extractor", "model"] = hyper("extractor", "what is sent and mixed (model: the +APA ablation)")
    order: Schedule = hyper("parallel", "clients of a round side by side (paper) or one after another (released code)")
    top_k: int = hyper(0, "keep only the k largest weights of a row besides its own; 0: all", 0)

    @classmethod
    def reference(cls, **changes: object) -> FedAPA:
        """The authors' released code, with its self-weight, momentum buffer, schedule and late normalisation."""
        code = cls(mu=1.0, weight_momentum=0.9, buffer="shared", project_at="send", order="sequential")
        return replace(code, **changes)  # type: ignore[arg-type]

    @property
    def schedule(self) -> Schedule:
        return self.order

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.self_weight == "share" and not self.normalise:
            raise InputError("FedAPA.self_weight is 'share' but normalise is off", "a share needs normalised rows")

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        M, sent = task.clients, self._shared(task, {"theta": theta, "phi": phi})
        server = {"theta": sent.expand(M, -1), "A": torch.eye(M), "velocity": torch.zeros(M, M)}
        return server, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return self.send_many(task, server, [i])[0]

    def send_many(self, task: Task, server: Tree, ids: Sequence[int]) -> list[Tree]:
        own = torch.tensor(list(ids))
        rows = self._served(server["A"][own], own)
        return [{"theta": mixed} for mixed in weights.mix(rows, server["theta"], self._sparse(task))]

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        if self.shared == "model":
            return task.parts(down["theta"])
        return {**client, "theta": down["theta"]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = local.sgd(cross_entropy, client)
        return client, {"theta": self._shared(task, client)}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        A, velocity, own = server["A"], server["velocity"], torch.tensor(list(ids))
        theta, new = writable(server["theta"], task.donate), [up["theta"] for up in ups]
        slope = weights.learn(theta, self._served(A[own], own), own, new, self.sign, self._sparse(task))
        for group, step in self._groups(own, slope):
            A = with_rows(A, group, self._served(A[group], group))
            A, velocity = weights.descend(A, velocity, group, step, self.eta, self.weight_momentum, self.buffer)
            A = self._stored(A, group)
        return {"theta": theta, "A": A, "velocity": velocity}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def watch(self, server: Tree) -> Tree:
        return {"A": server["A"]}

    def claims(self) -> Claims:
        step = replace(self, eta=1e-5, weight_momentum=0.0, buffer="row")
        return Claims(
            ordered=self.buffer == "shared",
            surrogate=proxy,
            bare=replace(step, clip=False, self_weight="off", normalise=False, project_at="update", top_k=0),
            limits={"local": replace(self, eta=0.0)} if self.shared == "extractor" else {},
        )

    def _shared(self, task: Task, client: Tree) -> Tensor:
        return client["theta"] if self.shared == "extractor" else task.join(client["theta"], client["phi"])

    def _groups(self, ids: Tensor, slope: Tensor) -> list[tuple[Tensor, Tensor]]:
        """One step for the whole cohort, or one per client where they share a momentum buffer."""
        if self.buffer == "row":
            return [(ids, slope)]
        return [(ids[[k]], slope[[k]]) for k in range(len(ids))]

    def _served(self, rows: Tensor, own: Tensor) -> Tensor:
        """Rows as used for mixing: the released code sets the self-weight and normalises only now."""
        if self.project_at == "update":
            return rows
        return weights.project(rows, own, self.mu, self.self_weight, False, self.normalise, self.top_k)

    def _stored(self, A: Tensor, ids: Tensor) -> Tensor:
        """A after the step; the released code clips the whole matrix, the paper finishes the rows that moved."""
        if self.project_at == "send":
            return A.clamp(0, 1) if self.clip else A
        rows = weights.project(A[ids], ids, self.mu, self.self_weight, self.clip, self.normalise, self.top_k)
        return with_rows(A, ids, rows)

    def _sparse(self, task: Task) -> bool:
        """Whether mixing by non-zero weights alone is faster: measured, it is so up to about a fifth of them."""
        return self.top_k > 0 and 8 * (self.top_k + 1) <= task.clients


def proxy(task: Task, old: Tree, new: Tree, i: int, up: Tree) -> Tensor:
    """1/2 |theta_i - Theta A_i|^2 with the mixed models held still."""
    return 0.5 * (up["theta"] - weights.aggregate(new["A"][i], old["theta"])).square().sum()
