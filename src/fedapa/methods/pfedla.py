"""pFedLA, HeurpFedLA (Ma et al., CVPR 2022): one hypernetwork per client weighs all clients, layer by layer.

Server: W [M, P+Q], the last model of every client, and psi [M, H], one hypernetwork per client (its embedding
        first), whose output is alpha_i [L, M]: ReLU, then divided by its sum in every layer.
Down    omega_bar_i: in every layer l, sum_j alpha_i[l, j] omega_j[l]
Client  local training on all of omega
Up      omega_i
Server  Delta_i = omega_i - omega_bar_i; psi_i <- psi_i + hn_lr (d omega_bar_i / d psi_i)' Delta_i, which
        descends 1/2 |Delta_i|^2; then row i of W becomes omega_i

Deviations:
- The paper's formula, and both third-party codes with it, have the other sign and so ascend that proxy loss.
  ``sign="descend"`` is the default, ``"printed"`` stays for ablation. There is no code by the authors.
- A layer is a module with parameters of its own, weight and bias together (5 in LeNet-5; FL-bench weighs
  each tensor on its own). Statistics of BatchNorm go with their module.
- From the third-party code: embeddings of 100, three hidden layers of 100, output weights U(0, 1) with bias
  0 so that no ReLU is dead at the start. A layer whose outputs are all <= 0 later falls back to the client's
  own.
- ``private_layers`` = k (HeurpFedLA): in the k layers with the largest self-weight alpha_i is e_i, with no
  gradient, so what is sent equals the client's own last layer. Messages keep their shape; a wire that left
  these layers out would save their bytes in both directions.
- Evaluated: omega_bar_i as it arrives.
- Momentum starts afresh at every visit: the weights that it belonged to were replaced by what arrived.
- Idle clients: row and hypernetwork stay; their last model goes on being mixed, and who never trained
  contributes the start. In the first round all rows are equal: everybody gets the start and no hypernetwork
  moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core import hypernetworks as hypernet
from fedapa.core.tree import Tree, with_rows
from fedapa.methods.method import Claims, Method, When, hyper
from fedapa.streams import stream
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss

Pieces = list[tuple[slice, int]]  # which part of omega belongs to which layer


@dataclass(frozen=True)
class PFedLA(Method):
    hn_lr: float = hyper(
        5e-3, "learning rate of the hypernetworks", 0.0, source="third-party code", search="log:0.0005..0.05"
    )
    sign: Literal["descend", "printed"] = hyper("descend", "direction of the step", source="printed: ascends")
    private_layers: int = hyper(0, "layers with the largest self-weight that stay private (HeurpFedLA)", 0)
    embedding: int = hyper(100, "size of an embedding", 1, source="third-party code")
    hidden: int = hyper(100, "width of the hypernetworks", 1, source="third-party code")

    relative_cost = 1.2

    @property
    def evaluated(self) -> When:
        return "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        random, sizes = stream(seed, "hypernetwork"), self._sizes(task)
        psi = torch.stack([self._hypernetwork(sizes, random) for _ in range(task.clients)])
        server = {"omega": task.join(theta, phi).repeat(task.clients, 1), "psi": psi}
        return server, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        alpha = self._alpha(task, server["psi"][[i]], torch.tensor([i]))[0]
        omega = torch.empty_like(server["omega"][i])
        for piece, layer in pieces(task):
            omega[piece] = alpha[layer] @ server["omega"][:, piece]
        return {"omega": omega}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return task.parts(down["omega"])

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = local.sgd(task_loss, client, replaced=True)
        return client, {"omega": task.join(client["theta"], client["phi"])}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        index, new = torch.tensor(list(ids)), torch.stack([up["omega"] for up in ups])
        slope = self._slopes(task, server["omega"], new - torch.stack([down["omega"] for down in downs]))
        psi = server["psi"][index].requires_grad_()
        (uphill,) = torch.autograd.grad((self._alpha(task, psi, index) * slope).sum(), psi)
        moved = psi.detach() + self.hn_lr * uphill
        return {
            "omega": with_rows(server["omega"], index, new, task.donate),
            "psi": with_rows(server["psi"], index, moved, task.donate),
        }

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> Claims:
        return Claims(surrogate=self._proxy, bare=replace(self, hn_lr=1e-7, private_layers=0))

    def _proxy(self, task: Task, old: Tree, new: Tree, i: int, up: Tree) -> Tensor:
        """1/2 |returned - mixed|^2 with the mixed models held still."""
        sent = self.send(task, {"omega": old["omega"], "psi": new["psi"]}, i)["omega"]
        return 0.5 * (up["omega"] - sent).square().sum()

    def _alpha(self, task: Task, psi: Tensor, ids: Tensor) -> Tensor:
        """[S, L, M] mixing weights of some clients."""
        v, network = psi[:, : self.embedding], psi[:, self.embedding :]
        raw = F.relu(hypernet.forward(network, self._sizes(task), v)).view(len(psi), -1, task.clients)
        own = F.one_hot(ids, task.clients).to(raw.dtype).unsqueeze(1).expand_as(raw)
        total = raw.sum(2, keepdim=True)
        dead = total <= 0
        alpha = torch.where(dead, own, raw / total.masked_fill(dead, 1.0))
        return torch.where(self._private(alpha, own), own, alpha)

    def _private(self, alpha: Tensor, own: Tensor) -> Tensor:
        """[S, L, 1] whether a layer is among the k with the largest self-weight."""
        self_weight = (alpha.detach() * own).sum(2)
        k = min(self.private_layers, self_weight.shape[1])
        first = self_weight.argsort(dim=1, descending=True, stable=True)[:, :k]
        return torch.zeros_like(self_weight, dtype=torch.bool).scatter(1, first, True).unsqueeze(2)

    def _slopes(self, task: Task, omega: Tensor, delta: Tensor) -> Tensor:
        """[S, L, M] <omega_j[l], Delta_i[l]>: along it the proxy loss falls (``printed``: rises)."""
        slope = torch.zeros(len(delta), layers(task), task.clients)
        for piece, layer in pieces(task):
            slope[:, layer] += delta[:, piece] @ omega[:, piece].T
        return slope if self.sign == "descend" else -slope

    def _hypernetwork(self, sizes: tuple[int, ...], random: np.random.Generator) -> Tensor:
        """An embedding and a network whose last layer starts at U(0, 1) with bias 0."""
        v, trunk = hypernet.normal(random, self.embedding), hypernet.init(sizes[:-1], random)
        last = torch.from_numpy(random.random(sizes[-2] * sizes[-1], dtype=np.float32))
        return torch.cat([v, trunk, last, torch.zeros(sizes[-1])])

    def _sizes(self, task: Task) -> tuple[int, ...]:
        return (self.embedding, self.hidden, self.hidden, self.hidden, layers(task) * task.clients)


def pieces(task: Task) -> Pieces:
    """Every tensor's place in omega and the number of its layer, the module that it belongs to."""
    model, numbers, found = task.model, dict[str, int](), []
    for slots, shift in ((model.theta_slots, 0), (model.phi_slots, task.P)):
        for slot in slots:
            layer = numbers.setdefault(slot.name.rpartition(".")[0], len(numbers))
            found.append((slice(shift + slot.start, shift + slot.stop), layer))
    return found


def layers(task: Task) -> int:
    return 1 + max(layer for _, layer in pieces(task))
