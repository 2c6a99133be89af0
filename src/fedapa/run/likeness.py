"""Who is like whom: labels that clients share, an order that shows it, and whether weights follow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform

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
    return float(stats.spearmanr(a, b).statistic)
