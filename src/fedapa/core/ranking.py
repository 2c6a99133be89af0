"""Scores of probabilities p [n, C] on classes y [n] that do not add up over samples: areas under curves.

Of two classes the last is the one to find; of more, the mean of one against the rest. None where the rows hold fewer
than two classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def auc(y: Ints, p: Floats) -> float | None:
    """Area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    return _one_against_rest(roc_auc_score, y, p)


def average_precision(y: Ints, p: Floats) -> float | None:
    """Area under the curve of precision and recall, by steps."""
    from sklearn.metrics import average_precision_score

    return _one_against_rest(average_precision_score, y, p)


def _one_against_rest(area: Callable[[Any, Any], Any], y: Ints, p: Floats) -> float | None:
    present = [c for c in range(p.shape[1]) if 0 < (y == c).sum() < len(y)]
    if p.shape[1] == 2:
        present = present[-1:]
    areas = [area(y == c, p[:, c]) for c in present]
    return float(np.mean(areas)) if areas else None


def brier(y: Ints, p: Floats) -> float:
    """Mean squared distance of the probability of the last of two classes; of more, summed over the classes."""
    hit = np.eye(p.shape[1])[y]
    gaps = np.square(p - hit)
    return float((gaps[:, -1] if p.shape[1] == 2 else gaps.sum(1)).mean())
