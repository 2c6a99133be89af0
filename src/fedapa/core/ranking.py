"""Ranks, and scores of probabilities p [n, C] on classes y [n] that do not add up over samples: areas under curves.

Of two classes the last is the one to find; of more, the mean of one against the rest. None where the rows hold fewer
than two classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def auc(y: Ints, p: Floats) -> float | None:
    """Area under the ROC curve."""
    return _one_against_rest(_roc_area, y, p)


def average_precision(y: Ints, p: Floats) -> float | None:
    """Area under the curve of precision and recall, by steps."""
    return _one_against_rest(_precision_area, y, p)


def _one_against_rest(area: Callable[[Mask, Floats], float], y: Ints, p: Floats) -> float | None:
    if not np.isfinite(p).all():
        raise ValueError("probabilities that are not finite have no order")
    present = [c for c in range(p.shape[1]) if 0 < (y == c).sum() < len(y)]
    if p.shape[1] == 2:
        present = present[-1:]
    areas = [area(y == c, p[:, c]) for c in present]
    return float(np.mean(areas)) if areas else None


def _roc_area(hit: Mask, p: Floats) -> float:
    """Of all pairs of a hit and another row, the share in which the hit has more; equal ones count half."""
    hits, others = _by_value(hit, p)
    beaten = others.cumsum() - others / 2
    return float(hits @ beaten / (hits.sum() * others.sum()))


def _precision_area(hit: Mask, p: Floats) -> float:
    """Precision at every value of p, weighted by the recall that it adds."""
    hits, others = (counts[::-1] for counts in _by_value(hit, p))
    return float(hits @ (hits.cumsum() / (hits + others).cumsum()) / hits.sum())


def _by_value(hit: Mask, p: Floats) -> tuple[Floats, Floats]:
    """How many hits and others there are of every value of p, in ascending order."""
    values, place = np.unique(p, return_inverse=True)
    counts = [np.bincount(place[rows], minlength=len(values)).astype(np.float64) for rows in (hit, ~hit)]
    return counts[0], counts[1]


def ranks(values: Floats) -> Floats:
    """From 1 for the lowest; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: Floats = (counts.cumsum() - (counts - 1) / 2)[place]
    return found


def brier(y: Ints, p: Floats) -> float:
    """Mean squared distance of the probability of the last of two classes; of more, summed over the classes."""
    hit = np.eye(p.shape[1])[y]
    gaps = np.square(p - hit)
    return float((gaps[:, -1] if p.shape[1] == 2 else gaps.sum(1)).mean())
