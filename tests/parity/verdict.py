"""Are two tensors, and two codes, the same? One row of the table for every comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

EQUAL = 1e-12  # relative distance below which two float64 computations count as the same


class Row(NamedTuple):
    """One comparison: the largest relative distance of every part that both codes have."""

    theirs: str
    ours: str
    rounds: int
    clients: int
    momentum: float
    distances: dict[str, float]
    same_accuracies: bool | None  # None: the two codes score different models
    verdict: str

    @property
    def holds(self) -> bool:
        return not self.verdict.startswith("DIFFERS")


def relative(theirs: Tensor, ours: Tensor) -> float:
    """|theirs - ours| / |ours|; infinite where shapes differ or a number is not finite."""
    if theirs.shape != ours.shape:
        return float("inf")
    gap, length = (theirs - ours).norm(), ours.norm()
    found = gap / length if gap != 0 else gap
    return float(found) if found.isfinite() else float("inf")


def farthest(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    return max(relative(theirs, ours) for theirs, ours in pairs)


def judge(
    distances: Mapping[str, float], same_accuracies: bool | None, reasons: Mapping[str, str], note: str = ""
) -> str:
    """``reasons`` says why a part differs: that part has to differ, every other part has to be equal."""
    if broken := [part for part, distance in distances.items() if not math.isfinite(distance)]:
        return f"DIFFERS: {broken[0]} cannot be compared"
    wrong = [part for part, distance in distances.items() if (distance < EQUAL) == (part in reasons)]
    if stale := [part for part in wrong if part in reasons]:
        return f"DIFFERS from what is written down: {stale[0]} is equal, though {reasons[stale[0]]}"
    if wrong:
        return f"DIFFERS: {wrong[0]}"
    if reasons:
        return "differs as expected: " + "; ".join(dict.fromkeys(reasons.values()))
    return "DIFFERS: accuracies" if same_accuracies is False else "equal" + (f"; {note}" if note else "")


Write = Callable[[Row], None]
