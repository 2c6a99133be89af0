"""Survival: how well risks order the times at which something happens, where some were not watched long enough.

A label is a signed time, as in XGBoost: 3.5 is an event after 3.5 units, -3.5 that nothing had happened until then.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
BLOCK = 1_000  # events that are compared with all rows at once


def concordance(y: Floats, risk: Floats) -> tuple[float, int]:
    """Harrell's: of pairs of which one surely comes first, those whose first has the higher risk, and all of them.

    An event comes before every longer time, and before equal ones without an event. Equal risks count half.
    """
    time, happened = np.abs(y), y > 0
    right, pairs = 0.0, 0
    for events in np.array_split(np.flatnonzero(happened), max(1, -(-int(happened.sum()) // BLOCK))):
        later = time > time[events, None]
        later |= (time == time[events, None]) & ~happened
        right += float((later & (risk < risk[events, None])).sum())
        right += 0.5 * float((later & (risk == risk[events, None])).sum())
        pairs += int(later.sum())
    return right, pairs
