"""Who is like whom and who works with whom: labels in common, an order that shows them, and what a matrix A says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform

from fedapa.core import joined, ranking

Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.integer[Any]]


def similarity(counts: npt.NDArray[np.int64]) -> Floats:
    """[M, M] the share of label mass that two clients have in common: sum_c min(p_c, q_c)."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.array([np.minimum(row, shares).sum(1) for row in shares])


def clustered(similar: Floats) -> Index:
    """An order that puts clients with similar labels side by side."""
    if len(similar) < 3:
        return np.arange(len(similar))
    distance = squareform(np.clip(1 - similar, 0, None), checks=False)
    tree = linkage(distance, "average")
    found: Index = leaves_list(optimal_leaf_ordering(tree, distance) if len(similar) <= 200 else tree)
    return found


def off_diagonal(matrix: Floats) -> Floats:
    found: Floats = matrix[~np.eye(len(matrix), dtype=bool)]
    return found if len(found) else np.zeros(1)


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's; NaN where one of the two does not vary."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(ranking.ranks(a), ranking.ranks(b))[0, 1])


# --------------------------------------------------------------------------------------------- what a matrix A says


def partners(A: Floats) -> Floats:
    """[M] with how many others a client effectively works: 1 / sum_j b_j^2, b the others' weights made to sum to 1.

    One where all that comes from others comes from one, M - 1 where all give the same, 0 where nobody gives anything.
    """
    others = np.clip(np.where(np.eye(len(A), dtype=bool), 0.0, A), 0.0, None)
    whole = others.sum(1)
    found: Floats = np.where(whole > 0, whole**2 / np.maximum(np.square(others).sum(1), np.finfo(float).tiny), 0.0)
    return found


def groups(A: Floats) -> list[list[int]]:
    """The clients that give each other more than 1.5 times an even share, and who hangs together with them."""
    label = joined.groups(A)
    found = [np.flatnonzero(label == first).tolist() for first in np.unique(label)]
    return [members for members in found if len(members) > 1]


def moved(before: Floats, after: Floats) -> float:
    """The share of a row's weight that went from one client to another, mean over rows: 0 nothing, 1 all of it."""
    return float(np.abs(after - before).sum(1).mean() / 2)
