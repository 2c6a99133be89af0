"""Who belongs to whom, by a test on distances between models: groups only where chance would not show them.

gaps [M, M] holds |theta_j - theta_k|^2, ``known`` [M] marks the clients that have been heard from.

1. Without groups every model goes its own way from a common centre, so that g_jk = u_j + u_k: what is special about a
   client (much data, many steps) is in u. u is found by medians, which a minority of liars does not move.
2. r_jk = log g_jk - log(u_j + u_k) is then noise around 0, and clearly below it inside a group. No neighbour counts as
   closer than a typical nearest one: a near copy of a model looks like any other member of its group. r is averaged
   over rounds: one round's distances are noisy where all mix with all.
3. Client i's r are cut in two where the variance between the parts is largest in that within them. The cut counts if
   as many normal numbers show such a one with a probability below ``level``, over all cuts.
4. A cut between i and j counts if j makes it, too, or most of those whom i is close to: one client's chance parts
   nobody.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

MEMORY = 10  # rounds that are averaged
ROUNDS = 20  # of medians; they settle within a few
DRAWS = 4000  # of normal numbers, to know what chance shows
FEWEST = 4  # others; fewer cannot be told apart


def members(close: Tensor, known: Tensor, level: float) -> Tensor:
    """[M, M] who belongs to whom by r; everybody to himself, and whoever was not heard from to nobody else."""
    us = known.nonzero()[:, 0]
    found = torch.eye(len(close), dtype=torch.bool)
    inside = close[us][:, us]
    found[us[:, None], us] = ~parted(~_near(inside, level)) if len(us) > FEWEST else torch.ones_like(inside).bool()
    return found


def measured(gaps: Tensor, known: Tensor) -> Tensor:
    """[M, M] r of all clients that have been heard from, 0 for the others and where these are too few to tell."""
    us = known.nonzero()[:, 0]
    found = torch.zeros_like(gaps)
    if len(us) > FEWEST:
        found[us[:, None], us] = closeness(gaps[us][:, us])
    return found


def averaged(before: Tensor, visits: Tensor, now: Tensor) -> Tensor:
    """The running mean of r, over as many rounds as ``visits`` [M, M] says, and over MEMORY at most: noise goes."""
    return torch.lerp(before, now, (1 / visits.clamp(min=1)).clamp(min=1 / MEMORY))


def parted(cut: Tensor) -> Tensor:
    """[M, M] the cuts that count, both ways, of those that every client would make alone."""
    near = (~cut).double().fill_diagonal_(0)
    agreed = near @ cut.double() > near.sum(1, keepdim=True) / 2
    found = cut & (cut.T | agreed)
    return found | found.T


def own_parts(gaps: Tensor) -> Tensor:
    """[M] u with g_jk = u_j + u_k for most pairs, by medians over the others, again and again."""
    M = len(gaps)
    off = ~torch.eye(M, dtype=torch.bool)
    others = gaps[off].view(M, M - 1)
    own = others.median(1).values / 2
    for _ in range(ROUNDS):
        left = (gaps - own)[off].view(M, M - 1).median(1).values
        own = ((own + left) / 2).clamp(min=0)
    return own


def closeness(gaps: Tensor) -> Tensor:
    """[M, M] r: 0 for two that have nothing in common, below it for two of a group."""
    own, tiny = own_parts(gaps), torch.finfo(gaps.dtype).tiny
    found = gaps.clamp(min=tiny).log() - (own[:, None] + own).clamp(min=tiny).log()
    nearest = found.masked_fill(torch.eye(len(gaps), dtype=torch.bool), torch.inf).amin(1)
    return found.clamp(min=nearest.median(), max=-nearest.median().clamp(max=0))


def _near(close: Tensor, level: float) -> Tensor:
    """[M, M] whom every client is not parted from."""
    M = len(close)
    off = ~torch.eye(M, dtype=torch.bool)
    rows, order = close[off].view(M, M - 1).sort(dim=1, stable=True)
    value, size = separation(rows)
    kept = torch.where(value > critical(M - 1, level), size, M - 1)
    inside = torch.arange(M - 1) < kept[:, None]
    found = torch.eye(M, dtype=torch.bool)
    found[off] = torch.zeros(M, M - 1, dtype=torch.bool).scatter(1, order, inside).flatten()
    return found


def separation(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of sorted rows [R, n]: the largest variance between two parts over that within, and the lower part's size."""
    n = rows.shape[1]
    centred = rows - rows.mean(1, keepdim=True)
    size = torch.arange(1, n)
    below = centred.cumsum(1)[:, :-1]
    between = below.square() * n / (size * (n - size))
    within = (centred.square().sum(1, keepdim=True) - between).clamp(min=torch.finfo(rows.dtype).eps)
    value, place = (between / within).max(1)
    return value, place + 1


@lru_cache(maxsize=4096)
def critical(n: int, level: float) -> float:
    """What n normal numbers exceed with this probability."""
    drawn = np.random.default_rng([n, 1]).standard_normal((DRAWS, n))
    value, _ = separation(torch.from_numpy(np.sort(drawn, 1)))
    return float(np.quantile(value.numpy(), 1 - level))
