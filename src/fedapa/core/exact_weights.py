"""Rows of aggregation weights that minimise FedAPA's proxy exactly, from distances between models alone.

gaps [M, M] holds |theta_j - theta_k|^2. For weights a that sum to one

    |theta_i - Theta a|^2 = a' K a  with  K[j, k] = (theta_j - theta_i)'(theta_k - theta_i) = (g_ij + g_ik - g_jk) / 2,

so no function here ever sees a model. ``known`` [M] marks the clients that have been heard from: only they are mixed.
Everything is in float64; what the theory behind the rows is, docs/beyond.md says.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from fedapa.core import joined, simplex
from fedapa.errors import InputError


def around(gaps: Tensor, i: int) -> Tensor:
    """K [M, M], the Gram matrix of all models as seen from client i's."""
    return (gaps[i] + gaps[i, :, None] - gaps) / 2


def lengths(gaps: Tensor, known: Tensor) -> Tensor:
    """[M] the squared distance of every model to the mean of those heard from."""
    share, to_mean = _to_mean(gaps, known)
    return (to_mean - share @ to_mean / 2).clamp(min=0)


def directions(gaps: Tensor, known: Tensor) -> Tensor:
    """Squared distances between directions: every model's way from the mean of those heard from, made one long.

    Clients that take more steps go further, and distances then say who trained much and not who learnt the same. A
    model that is the mean itself has no direction: it is as far from every other one as two at right angles are.
    """
    inner = centred(gaps, known)
    length = inner.diagonal().clamp(min=0).sqrt()
    scale = length[:, None] * length
    small = scale <= torch.finfo(torch.float32).eps * gaps.max()
    found = (2 - 2 * torch.where(small, 0.0, inner / scale.masked_fill(small, 1.0))).clamp(min=0)
    return found.fill_diagonal_(0)


def centred(gaps: Tensor, known: Tensor) -> Tensor:
    """[M, M] the Gram matrix around the mean of the models that are known."""
    share, to_mean = _to_mean(gaps, known)
    return (to_mean[:, None] + to_mean).sub_(gaps).sub_(share @ to_mean).div_(2)


def _to_mean(gaps: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Everybody's part in the mean of the models that are known, and everybody's mean squared distance to them."""
    share = known.double() / known.sum().clamp(min=1)
    return share, gaps @ share


def spread(gaps: Tensor, i: int, known: Tensor) -> Tensor:
    """The mean squared distance from client i to the others: the unit of its ridge."""
    others = _others(known, i)
    return gaps[i, others].mean() if len(others) else gaps.new_zeros(())


def nearest(gaps: Tensor, i: int, known: Tensor) -> Tensor:
    """The squared distance from client i to the closest other one."""
    others = _others(known, i)
    return gaps[i, others].min() if len(others) else gaps.new_zeros(())


def companions(gaps: Tensor, i: int, known: Tensor, clear: float) -> Tensor:
    """[M] who comes before the first jump of ``clear`` times or more in client i's sorted squared distances.

    Without such a jump everybody known does. Distances within a group and across differ by a factor; distances that
    just vary do not jump. The first clear jump, not the largest: one model far away from all would hide the groups.
    """
    others = _others(known, i)
    near, order = gaps[i, others].sort(stable=True)
    length = lengths(gaps, known)
    rounding = torch.finfo(torch.float32).eps * (length[i] + length[others[order]])  # float32, around the mean
    jumps = (near[1:] / near.maximum(rounding)[:-1].clamp(min=torch.finfo(near.dtype).tiny) >= clear).nonzero()
    if not len(jumps):
        return known
    return torch.zeros_like(known).index_fill(0, others[order[: int(jumps[0]) + 1]], 1)


def closest(gaps: Tensor, i: int, known: Tensor, count: int) -> Tensor:
    """[M] the ``count`` of those known that are closest to client i."""
    others = _others(known, i)
    order = gaps[i, others].sort(stable=True).indices[:count]
    return torch.zeros_like(known).index_fill(0, others[order], 1)


def of_others(gaps: Tensor, i: int, known: Tensor, ridge: float) -> Tensor:
    """argmin over the simplex of all others of b' K b / spread + ridge |b|^2; e_i where there are no others.

    An infinite ridge gives all others the same weight.
    """
    others = _others(known, i)
    if not len(others):
        return _unit(len(gaps), i)
    if math.isinf(ridge):
        return _spread_out(gaps.new_full((len(others),), 1 / len(others)), others, len(gaps))
    K = around(gaps, i)[others][:, others]
    return _spread_out(simplex.minimise(K + _ridge(K, ridge, spread(gaps, i, known))), others, len(gaps))


def priced(gaps: Tensor, i: int, known: Tensor, ridge: float, noise: float) -> Tensor:
    """argmin over the simplex of a' K a + 2 noise a_i + ridge spread |a|^2: weight on oneself is sold at a price."""
    us = torch.cat([torch.tensor([i]), _others(known, i)])
    K = around(gaps, i)[us][:, us]
    price = torch.zeros(len(us), dtype=K.dtype)
    price[0] = -noise
    return _spread_out(simplex.minimise(K + _ridge(K, ridge, spread(gaps, i, known)), price), us, len(gaps))


def even(i: int, known: Tensor) -> Tensor:
    """The same weight for everybody heard from, and for client i."""
    row = known.double()
    row[i] = 1.0
    return row / row.sum()


def group_sizes(text: str) -> list[int]:
    """4,4,2 as numbers, each at least 1."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise InputError(f"sizes = {text!r} are not sizes of groups", 'such as "4,4,2"')
    return [int(word) for word in text.split(",")]


def same_group(sizes: str, clients: int) -> Tensor:
    """[M, M] who is in whose group, of groups of these sizes in the order of the clients."""
    counts = group_sizes(sizes)
    if sum(counts) != clients:
        raise InputError(f"sizes = {sizes!r} are not those of groups of {clients} clients", 'such as "4,4,2"')
    label = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return label[:, None] == label


def shared(row: Tensor, i: int, share: float) -> Tensor:
    """``share`` of the weight for client i, the rest as in ``row``."""
    return (1 - share) * row + share * _unit(len(row), i)


def shared_by(rows: Tensor, ids: Tensor, share: float) -> Tensor:
    """The same for several rows, those of ``ids``."""
    own = torch.zeros_like(rows).scatter_(1, ids[:, None], share)
    return (1 - share) * rows + own


def miss(row: Tensor, ahead: Tensor, gaps: Tensor) -> Tensor:
    """|y - Theta row|^2 for a point y, from its squared distances ``ahead`` [M] to all models."""
    return row @ ahead - row @ (gaps @ row) / 2


def collaborators(A: Tensor) -> Tensor:
    """[M] the effective number of models in every mixture, 1 / sum_j a_ij^2: 1 alone, M for an even mixture."""
    return 1 / A.square().sum(1).clamp(min=torch.finfo(A.dtype).tiny)


def groups(A: Tensor) -> Tensor:
    """[M] the number of every client's group: see core/joined.py."""
    return torch.from_numpy(joined.groups(A.cpu().numpy()))


def found_groups(A: Tensor) -> Tensor:
    """[M] the same for weights of any scale."""
    return torch.from_numpy(joined.found_groups(A.cpu().numpy()))


def _others(known: Tensor, i: int) -> Tensor:
    mask = known.bool().clone()
    mask[i] = False
    return mask.nonzero()[:, 0]


def _ridge(K: Tensor, ridge: float, spread: Tensor) -> Tensor:
    return ridge * spread * torch.eye(len(K), dtype=K.dtype)


def _unit(size: int, i: int) -> Tensor:
    row = torch.zeros(size, dtype=torch.float64)
    row[i] = 1.0
    return row


def _spread_out(values: Tensor, index: Tensor, size: int) -> Tensor:
    row = torch.zeros(size, dtype=torch.float64)
    row[index] = values
    return row
