"""FedAPA's aggregation weights: aggregate (Eq. 5), descend (Eq. 6-7), project (Algorithm 1, lines 11-13).

Shapes: Theta [M, P] holds every client's last extractor, A [M, M] one row of weights per client, delta [S, P] what
the S served clients changed. No autograd: the derivative of theta_bar_i in A_i is Theta itself.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Sign = Literal["descend", "printed"]
SelfWeight = Literal["raw", "share", "off"]
Buffer = Literal["row", "shared"]


def aggregate(rows: Tensor, theta: Tensor) -> Tensor:
    """theta_bar_i = sum_j a_ij theta_j for every row (Eq. 5)."""
    return rows @ theta


def slopes(delta: Tensor, theta: Tensor, sign: Sign = "descend") -> Tensor:
    """The direction that each row of A moves in: <theta_j, Delta_i> with Delta_i = theta_i - theta_bar_i.

    Adding it descends 1/2 |theta_i - Theta A_i|^2. Eq. 7 as printed subtracts it, which ascends that same loss;
    ``printed`` keeps it for ablation.
    """
    moved = delta @ theta.T
    return moved if sign == "descend" else -moved


def descend(
    A: Tensor,
    velocity: Tensor,
    ids: Tensor,
    slope: Tensor,
    eta: float,
    momentum: float = 0.0,
    buffer: Buffer = "row",
) -> tuple[Tensor, Tensor]:
    """One step of size eta along ``slope`` on the rows ``ids``; returns the new A and velocity.

    ``row``: every row has its own momentum and moves only when its client answered. ``shared``: the released code's
    single buffer over the whole matrix, so that every step also moves every other row by its decayed velocity.
    """
    if buffer == "shared":
        velocity = momentum * velocity
        velocity[ids] += slope
        return A + eta * velocity, velocity
    A, velocity = A.clone(), velocity.clone()
    velocity[ids] = momentum * velocity[ids] + slope
    A[ids] += eta * velocity[ids]
    return A, velocity


def project(
    rows: Tensor,
    own: Tensor,
    mu: float = 0.5,
    self_weight: SelfWeight = "raw",
    clip: bool = True,
    normalise: bool = True,
) -> Tensor:
    """Clip to [0, 1], set each row's own entry, normalise; ``own[k]`` is the client that row k belongs to.

    ``raw`` writes mu before normalising (Algorithm 1: the share becomes mu / (mu + rest)), ``share`` makes mu the exact
    share after it, ``off`` leaves the own entry as learned. A row with nothing to normalise becomes e_own.
    """
    rows = rows.clamp(0, 1) if clip else rows.clone()
    line = torch.arange(len(rows))
    if self_weight == "share":
        return _share(rows, line, own, mu)
    if self_weight == "raw":
        rows[line, own] = mu
    return _unit_sum(rows, line, own) if normalise else rows


def _unit_sum(rows: Tensor, line: Tensor, own: Tensor) -> Tensor:
    total = rows.sum(1, keepdim=True)
    empty = total[:, 0].abs() < torch.finfo(rows.dtype).tiny
    rows = rows / torch.where(empty[:, None], torch.ones_like(total), total)
    rows[line[empty], own[empty]] = 1.0
    return rows


def _share(rows: Tensor, line: Tensor, own: Tensor, mu: float) -> Tensor:
    rows[line, own] = 0.0
    others = rows.sum(1, keepdim=True)
    alone = others[:, 0].abs() < torch.finfo(rows.dtype).tiny
    rows = rows * torch.where(alone[:, None], torch.zeros_like(others), (1 - mu) / others)
    rows[line, own] = torch.where(alone, 1.0, mu).to(rows.dtype)
    return rows
