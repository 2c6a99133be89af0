"""FedEM (Marfoq et al., NeurIPS 2021): every client's data are a mixture of K hidden distributions, with a model each.

Server: omega [K, D], the components
Down    all K components
Client  pi_i [K], its mixture, uniform at first
        E-step, on receipt: q_k(s) = softmax_k(log pi_ik - l_k(s)) for every train sample s;  pi_i <- mean_s q(s)
        M-step, for every k: E epochs on sum_s q_k(s) l_k(s) / batch size from w_k, with q held still
Up      the K components, n_i; pi_i never leaves
Server  w_k <- sum_i n_i w_ik / sum_i n_i over the clients that answered, not weighted by pi
Predicts p(y|x) = sum_k pi_ik softmax(logits_k): probabilities are mixed, and their logarithm is returned as logits

The number of components is a setting; the true number of groups is an oracle, and a table should say so.
The components start from independent random weights (equal ones would stay equal); the first is the start of every
other method, so that K = 1 is FedAvg.

Deviations:
- The released code averages over the stored copies of all clients. Idle ones then contribute the old components, which
  damps a step by the share that took part. Here the mean is over those who answered.
- The released code keeps one optimiser over all rounds. Here components were just replaced and begin afresh, unless
  ``training.keep_momentum`` says otherwise (as ``fedem@authors`` does). Its rate decays, here it does not.
- Public codes differ: one mixes logits instead of probabilities and hands weights to the wrong samples of a shuffled
  batch; another weighs a whole client by pi instead of a sample by q.
- The paper shares whole models; with ``shared="extractor"`` a client keeps K private heads, one for every component.

K times the work and bytes of FedAvg, and two passes of K models over the data per visit. Partial participation needs
no care. A client that joins later only takes the E-step, without training.
Every client sees all components. Evaluated: the components as they arrive, with pi_i from this round's E-step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.data.federated import Split
from fedapa.methods.fedavg import sample_mean
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.methods.sharing import (
    PART,
    Shared,
    answers,
    installed,
    losses_of,
    sample_losses,
    shared_part,
    starts,
)
from fedapa.training.local import Local
from fedapa.training.task import Batch, Task


@dataclass(frozen=True)
class FedEM(Method):
    roles: ClassVar[Roles] = {"n": Role.SAMPLES}

    components: int = hyper(
        3,
        "K, the number of models; the true number of groups is an oracle",
        1,
        source="authors' code, CIFAR-10",
        search="2,3,5",
    )
    shared: Shared = hyper("model", PART, source="paper")

    needs_classes = True  # a mixture of answers is a mixture of distributions over classes

    @property
    def evaluated(self) -> When:
        return "before"

    @property
    def relative_cost(self) -> float:
        return self.components * 7 / 6  # every component trained, and scored once in two epochs

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        models, even = starts(task, seed, self.components), torch.full((self.components,), 1 / self.components)
        return {"omega": shared_part(models, self.shared)}, {**models, "pi": even, "prior": even}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return {"omega": server["omega"]}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        client = installed(task, client, down["omega"], self.shared)
        q = responsibilities(client["pi"], losses_of(task, _models(client), local))
        return {**client, "pi": q.mean(0), "prior": client["pi"]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        q = responsibilities(client["prior"], losses_of(task, _models(client), local))
        trained = [self._fitted(k, client, q[:, k], local) for k in range(self.components)]
        client = {**client, **{name: torch.stack([model[name] for model in trained]) for name in ("theta", "phi")}}
        return client, {"omega": shared_part(client, self.shared), "n": torch.tensor([float(local.n)])}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {"omega": sample_mean(ups, "omega")}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return mixed_logits(client["pi"], answers(task, _models(client), x))

    def claims(self) -> Claims:
        one = replace(self, components=1)
        return Claims(adapts=True, limits={"fedavg" if self.shared == "model" else "fedper": one})

    def _fitted(self, k: int, client: Tree, q: Tensor, local: Local) -> Tree:
        """Component k after its epochs, every sample weighted by its q."""
        model, given = {name: client[name][k] for name in ("theta", "phi")}, {"y": local.data.y, "q": q}
        with places(local):
            return local.sgd(weighted, model, given=given, memory=f"component {k}", replaced=True)


def responsibilities(pi: Tensor, losses: Tensor) -> Tensor:
    """q [n, K]: how likely every component made every sample, from losses [n, K]."""
    return torch.softmax(pi.log() - losses, 1)


def mixed_logits(pi: Tensor, logits: Tensor) -> Tensor:
    """log sum_k pi_k softmax(logits_k) [n, C] from logits [n, K, C]."""
    return torch.logsumexp(pi.log()[:, None] + logits.log_softmax(-1), 1)


@contextmanager
def places(local: Local) -> Iterator[None]:
    """Inside, a batch holds places of samples instead of labels: shuffled batches find their own q."""
    whole = local.data
    local.data = Split(whole.x, torch.arange(len(whole.y)))
    try:
        yield
    finally:
        local.data = whole


def weighted(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """sum_s q(s) l(s) / batch size."""
    losses = sample_losses(task, task.predict(params, batch.x), given["y"][batch.y])
    return (given["q"][batch.y] * losses).mean()


def _models(client: Tree) -> Tree:
    return {name: client[name] for name in ("theta", "phi")}
