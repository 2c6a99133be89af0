"""One round of one client: what its loss did, the quantities that bounds are made of, and the bounds.

``Steps`` holds measured facts and no constant of any assumption, so that each inequality is one line below it. A field
is one number per visit of a client. Everything is computed in float64 at the iterates that the run really visited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap

from fedapa.core import weights
from fedapa.data.federated import Federated, Split
from fedapa.methods.fedapa import FedAPA
from fedapa.theory.trace import Round
from fedapa.training.task import Batch, Task, task_loss

Numbers = npt.NDArray[np.float64]
TOGETHER = 256  # models looked at in one go
ROUNDING = 1e-6  # messages and rows are float32: theta_bar is off by this share of the largest model, at most


class Steps(NamedTuple):
    round: Numbers  # from 0
    client: Numbers
    change: Numbers  # loss of what the server would send next, minus loss of what it sent now
    gap: Numbers  # the server's part of it: loss after mixing, minus loss after training
    steps: Numbers  # K
    along: Numbers  # sum of <gradient, step> over the local steps
    moved: Numbers  # sum of |step|^2
    squared: Numbers  # sum of |gradient|^2
    noise: Numbers  # largest variance of one sample's gradient on the way
    bend: Numbers  # largest |difference of gradients| / |step|: L1 as the iterates show it
    steep: Numbers  # largest |gradient in theta|: L2 as the iterates show it
    uphill: Numbers  # <gradient in theta after training, theta_bar_i - theta_i>: mixing as one more step
    head: Numbers  # largest |phi|
    norm: Numbers  # largest |theta_j| at the server, before and after
    drift: Numbers  # |theta_bar_i - theta_i| after the round
    share: Numbers  # 1 - a_ii after the round: what the other clients get
    spread: Numbers  # that share times the distance to the farthest other model
    old_share: Numbers
    pull: Numbers  # sum over the others of max(0, slope): what eta pushes the share up with
    row: Numbers  # |A_i - e_i| after the round
    proxy: Numbers  # 1/2 |theta_i - Theta A_i|^2 with the row before the round,
    descended: Numbers  # after the bare step that adds eta Theta^T Delta,
    ascended: Numbers  # after the bare step that subtracts it, as Eq. 7 is printed,
    processed: Numbers  # and after the step as run, with clipping, self-weight and normalisation

    def where(self, chosen: npt.NDArray[np.bool_]) -> Steps:
        return Steps(*(field[chosen] for field in self))


class Constants(NamedTuple):
    """What the theorem takes as given; L1 and L2 are proved for the problem, the others measured on the whole run."""

    L1: float
    L2: float
    variance: float  # sigma^2 of a batch
    largest: float  # Max
    alpha: float
    eta: float


# --------------------------------------------------------------------------------------------------------- the bounds


def corrected(s: Steps, c: Constants) -> Numbers:
    """Theorem 1': holds in every round, for any batches, momentum and sign (docs/theory.md)."""
    return s.along + c.L1 / 2 * s.moved + corrected_server(s, c)


def corrected_server(s: Steps, c: Constants) -> Numbers:
    """What mixing may lose: the smaller of what Assumption 3 and Assumption 1 allow for the distance that it moves."""
    return np.minimum(c.L2 * s.drift, s.uphill + c.L1 / 2 * s.drift**2)


def coarse_server(s: Steps, c: Constants) -> Numbers:
    """The same through the others' share and the farthest other model, for rows that sum to 1."""
    return c.L2 * s.spread


def printed(s: Steps, c: Constants) -> Numbers:
    """Theorem 1 as printed; a bound on the expected change."""
    return lemma1(s, c) + printed_server(s, c)


def lemma1(s: Steps, c: Constants) -> Numbers:
    """What local training is expected to gain: plain SGD on unbiased batches."""
    gained = (c.alpha - c.L1 * c.alpha**2 / 2) * s.squared
    return c.L1 * s.steps * c.alpha**2 / 2 * c.variance - gained


def chance(s: Steps, c: Constants) -> Numbers:
    """-alpha times the sum of <gradient, noise of the gradient>, for plain SGD: its mean is zero, so that taking it out
    of a change leaves the expected change alone and removes most of the scatter."""
    return s.along + c.alpha * s.squared


def printed_server(s: Steps, c: Constants) -> Numbers:
    """2 L2 eta (t + 1) Max^3: what mixing may lose, according to Lemma 3."""
    return 2 * c.L2 * c.eta * (s.round + 1) * c.largest**3


def printed_row(s: Steps, c: Constants) -> Numbers:
    """2 eta (t + 1) Max^2: how far a row may be from e_i, according to Lemma 2 with |Theta| <= Max."""
    return 2 * c.eta * (s.round + 1) * c.largest**2


def slack(c: Constants) -> float:
    """What float32 messages may cost any of the inequalities."""
    return ROUNDING * (1 + c.L2) * (1 + c.largest)


def next_share(share: Any, push: Any, mu: float) -> Any:
    """The most that the others can get after one round: the share plus eta times the pull, then self-weight and sum."""
    return (share + push) / (mu + share + push)


def ceiling(push: float, mu: float) -> float:
    """Where ``next_share`` stands still: no share that starts below ever passes it. It is 1 - mu for a tiny push."""
    rest = 1 - mu - push
    return float(rest + np.sqrt(rest**2 + 4 * push)) / 2


# -------------------------------------------------------------------------------------------------------- measurement


class Looked(NamedTuple):
    """The full loss of one client at some models [R, D]."""

    loss: Tensor  # [R]
    slope: Tensor  # [R, D]
    noise: Tensor  # [R] variance of one sample's gradient


def look(task: Task, data: Split, models: Tensor) -> Looked:
    parts = [_look(task, data, part) for part in torch.split(models.double(), TOGETHER)]
    return Looked(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _look(task: Task, data: Split, models: Tensor) -> Looked:
    def value(model: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return task_loss(task, task.parts(model), Batch(x[None], y[None]), {})

    leaves = models[:, None].repeat(1, len(data.y), 1).requires_grad_()
    values = vmap(vmap(value), in_dims=(0, None, None))(leaves, data.x.double(), data.y)
    (grads,) = torch.autograd.grad(values.sum(), leaves)
    slope = grads.mean(1)
    return Looked(values.detach().mean(1), slope, (grads - slope[:, None]).square().sum(2).mean(1))


def batch_variance(noise: float, samples: int, batch: int) -> float:
    """Of the mean over a batch that is drawn without putting back: sampling theory's finite-population factor."""
    return noise * (samples - batch) / (batch * (samples - 1))


def steps(method: FedAPA, task: Task, data: Federated, rounds: Sequence[Round]) -> Steps:
    """Every visit of every client."""
    rows = [row for i in range(task.clients) for row in _visits(method, task, data, rounds, i)]
    return Steps(*(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)))


def _visits(method: FedAPA, task: Task, data: Federated, rounds: Sequence[Round], i: int) -> list[tuple[float, ...]]:
    mine = [r for r in rounds if i in r.paths]
    if not mine:
        return []
    points = [torch.cat([r.paths[i], task.join(r.sent[i], r.paths[i][-1, task.P :])[None]]) for r in mine]
    looked = look(task, data.clients[i].train, torch.cat(points))
    pieces = zip(*(torch.split(part, [len(p) for p in points]) for part in looked), strict=True)
    return [
        (r.number, i, *_local(task, p.double(), Looked(*piece)), *_server(method, r, i, task.P))
        for r, p, piece in zip(mine, points, pieces, strict=True)
    ]


def _local(task: Task, points: Tensor, at: Looked) -> tuple[float, ...]:
    """change to head; the last point is what the server would send next, under the trained head."""
    path, mixed, P = points[:-1], points[-1] - points[-2], task.P
    step, slope = path.diff(dim=0), at.slope[:-1]
    lengths = step.norm(dim=1)
    bends = slope.diff(dim=0).norm(dim=1)[lengths > 0] / lengths[lengths > 0]
    found = (
        at.loss[-1] - at.loss[0],
        at.loss[-1] - at.loss[-2],
        len(step),
        (slope[:-1] * step).sum(),
        lengths.square().sum(),
        slope[:-1].square().sum(),
        at.noise[:-1].max(),
        bends.max() if len(bends) else 0.0,
        at.slope[:, :P].norm(dim=1).max(),
        slope[-1] @ mixed,
        path[:, P:].norm(dim=1).max(),
    )
    return tuple(map(float, found))


def _server(method: FedAPA, r: Round, i: int, size: int) -> tuple[float, ...]:
    """norm to processed."""
    theta, new, A, new_A = (tree[k].double() for k in ("theta", "A") for tree in (r.old, r.new))
    row, own = new_A[i], torch.eye(len(A), dtype=torch.float64)[i]
    delta = (r.paths[i][-1, :size].double() - r.paths[i][0, :size].double())[None]
    slope = weights.slopes(delta, theta, method.sign)[0]
    bare = method.eta * weights.slopes(delta, theta)[0]
    share, far = 1 - row[i], (new - new[i]).norm(dim=1).max()
    proxies = [
        0.5 * (new[i] - weights.aggregate(a, theta)).square().sum() for a in (A[i], A[i] + bare, A[i] - bare, row)
    ]
    found = (
        torch.cat([theta, new]).norm(dim=1).max(),
        (r.sent[i] - r.new["theta"][i]).double().norm(),
        share,
        share * far,
        1 - A[i, i],
        (slope * (1 - own)).clamp(min=0).sum(),
        (row - own).norm(),
        *proxies,
    )
    return tuple(map(float, found))
