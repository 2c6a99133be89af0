"""Sums and counts of scores, and their summary over clients."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fedapa.core.scores import Score

# Sums and counts. Of one model [S, 4]: a row per score, in the objective's order, with sum and count on test data and
# sum and count on validation data; of all clients [M, S, 4].
Sums = npt.NDArray[np.float64]
TEST, VALIDATION = slice(0, 2), slice(2, 4)
UNKNOWN = -1.0  # count of what was not measured yet


@dataclass(frozen=True)
class Summary:
    """One score over all clients; pooled = of all test samples together."""

    pooled: float
    mean: float
    std: float
    worst: float
    worst10: float  # mean of the worst tenth of the clients, at least one

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def summarise(score: Score, sums: npt.ArrayLike, counts: npt.ArrayLike) -> Summary:
    """Clients without test samples count in no mean."""
    sums, counts = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    each = score.values(sums, counts)[counts > 0]
    if not len(each):
        return Summary(*(float("nan"),) * 5)
    tenth = np.sort(score.sign * each)[: max(1, len(each) // 10)] * score.sign
    pooled = score.value(sums.sum(), counts.sum())
    return Summary(pooled, float(each.mean()), float(each.std()), score.worst(each), float(tenth.mean()))
