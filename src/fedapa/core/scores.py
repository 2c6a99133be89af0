"""Scores: what a sum and a count become, in which unit, and whether more of it is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Better = Literal["higher", "lower"]
Rule = Literal["mean", "root", "one minus"]


def fixed(value: float, digits: int, sign: str = "") -> str:
    """With so many decimals; thousands without any, in groups of three digits, and billions by their power."""
    if abs(value) >= 1e9:
        return f"{value:{sign}.4g}"
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.{digits}f}"


@dataclass(frozen=True)
class Score:
    """How a sum and a count become a value, and what that value means.

    ``rule``: mean is sum / count, root is its square root, "one minus" is 1 - sum / count.
    """

    name: str
    better: Better = "higher"
    rule: Rule = "mean"
    scale: float = 1.0
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf
    digits: int = 3
    per_sample: bool = True  # its count is the number of samples
    is_share: bool = False  # its sum counts those of the samples that are right: exact intervals hold

    def values(self, sums: npt.ArrayLike, counts: npt.ArrayLike) -> Floats:
        """The value of every pair; NaN where nothing was counted."""
        total = np.asarray(counts, dtype=np.float64)
        sums, total = np.asarray(sums, dtype=np.float64), np.where(total > 0, total, np.nan)
        if self.rule == "mean":
            return np.asarray(self.scale * sums / total, dtype=np.float64)
        found = np.sqrt(sums / total) if self.rule == "root" else 1 - sums / total
        return np.asarray(self.scale * found, dtype=np.float64)

    def value(self, sum: float, count: float) -> float:
        return float(self.values(sum, count))

    @property
    def sign(self) -> int:
        """What makes a difference positive where the first is better."""
        return 1 if self.better == "higher" else -1

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def gap_bounds(self) -> tuple[float, float]:
        """Of the difference between two values."""
        return self.low - self.high, self.high - self.low

    @property
    def heading(self) -> str:
        """The name with the unit, for axes and columns."""
        return f"{self.name} {self.unit}".strip()

    @property
    def points(self) -> str:
        """What a difference is counted in."""
        return "points" if self.unit == "%" else self.name

    def text(self, value: float | None) -> str:
        """A value with its unit."""
        return f"{self.number(value)} {self.unit}".strip()

    def number(self, value: float | None, signed: bool = False) -> str:
        """A value without its unit; a dash where there is none."""
        if value is None or not math.isfinite(value):
            return "–"
        return fixed(value, self.digits, "+" if signed else "")

    def best(self, values: Sequence[float]) -> int:
        """The place of the best value; values that are not numbers lose."""
        signed = self.sign * np.asarray(values, dtype=np.float64)
        return int(np.argmax(np.where(np.isnan(signed), -np.inf, signed)))

    def worst(self, values: Floats) -> float:
        return float(values.min() if self.better == "higher" else values.max())

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no infinity: a bound that is none is left out."""
        return {key: value for key, value in asdict(self).items() if value not in (math.inf, -math.inf)}


ACCURACY = Score("accuracy", scale=100.0, unit="%", low=0.0, high=100.0, digits=2, is_share=True)
LOSS = Score("loss", better="lower", low=0.0, digits=4)
AUC = Score("AUC", low=0.0, high=1.0, per_sample=False)
AVERAGE_PRECISION = Score("average precision", low=0.0, high=1.0, per_sample=False)
BRIER = Score("Brier", better="lower", low=0.0, high=2.0)
RMSE = Score("RMSE", better="lower", rule="root", low=0.0)
MAE = Score("MAE", better="lower", low=0.0)
CONCORDANCE = Score("concordance", low=0.0, high=1.0, per_sample=False)
R2 = Score("R²", rule="one minus", high=1.0, per_sample=False)


def scores_to_json(scores: Sequence[Score]) -> list[dict[str, Any]]:
    return [score.as_dict() for score in scores]


def scores_from_json(rows: Sequence[Mapping[str, Any]]) -> tuple[Score, ...]:
    return tuple(Score(**row) for row in rows)
