"""Which way updates point: the cosine of each to the coordinate-wise median of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

CHUNK = 2**20  # coordinates that are sorted at a time


def cosines_to_others(updates: Sequence[Mapping[str, Tensor]]) -> list[float]:
    """For each update, its cosine to the coordinate-wise median of the others; 0 where either is zero.

    All updates have the same names and shapes. The median of the others, not of all: among few, an update would pull
    the median towards itself.
    """
    dots, own, others = (torch.zeros(len(updates), dtype=torch.float64) for _ in range(3))
    for name in updates[0]:
        rows = [update[name].reshape(-1) for update in updates]
        for begin in range(0, len(rows[0]), CHUNK):
            values = torch.stack([row[begin : begin + CHUNK] for row in rows]).double()
            medians = medians_of_others(values)
            dots += (values * medians).sum(1)
            own += values.square().sum(1)
            others += medians.square().sum(1)
    norms = own.sqrt() * others.sqrt()
    return [dot / norm if norm > 0 else 0.0 for dot, norm in zip(dots.tolist(), norms.tolist(), strict=True)]


def medians_of_others(values: Tensor) -> Tensor:
    """[S, n] to [S, n]: in each column, the median of all values but the row's own.

    Without row i, place k of the sorted column is held by the value at k, or by the one after it where row i was at or
    before k. So one sort serves all rows.
    """
    ordered, count = values.sort(0).values, len(values) - 1
    places = {(count - 1) // 2, count // 2}
    found = [torch.where(values > ordered[k], ordered[k], ordered[k + 1]) for k in sorted(places)]
    return torch.stack(found).mean(0)
