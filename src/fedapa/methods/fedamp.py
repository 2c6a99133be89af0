"""FedAMP and HeurFedAMP (Huang et al., AAAI 2021): each client gets a mixture of those who resemble it.

Server: omega [M, P+Q], the last model of every client, and gram [M, M], their inner products, of which every round
        renews the rows of those who answered: distances and cosines then cost no pass over omega.
Down    u_i = sum_j a_ij w_j, with the other clients' shares
        exact:      a_ij = alpha A'(|w_i - w_j|^2), A'(x) = exp(-x / sigma) / sigma
        heuristic:  a_ij = (1 - xi) exp(sharpness cos(w_i, w_j)) / sum_{h != i} exp(sharpness cos(w_i, w_h))
        and the rest, a_ii = 1 - sum_{j != i} a_ij
Client  min_w F_i(w) + lambda / (2 alpha) |w - u_i|^2, from w = u_i, by E epochs of SGD
Up      w_i

Defaults. A'(0) = 1/sigma, so the mixture of equal models is convex only if alpha (M - 1) / sigma <= 1; a
larger alpha is refused. alpha = 0 stands for sigma / M: equal models are then mixed evenly, and the further
away another model is, the less it counts. sigma is in units of |w_i - w_j|^2: for LeNet-5 on CIFAR-10 with
the common settings and two classes per client, 0.1 to 1 between clients with the same classes and 5 to 10
between others in the first rounds, and tens later where they hardly mix. So sigma = 1 (PFLlib) soon silences
everybody, and 10 pulls all clients into one model; the default 4 tells the two kinds apart, though it too
fades as models drift. The heuristic form, which the paper recommends for deep networks, does not. For
another model, set sigma to the distances that you see. The pull lambda / alpha is 0.1 at 20 clients.
xi = 0 stands for 1/M.

Deviations:
- The paper's prox step is solved inexactly, starting from u_i; alpha is constant (a port of the method
  decays it by 0.1 every 30 rounds, from 10^4, which makes the pull 10 times stronger each time).
- The paper has one sigma for both forms; here the heuristic's is ``sharpness``, 25 as in that port.
- PFLlib: the penalty has no gradient, is not squared, and u_i never becomes w_i, which together is Local
  training; it mixes only the last round's participants. fluke puts the learning rate in place of alpha.
- As alpha -> 0, u_i -> w_i, which is Local training if lambda / alpha -> 0 too; for a fixed lambda nothing
  moves.

Idle clients: their last w_j goes on being mixed; who never trained contributes the common start. With M =
1, u_i = w_i. Evaluated: w_i after local training; before it, the run records u_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core import weights
from fedapa.core.tree import Tree, grown, with_rows
from fedapa.errors import InputError
from fedapa.methods.fedprox import pull
from fedapa.methods.method import Claims, Method, Role, Roles, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, proximal


@dataclass(frozen=True)
class FedAMP(Method):
    roles: ClassVar[Roles] = {"A": Role.WEIGHTS}
    together: ClassVar[bool] = True

    attention: Literal["exact", "heuristic"] = hyper("exact", "by distance (FedAMP) or by cosine (HeurFedAMP)")
    sigma: float = hyper(
        4.0, "squared distance at which attention fades (exact)", 1e-9, source="see docstring", search="log:0.4..40"
    )
    alpha: float = hyper(0.0, "step of the mixing; 0: sigma / M", 0.0, source="see docstring")
    lam: float = hyper(
        0.02, "lambda; the pull towards u_i is lambda / alpha", 0.0, source="see docstring", search="log:0.002..0.2"
    )
    sharpness: float = hyper(
        25.0,
        "weight of the cosine (heuristic's sigma)",
        0.0,
        source="public port",
        search="log:5..100 if attention=heuristic",
    )
    xi: float = hyper(0.0, "own share (heuristic); 0: 1 / M", 0.0, 1.0, source="public port")

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        self._refuse_negative_shares(task.clients)
        theta, phi = task.init(seed)
        omega, M = task.join(theta, phi), task.clients
        server = {"omega": omega.expand(M, -1), "gram": omega.double().square().sum().repeat(M, M)}
        return server, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return self.send_many(task, server, [i])[0]

    def send_many(self, task: Task, server: Tree, ids: Sequence[int]) -> list[Tree]:
        rows = self.shares(gram(server), torch.tensor(list(ids)))
        return [{"omega": mixed} for mixed in weights.mix(rows, server["omega"])]

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return task.parts(down["omega"])

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        strength = self.lam / self._alpha(task.clients)
        client = local.sgd(proximal, client, given=pull(task, down["omega"], strength))
        return client, {"omega": task.join(client["theta"], client["phi"])}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        own, new, inner = torch.tensor(list(ids)), [up["omega"] for up in ups], gram(server).clone()
        omega = with_rows(server["omega"], own, new, task.donate)
        inner[own] = weights.inner_products(new, omega)
        inner[:, own] = inner[own].T
        return {"omega": omega, "gram": inner}

    def admit(self, task: Task, server: Tree) -> Tree:
        omega = grown({"omega": server["omega"]}, self.init(task, 0)[0])["omega"]
        return {"omega": omega, "gram": weights.inner_products(list(omega), omega)}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> Claims:
        return Claims(regularisers=("lam",), limits={"local": replace(self, lam=0.0, alpha=1e-9 * self.sigma, xi=1.0)})

    def watch(self, server: Tree) -> Tree:
        return {"A": self.shares(gram(server), torch.arange(len(server["omega"])))}

    def shares(self, inner: Tensor, own: Tensor) -> Tensor:
        """a_i [S, M] for the clients ``own``, from all inner products [M, M]."""
        weigh = self._by_distance if self.attention == "exact" else self._by_cosine
        A, line = weigh(inner[own], inner.diagonal().sqrt(), own), torch.arange(len(own))
        A[line, own] = 0.0
        A[line, own] = 1.0 - A.sum(1)
        return A.float()

    def _by_distance(self, inner: Tensor, length: Tensor, own: Tensor) -> Tensor:
        gaps = (length[own, None].square() + length.square() - 2 * inner).clamp(min=0)
        return self._alpha(len(length)) / self.sigma * torch.exp(-gaps / self.sigma)

    def _by_cosine(self, inner: Tensor, length: Tensor, own: Tensor) -> Tensor:
        cosines = inner / (length[own, None] * length).clamp(min=torch.finfo(inner.dtype).tiny)
        cosines[torch.arange(len(own)), own] = -torch.inf
        others = torch.softmax(self.sharpness * cosines, 1).nan_to_num()  # nobody else there: nothing to share
        return (1 - (self.xi or 1 / len(length))) * others

    def _alpha(self, clients: int) -> float:
        return self.alpha or self.sigma / clients

    def _refuse_negative_shares(self, clients: int) -> None:
        others = self._alpha(clients) * (clients - 1) / self.sigma
        if self.attention == "exact" and others > 1 + 1e-9:
            raise InputError(
                f"FedAMP.alpha gives the other clients up to {others:.3g} of a mixture, more than all of it",
                f"choose alpha <= sigma / (M - 1) = {self.sigma / (clients - 1):.4g}, or 0 for sigma / M",
            )


def gram(server: Tree) -> Tensor:
    """Inner products of all models; computed where they were not kept."""
    kept = server.get("gram")
    return weights.inner_products(list(server["omega"]), server["omega"]) if kept is None else kept
