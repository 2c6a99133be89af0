"""Rows of FedAPA-exact for many clients at once; ``exact_weights`` has the same for one client after another.

With theta centred anywhere, |theta_i - Theta b|^2 = b' C b - 2 C_i' b + C_ii for the Gram matrix C of all models: every
row has the same matrix, and they are solved together (core.simplex_rows). Chunks of rows are fixed, and one thread
works on each, so that no result depends on the number of cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedapa.core import exact_weights, simplex_rows
from fedapa.core.simplex_rows import Programs
from fedapa.core.threads import in_order

MANY = 128  # clients heard from, above which rows are solved together
ROWS = 128  # in a chunk


class Cloud(NamedTuple):
    """All models by their distances, and what every row needs of them."""

    gaps: Tensor  # [M, M]
    known: Tensor  # [M] bool
    gram: Tensor  # [M, M] around the mean of the known
    length: Tensor  # [M] squared, from that mean


def cloud(gaps: Tensor, known: Tensor) -> Cloud:
    return Cloud(gaps, known, exact_weights.centred(gaps, known), exact_weights.lengths(gaps, known))


class Rows(NamedTuple):
    """Whom to find rows for, and how."""

    ids: Tensor  # [S]
    ridge: float  # in units of every row's mean squared distance to its collaborators
    jump_ratio: Tensor  # [S] the jump in distances that parts a group from the others; infinite: none does
    top_k: int  # the nearest so many are mixed; 0: all
    start: Tensor  # [S, M] weights that may be close

    def chunks(self) -> Iterator[Rows]:
        for part in torch.split(torch.arange(len(self.ids)), ROWS):
            yield self._replace(ids=self.ids[part], jump_ratio=self.jump_ratio[part], start=self.start[part])


class Found(NamedTuple):
    """Of some clients."""

    ids: Tensor  # [R]
    weights: Tensor  # [R, M] on the simplex of their collaborators
    allowed: Tensor  # [R, M] who these are
    parted: Tensor  # [R] whether a jump parted anybody from them


def of_others(around: Cloud, rows: Rows) -> Iterator[Found]:
    """The same as ``exact_weights.of_others`` on ``exact_weights.companions``, chunk by chunk."""
    return in_order(lambda part: _of_others(around, part), rows.chunks())


def _of_others(around: Cloud, rows: Rows) -> Found:
    allowed, parted = companions(around, rows)
    spread = (around.gaps[rows.ids] * allowed).sum(1) / allowed.sum(1)
    programs = Programs(around.gram, around.gram[rows.ids], rows.ridge * spread, allowed, rows.start)
    is_close = bool((rows.start * allowed).any(1).all())  # every row begins with that of the round before
    steps = simplex_rows.CLOSE_STEPS if is_close else simplex_rows.STEPS
    return Found(rows.ids, simplex_rows.minimise(programs, steps), allowed, parted)


def companions(around: Cloud, rows: Rows) -> tuple[Tensor, Tensor]:
    """[R, M] whom every client may mix, without itself, and [R] whether a jump parted anybody from them."""
    line, others = torch.arange(len(rows.ids)), around.known.expand(len(rows.ids), -1).clone()
    others[line, rows.ids] = False
    most = int(others.sum(1).max())
    wanted = min(rows.top_k, most) if rows.top_k else most
    far = around.gaps[rows.ids].masked_fill(~others, torch.inf)
    near, order = far.topk(wanted, largest=False, sorted=True)
    rounding = torch.finfo(torch.float32).eps * (around.length[rows.ids, None] + around.length[order])
    ratio = near[:, 1:] / near.maximum(rounding)[:, :-1].clamp(min=torch.finfo(near.dtype).tiny)
    jumps = (ratio >= rows.jump_ratio[:, None]) & near[:, 1:].isfinite()
    before = jumps.cumsum(1) == 0  # the next one comes before the first jump, too
    kept = torch.cat([torch.ones_like(before[:, :1]), before], 1) & near.isfinite()
    return torch.zeros_like(others).scatter(1, order, kept), jumps.any(1)
