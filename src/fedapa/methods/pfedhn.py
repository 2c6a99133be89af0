"""pFedHN and pFedHN-PC (Shamsian et al., ICML 2021): a hypernetwork on the server writes the weights.

Server: an embedding v_i per client, a trunk psi (linear layers with ReLU between them) and an output layer:
Down    omega_i = O [h(v_i; psi); 1], or the extractor alone with ``private_head`` (pFedHN-PC)
Client  local training; pFedHN-PC adds a private head that never leaves
Up      the trained omega_i
Server  Delta_i = sent - returned; (O, psi, v_i) move against the vector-Jacobian product of omega_i with
        Delta_i, clipped to norm 50, by SGD with momentum and weight decay               (Algorithm 1)

O is one [P, hidden + 1] matrix, its last column the bias: in distribution the same as one linear layer per
tensor, because their random start depends on the fan-in alone. Its gradient is Delta_i [h; 1]', so all
steps of a round are linear in O, its velocity and the Deltas: done at once, with autograd in the trunk only.

Deviations:
- The paper's algorithm visits one client per step, so ``order="sequential"`` is the default: within a round
  every client gets weights that have seen the client before it. With ``order="parallel"`` all clients of a
  round get weights of the same hypernetwork and ``update`` says what happens then: ``"mean"``, one step with
  their average gradient (slow at the authors' rate, which is meant for one client: raise hn_lr with the
  number of clients), or ``"one_by_one"``, one step per client in ascending order, forward pass at the
  hypernetwork as it is by then, Delta from what was sent. The latter adds up stale steps and can diverge
  with large cohorts.
- Local training is the task's, but with a new optimiser per visit as in the authors' code: momentum kept
  from weights that were replaced feeds back through the hypernetwork and can blow it up. (Their private head
  keeps its own.) The authors take 50 steps on random batches (``local_steps=50``) with lr 5e-3, weight decay
  5e-5, clipping at 50.
- As in the authors' code, momentum and weight decay also move the embeddings of idle clients, and the
  embedding has int(1 + M/4) entries (FL-bench: int((1 + M)/4)). Spectral norm is left out (off by default
  there).
- Evaluated: the weights as generated (with the private head), before local training.
- Idle clients: what they would receive moves with the hypernetwork; their head stays. Missing classes and
  the first round need no special case, but the first weights that arrive are generated ones, not the common
  start.
- BatchNorm statistics cannot be generated: such models are refused unless their buffers stay with a private
  head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedapa.core import hypernetworks as hypernet
from fedapa.core.tree import Tree, grown
from fedapa.errors import InputError
from fedapa.methods.method import Claims, Method, Schedule, When, hyper
from fedapa.streams import stream
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss

CHUNK = 2048  # rows of the output layer that are updated at a time, to stay in the cache


@dataclass(frozen=True)
class PFedHN(Method):
    private_head: bool = hyper(False, "only the extractor is generated, the head stays private (pFedHN-PC)")
    hn_lr: float = hyper(
        0.0, "server's rate; 0: 0.01, or 0.05 with private_head", 0.0, source="authors", search="log:0.001..0.1"
    )
    hn_momentum: float = hyper(0.9, "server's momentum", 0.0, 0.999, source="authors' code")
    hn_weight_decay: float = hyper(1e-3, "server's weight decay", 0.0, source="authors' code")
    clip_norm: float = hyper(50.0, "largest norm of the server's gradient", 0.0, source="authors' code")
    embedding: int = hyper(0, "size of an embedding; 0: int(1 + M/4)", 0, source="authors' code")
    hidden: int = hyper(100, "width of the trunk", 1, source="authors' code")
    layers: int = hyper(3, "hidden layers of the trunk after its first", 0, source="authors' code")
    local_steps: int = hyper(0, "batches per visit; 0: the task's epochs", 0, source="authors' code: 50")
    order: Literal["sequential", "parallel"] = hyper(
        "sequential", "clients of a round one after another, or side by side", source="paper, Algorithm 1"
    )
    update: Literal["mean", "one_by_one"] = hyper("mean", "parallel: one step per round, or one per client")

    relative_cost = 1.3

    @property
    def evaluated(self) -> When:
        return "before"

    @property
    def schedule(self) -> Schedule:
        return self.order

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        self._refuse_buffers(task)
        theta, phi = task.init(seed)
        random, sizes = stream(seed, "hypernetwork"), self._sizes(self.embedding or int(1 + task.clients / 4))
        P = len(theta) if self.private_head else len(theta) + len(phi)
        weights = {
            "v": hypernet.normal(random, task.clients, sizes[0]),
            "psi": hypernet.init(sizes, random),
            "O": hypernet.uniform(random, P * (self.hidden + 1), self.hidden).view(P, self.hidden + 1),
        }
        server = weights | {f"velocity_{name}": torch.zeros_like(w) for name, w in weights.items()}
        return server, {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        v = server["v"]
        h = with_one(hypernet.forward(server["psi"], self._sizes(v.shape[1]), v[i]))
        return {"theta" if self.private_head else "omega": server["O"] @ h}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, "theta": down["theta"]} if self.private_head else task.parts(down["omega"])

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = local.sgd(task_loss, client, steps=self.local_steps or None, memory=None)
        if self.private_head:
            return client, {"theta": client["theta"]}
        return client, {"omega": task.join(client["theta"], client["phi"])}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        (name,) = downs[0]
        rows = sorted(range(len(ids)), key=lambda k: ids[k])
        delta = torch.stack([downs[k][name] - ups[k][name] for k in rows])  # [S, P]
        return self._steps(task, server, torch.tensor([ids[k] for k in rows]), delta)

    def admit(self, task: Task, server: Tree) -> Tree:
        """Another embedding, the mean of all; the hypernetwork stays what it is."""
        like = {name: server[name].new_empty(task.clients, server["v"].shape[1]) for name in ("v", "velocity_v")}
        return server | grown({name: server[name] for name in like}, like, ["velocity_v"])

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def claims(self) -> Claims:
        bare = replace(self, hn_lr=1e-6, hn_momentum=0.0, hn_weight_decay=0.0, clip_norm=1e9)
        return Claims(ordered=self.update == "one_by_one", surrogate=self._proxy, bare=bare)

    def _proxy(self, task: Task, old: Tree, new: Tree, i: int, up: Tree) -> Tensor:
        """1/2 |returned - generated|^2."""
        (sent,), (returned,) = self.send(task, new, i).values(), up.values()
        return 0.5 * (returned - sent).square().sum()

    def _steps(self, task: Task, server: Tree, ids: Tensor, delta: Tensor) -> Tree:
        """All steps of a round: O = a O0 + b V0 + delta' X, and its velocity V = c O0 + d V0 + delta' Y."""
        lr, momentum, decay = self._rate(), self.hn_momentum, self.hn_weight_decay
        O0, V0 = server["O"], server["velocity_O"]
        along_O, along_V, gram = delta @ O0, delta @ V0, delta @ delta.T  # [S, h+1], [S, h+1], [S, S]
        a, b, X, c, d, Y = 1.0, 0.0, torch.zeros_like(along_O), 0.0, 1.0, torch.zeros_like(along_O)
        for k in self._groups(len(ids)):
            into_h = (a * along_O[k] + b * along_V[k] + gram[k] @ X) / len(k)  # delta' O of this step
            h, grads = self._through_trunk(server, ids[k], into_h[:, :-1])
            G = torch.zeros_like(X).index_copy(0, k, with_one(h) / len(k))  # the gradient of O is delta' G
            scale = self._clip(((gram @ G) * G).sum(), grads)
            c, d, Y = momentum * c + decay * a, momentum * d + decay * b, momentum * Y + decay * X + scale * G
            a, b, X = a - lr * c, b - lr * d, X - lr * Y
            server = server | self._moved(server, {name: scale * g for name, g in grads.items()})
        O, V = (O0, V0) if task.donate else (O0.clone(), V0.clone())
        for rows in (slice(k, k + CHUNK) for k in range(0, len(O), CHUNK)):
            o, v, D = O[rows], V[rows], delta[:, rows].T
            O[rows], V[rows] = a * o + b * v + D @ X, c * o + d * v + D @ Y
        return {**server, "O": O, "velocity_O": V}

    def _groups(self, count: int) -> list[Tensor]:
        everybody = torch.arange(count)
        return [everybody] if self.update == "mean" else list(everybody.view(-1, 1))

    def _through_trunk(self, server: Tree, ids: Tensor, into_h: Tensor) -> tuple[Tensor, Tree]:
        """h of some clients, and the vector-Jacobian product of h with ``into_h`` in psi and v."""
        psi, v = (server[name].detach().requires_grad_() for name in ("psi", "v"))
        h = hypernet.forward(psi, self._sizes(v.shape[1]), v[ids])
        into_psi, into_v = torch.autograd.grad((h * into_h).sum(), (psi, v))
        return h.detach(), {"psi": into_psi, "v": into_v}

    def _clip(self, square_of_O: Tensor, grads: Tree) -> Tensor:
        """The factor that brings the joint gradient of O, psi and v to at most ``clip_norm``."""
        square = square_of_O.clamp(min=0) + grads["psi"].square().sum() + grads["v"].square().sum()
        return (self.clip_norm / (square.sqrt() + 1e-6)).clamp(max=1.0)

    def _moved(self, server: Tree, grads: Tree) -> Tree:
        """One SGD step on psi and on all embeddings."""
        moved: Tree = {}
        for name, g in grads.items():
            velocity = self.hn_momentum * server[f"velocity_{name}"] + g + self.hn_weight_decay * server[name]
            moved |= {name: server[name] - self._rate() * velocity, f"velocity_{name}": velocity}
        return moved

    def _rate(self) -> float:
        return self.hn_lr or (0.05 if self.private_head else 0.01)

    def _sizes(self, embedding: int) -> tuple[int, ...]:
        """Widths of the trunk; with ``embedding = 0`` that is what the first clients' number made it."""
        return (embedding, *[self.hidden] * (self.layers + 1))

    def _refuse_buffers(self, task: Task) -> None:
        model, generated = task.model, task.P if self.private_head else task.P + task.Q
        if generated > model.theta_trainable + (0 if self.private_head else model.phi_trainable):
            raise InputError(
                "pFedHN cannot generate the statistics of BatchNorm",
                'use pfedhn-pc with buffers="private", or a model without BatchNorm',
            )


def with_one(h: Tensor) -> Tensor:
    """[h; 1], so that the last column of O is its bias."""
    return torch.cat([h, torch.ones_like(h[..., :1])], dim=-1)
