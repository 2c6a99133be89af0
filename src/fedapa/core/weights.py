"""FedAPA's aggregation weights: aggregate (Eq. 5), descend (Eq. 6-7), project (Algorithm 1, lines 11-13).

Shapes: Theta [M, P] holds every client's last extractor, A [M, M] one row of weights per client, delta [S, P] what
the S served clients changed. No autograd: the derivative of theta_bar_i in A_i is Theta itself.

``aggregate``, ``slopes``, ``descend`` and ``project`` are the arithmetic. ``mix``, ``learn`` and ``inner_products`` run
it over slices of Theta's columns, so that nothing of the size M x P or S x P is made beside Theta and the uploads. All
cores take slices, with one thread each, and sums are in the slices' order: bits do not depend on the number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core.threads import in_order

Sign = Literal["descend", "printed"]
SelfWeight = Literal["raw", "share", "off"]
Buffer = Literal["row", "shared"]
Pieces = Sequence[tuple[slice, int]]  # ranges of columns, and the block that each belongs to
Item = TypeVar("Item")
Found = TypeVar("Found")
UNMEASURED = -1
MANY, BLOCK = 128, 128  # new rows: of more that are all there are, each distance is computed once, in blocks
LITTLE = 1e8  # operations, below which other threads are not worth waking
SLICE, NARROW, WIDE = 2**19, 2_048, 16_384  # numbers in a slice of Theta, and its least and most columns: measured
WIDER = 4_096  # least columns where sums of [M, M] are taken for every slice


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
    top_k: int = 0,
) -> Tensor:
    """Clip to [0, 1], set each row's own entry, normalise; ``own[k]`` is the client that row k belongs to.

    ``raw`` writes mu before normalising (Algorithm 1: the share becomes mu / (mu + rest)), ``share`` makes mu the exact
    share after it, ``off`` leaves the own entry as learned. A row with nothing to normalise becomes e_own. With
    ``top_k`` all but the k largest others become zero after the clip and before the rest, so that rows stay normalised.
    """
    rows = rows.clamp(0, 1) if clip else rows.clone()
    line = torch.arange(len(rows))
    if 0 < top_k < rows.shape[1] - 1:
        rows = _thinned(rows, line, own, top_k)
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


def _thinned(rows: Tensor, line: Tensor, own: Tensor, top_k: int) -> Tensor:
    others = rows.index_put((line, own), torch.tensor(-torch.inf, dtype=rows.dtype))
    kept = others.topk(top_k, 1).indices
    thin = torch.zeros_like(rows).scatter_(1, kept, rows.gather(1, kept))
    thin[line, own] = rows[line, own]
    return thin


def mix(rows: Tensor, theta: Tensor, sparse: bool = False) -> list[Tensor]:
    """theta_bar_i for every row, each in memory of its own; ``sparse`` reads only what has a weight other than 0."""
    mixed = [torch.empty(theta.shape[1], dtype=theta.dtype) for _ in rows]
    blend = Sparse(rows) if sparse else Dense(rows)

    def fill(columns: slice) -> None:
        for whole, part in zip(mixed, blend(theta[:, columns]), strict=True):
            whole[columns] = part

    for _ in _over_cores(fill, slices(*theta.shape), 2.0 * len(rows) * theta.numel()):
        pass
    return mixed


def learn(
    theta: Tensor, rows: Tensor, ids: Tensor, new: Sequence[Tensor], sign: Sign = "descend", sparse: bool = False
) -> Tensor:
    """Eq. 5 to 7 in one pass: the slopes of the rows that mixed for ``ids``; ``new`` takes their places in theta.

    theta changes, slice by slice. What was sent is mixed again, which is cheaper than keeping it.
    """
    slope = torch.zeros(len(rows), len(theta), dtype=theta.dtype)
    blend = Sparse(rows) if sparse else Dense(rows)

    def step(columns: slice) -> Tensor:
        old, fresh = theta[:, columns], torch.stack([up[columns] for up in new])
        moved = slopes(fresh - blend(old), old, sign)
        old[ids] = fresh
        return moved

    for moved in _over_cores(step, slices(*theta.shape), 4.0 * len(rows) * theta.numel()):
        slope += moved
    return slope


def inner_products(
    rows: Sequence[Tensor], theta: Tensor, origin: Tensor | None = None, ranges: Sequence[slice] | None = None
) -> Tensor:
    """[S, M] <row, theta_j> in float64, summed over float32 products of slices.

    With ``origin`` of what both are away from it; with ``ranges`` over these columns alone.
    """
    total = torch.zeros(len(rows), len(theta), dtype=torch.float64)

    def product(columns: slice) -> Tensor:
        new, old = torch.stack([row[columns] for row in rows]), theta[:, columns]
        return new @ old.T if origin is None else (new - origin[columns]) @ (old - origin[columns]).T

    wanted = (part for piece in ranges or [slice(0, theta.shape[1])] for part in slices_of(len(theta), piece))
    for part in _over_cores(product, wanted, 2.0 * len(rows) * theta.numel()):
        total += part
    return total


def renew(
    theta: Tensor,
    ids: Tensor,
    new: Sequence[Tensor],
    pieces: Pieces,
    past: Tensor | None = None,
    look_ahead: bool = True,
) -> tuple[Tensor, Tensor]:
    """``new`` takes the places ``ids`` in theta; squared distances of every new row, by block, in one pass.

    With ``past`` [S] only the share 1 - past_k of the place is new and the rest stays: rows are averages over visits.

    Returns ``ahead`` and ``gaps``, both [L, S, M] in float64: to theta as it was (zeros unless ``look_ahead``: it is
    half of the work), and as it is now. A piece is a range
    of columns and the number of its block, ``UNMEASURED`` for what is replaced only. theta changes, slice by slice;
    distances are taken around the new rows' mean, so that what all models have in common costs no digits.
    """
    blocks = 1 + max(block for _, block in pieces)
    everybody = len(theta) > MANY and torch.equal(ids, torch.arange(len(theta)))
    gaps = torch.zeros(blocks, len(new), len(theta), dtype=torch.float64)
    ahead = torch.zeros_like(gaps) if look_ahead else gaps.new_zeros(()).expand(gaps.shape)

    def replace(place: tuple[slice, int]) -> tuple[int, Tensor | None, Tensor | None]:
        columns, block = place
        old, fresh = theta[:, columns], torch.stack([up[columns] for up in new])
        if past is not None:
            fresh.lerp_(old[ids], past[:, None])
        if block == UNMEASURED:
            old[ids] = fresh
            return block, None, None
        middle = fresh.mean(0)
        before = _squared(fresh - middle, old - middle) if look_ahead else None
        if everybody:
            old.copy_(fresh)
            return block, before, _inner_above(fresh.sub_(middle))
        old[ids] = fresh
        return block, before, _squared(fresh.sub_(middle), old - middle)

    least = WIDER if everybody else NARROW
    wanted = ((columns, block) for piece, block in pieces for columns in slices_of(len(theta), piece, least))
    for block, before, after in _over_cores(replace, wanted, 4.0 * len(new) * theta.numel()):
        if before is not None:
            ahead[block] += before
        if after is not None:
            gaps[block] += after
    if everybody:
        gaps = _distances(gaps)
    gaps[:, torch.arange(len(ids)), ids] = 0.0
    return ahead.clamp(min=0) if look_ahead else ahead, gaps.clamp_(min=0)


def _squared(rows: Tensor, others: Tensor) -> Tensor:
    """[S, M] |row - other|^2."""
    inner = (rows @ others.T).mul_(-2)
    return inner.add_(rows.square().sum(1, keepdim=True) + others.square().sum(1))


def _inner_above(rows: Tensor) -> Tensor:
    """[S, S] <row, other row> on the diagonal and above it; below it only where a block reaches."""
    found = rows.new_zeros(len(rows), len(rows))
    for start in range(0, len(rows), BLOCK):
        found[start : start + BLOCK, start:] = rows[start : start + BLOCK] @ rows[start:].T
    return found


def _distances(above: Tensor) -> Tensor:
    """[L, S, S] |row - other row|^2, from the inner products on the diagonal and above it."""
    length = above.diagonal(dim1=1, dim2=2)
    far = (length[:, :, None] + length[:, None] - 2 * above).triu(1)
    return far + far.transpose(1, 2)


def slices(clients: int, size: int, least: int = NARROW) -> Iterator[slice]:
    """Column slices of Theta that fit into the cache; they depend on its shape alone, and so do the results' bits."""
    width = min(WIDE, max(least, SLICE // clients // 1024 * 1024))
    return (slice(start, min(start + width, size)) for start in range(0, size, width))


def slices_of(clients: int, piece: slice, least: int = NARROW) -> Iterator[slice]:
    """The slices of a range of columns."""
    for part in slices(clients, piece.stop - piece.start, least):
        yield slice(piece.start + part.start, piece.start + part.stop)


def _over_cores(work: Callable[[Item], Found], items: Iterator[Item], operations: float) -> Iterator[Found]:
    return map(work, items) if operations < LITTLE else in_order(work, items)


class Dense:
    """Mixes slices of Theta by all weights."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __call__(self, part: Tensor) -> Tensor:
        return aggregate(self.rows, part)


class Sparse:
    """Mixes slices of Theta by the weights that are not zero."""

    def __init__(self, rows: Tensor) -> None:
        count = (rows != 0).sum(1)
        self.first = count.cumsum(0) - count
        line, client = rows.nonzero(as_tuple=True)
        self.weight = rows[line, client]
        self.used, self.client = torch.unique(client, return_inverse=True)

    def __call__(self, part: Tensor) -> Tensor:
        used = part[self.used]  # embedding_bag would copy the whole slice
        return F.embedding_bag(self.client, used, self.first, mode="sum", per_sample_weights=self.weight)
