"""The schedule of a run: rounds, participation, order of training, evaluation; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt

from fedapa.errors import InputError
from fedapa.toml_table import Share


def _as_range(value: Any) -> Any:
    """A single share means fixed participation."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value)
    return tuple(value) if isinstance(value, list) else value


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("the lower share comes first")
    return value


Rounds = Annotated[StrictInt, Field(ge=1, description="communication rounds")]
Participation = Annotated[
    tuple[Share, Share],
    BeforeValidator(_as_range),
    AfterValidator(_ordered),
    Field(description="share of clients per round: a number, or [low, high] drawn uniformly"),
]
RunSchedule = Annotated[
    Literal["auto", "parallel", "sequential"],
    Field(description="auto: what the method asks for"),
]
EvaluateEvery = Annotated[
    StrictInt, Field(ge=1, description="rounds between evaluations; the last is always evaluated")
]


@dataclass(frozen=True)
class Plan:
    """What the loop needs to know beyond the task; [run] of a config has these keys, except the seed."""

    rounds: Rounds = 50
    participation: Participation = (0.6, 1.0)
    schedule: RunSchedule = "auto"
    seed: int = 0
    evaluate_every: EvaluateEvery = 1

    def __post_init__(self) -> None:
        low, high = self.participation
        if self.rounds < 1:
            raise InputError(f"rounds is {self.rounds}", "at least one round is needed")
        if not 0 < low <= high <= 1:
            raise InputError(f"participation is {low:g} to {high:g}", "shares must satisfy 0 < low <= high <= 1")
        if self.evaluate_every < 1:
            raise InputError(f"evaluate_every is {self.evaluate_every}", "1 evaluates every round")
