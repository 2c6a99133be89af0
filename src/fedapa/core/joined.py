"""Groups of clients that hang together by the weights A [M, M] that they give each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Labels = npt.NDArray[np.int64]


def groups(A: Floats) -> Labels:
    """[M] the number of every client's group, which is named by its first member.

    Two clients are joined if each gives the other more than 1.5 times an even share; groups are what hangs together.
    """
    M = len(A)
    return components((A > 1.5 / M) & (A.T > 1.5 / M))


def found_groups(A: Floats) -> Labels:
    """[M] the same by what a client gives to others alone, for methods whose weights have any scale.

    Two clients are joined if each gives the other more than half of an even share of all that it gives to others.
    """
    gave = np.clip(A.astype(np.float64), 0, None)
    np.fill_diagonal(gave, 0)
    whole = gave.sum(1, keepdims=True)
    large = (gave > whole / (2 * max(1, len(A) - 1))) & (whole > 0)
    return components(large & large.T)


def components(joined: npt.NDArray[np.bool_]) -> Labels:
    """[M] the first member of what hangs together, for every client."""
    M = len(joined)
    joined, label = joined | np.eye(M, dtype=bool), np.arange(M, dtype=np.int64)
    for _ in range(M):
        smallest = np.where(joined, label, M).min(1, initial=M)
        if np.array_equal(smallest, label):
            break
        label = smallest
    return label
