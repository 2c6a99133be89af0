"""Many quadratic programs on the simplex at once: rows that share their matrix, of federations with many clients.

Row r minimises a' (C + ridge_r I) a - 2 c_r' a over a >= 0, sum a = 1, on the coordinates that it is allowed. C is
positive semidefinite and ridge_r > 0, so that the minimiser is unique and a residual bounds the distance to it:
|a - a*| <= |residual| / ridge_r. Every answer here has passed that test; rows that do not pass it in time are solved
one by one by ``simplex.minimise``.

A primal-dual active-set method over all rows of a chunk: solve on the support by conjugate gradients, drop what is
negative, take in what would lower the value. Each step is one matrix product for all rows, with directions in float32
and gradients in float64, as in iterative refinement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedapa.core import simplex

CLOSE = 1e-8  # how far from the optimum a weight may be, by the bound above; most are a thousand times closer
ROUNDING = 1e-14  # of a gradient, beside the largest entry
PASSES = 40  # changes of support and refinements before a row is solved alone
# Steps of conjugate gradients: few while most of the support is yet to be dropped, then more, since rough answers can
# send the same coordinates in and out for ever.
STEPS, MORE = (3, 3, 3, 3, 3, 3, 8, 8, 8, 8, 8, 8), 24
CLOSE_STEPS = (6,) * 12  # from a start that is close most of the support is right, and fewer passes of more steps do
SETTLED = 8  # at least, once no coordinate enters
RESIDUE = 1e-10  # of the first squared residual: what is left below it is the rounding of float32
FEW = 256  # coordinates that a row may use: their part of C is copied out, and all of C is left alone
CACHED = 2**20  # numbers in the parts of C that are copied out at a time


class Programs(NamedTuple):
    """S programs over M coordinates."""

    C: Tensor  # [M, M] float64, shared
    c: Tensor  # [S, M]
    ridge: Tensor  # [S]
    allowed: Tensor  # [S, M] bool; at least one of every row
    start: Tensor  # [S, M] weights to begin with, of any scale; 0 everywhere: begin with all that are allowed

    def rows(self, index: Tensor) -> Programs:
        return Programs(self.C, *(part[index] for part in self[1:]))


def minimise(programs: Programs, steps: Sequence[int] = STEPS) -> Tensor:
    """[S, M] the minimisers, in float64, by so many steps of conjugate gradients in every pass."""
    most = int(programs.allowed.sum(1).max())
    if most > min(FEW, len(programs.C) // 2):
        return _wide(programs, steps)
    parts = torch.split(torch.arange(len(programs.c)), max(1, CACHED // most**2))
    return torch.cat([_narrow(programs.rows(index), steps) for index in parts])


def _wide(programs: Programs, steps: Sequence[int]) -> Tensor:
    """Rows that may use most coordinates: products with all of C."""
    C, scale = programs.C, _scale(programs.C.diagonal())
    small = (C / scale).float()
    found, open_rows = _solve(programs, scale, lambda a, _: a @ C, lambda d, _: d @ small, steps)
    return _finish(programs, found, open_rows)


def _narrow(programs: Programs, steps: Sequence[int]) -> Tensor:
    """Rows that may use few coordinates: products with their own part of C."""
    width = int(programs.allowed.sum(1).max())
    index = programs.allowed.byte().sort(dim=1, descending=True, stable=True).indices[:, :width]
    own = programs.C[index[:, :, None], index[:, None, :]]
    scale = _scale(own.diagonal(dim1=1, dim2=2))
    small = (own / scale).float()
    part = Programs(programs.C, *(value.gather(1, index) if value.ndim > 1 else value for value in programs[1:]))
    found, open_rows = _solve(
        part,
        scale,
        lambda a, rows: torch.bmm(a[:, None], own[rows])[:, 0],
        lambda d, rows: torch.bmm(d[:, None], small[rows])[:, 0],
        steps,
    )
    return _finish(programs, torch.zeros_like(programs.c).scatter_(1, index, found), open_rows)


def _scale(diagonal: Tensor) -> Tensor:
    """The largest entry of C, by which directions are computed: float32 has a range."""
    return diagonal.max().clamp(min=torch.finfo(torch.float64).tiny)


Product = Callable[[Tensor, Tensor], Tensor]  # of the chunk's rows with these numbers, and C


def _solve(
    programs: Programs, scale: Tensor, product: Product, rough: Product, wanted: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The minimisers, and the numbers of the rows that are still open; ``rough`` is a product with C / scale."""
    found = torch.zeros_like(programs.c)
    rows = torch.arange(len(found))
    support, a = _begin(programs)
    smallest = ROUNDING * programs.c.abs().amax(1, keepdim=True).maximum(scale)
    for k in range(PASSES):
        c, ridge, allowed = programs.c[rows], programs.ridge[rows, None], programs.allowed[rows]
        slope = product(a, rows) + ridge * a - c
        level = (slope * support).sum(1, keepdim=True) / support.sum(1, keepdim=True)
        slope -= level
        limit = (CLOSE * ridge).maximum(smallest[rows])
        left = -slope * support
        far = left.norm(dim=1, keepdim=True)
        enter = (
            allowed & ~support & (slope < -limit.maximum(far))
        )  # what lowers the value more than the support yet can
        settled = ~enter.any(1)
        done = settled & (far <= limit)[:, 0]
        found[rows[done]] = a[done]
        support = support | enter
        left = -slope * support
        rows, support, a, left, ridge = (value[~done] for value in (rows, support, a, left, ridge))
        if not len(rows):
            break
        steps = wanted[k] if k < len(wanted) else MORE
        steps = max(steps, SETTLED) if bool(settled[~done].all()) else steps
        a = a + _conjugate(left / scale, support, ridge / scale, rows, rough, steps)
        support = support & (a > 0)
        a = a * support
        a /= a.sum(1, keepdim=True)
    return found, rows


def _begin(programs: Programs) -> tuple[Tensor, Tensor]:
    """Support and weights to begin with."""
    a = programs.start.double().clamp(min=0) * programs.allowed
    a = torch.where(a.sum(1, keepdim=True) > 0, a, programs.allowed.double())
    return a > 0, a / a.sum(1, keepdim=True)


def _conjugate(left: Tensor, support: Tensor, ridge: Tensor, rows: Tensor, rough: Product, steps: int) -> Tensor:
    """A step that makes the residual ``left`` small: conjugate gradients among steps of sum zero on the support."""
    inside, ridge = support.float(), ridge.float()
    count, tiny = inside.sum(1, keepdim=True), torch.finfo(torch.float32).tiny
    size = left.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)

    def kept(x: Tensor) -> Tensor:
        return (x - (x * inside).sum(1, keepdim=True) / count) * inside

    r = kept((left / size).float())
    step, way, norm = torch.zeros_like(r), r, r.square().sum(1, keepdim=True)
    least = RESIDUE * norm
    for _ in range(steps):
        curved = kept(rough(way, rows) + ridge * way)
        bend = (way * curved).sum(1, keepdim=True)
        rate = torch.where((norm > least) & (bend > 0), norm / bend.clamp(min=tiny), 0.0)
        step, r = step + rate * way, r - rate * curved
        before, norm = norm, r.square().sum(1, keepdim=True)
        way = r + norm / before.clamp(min=tiny) * way
    return kept(step).double() * size


def _finish(programs: Programs, found: Tensor, open_rows: Tensor) -> Tensor:
    """The rows that did not pass, one by one."""
    for r in open_rows.tolist():
        use = programs.allowed[r].nonzero()[:, 0]
        Q = programs.C[use][:, use]
        Q.diagonal().add_(programs.ridge[r])
        found[r] = torch.zeros_like(found[r]).index_copy(0, use, simplex.minimise(Q, programs.c[r, use]))
    return found
