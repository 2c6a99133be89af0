"""Which clients of a simulation are malicious, and what they do; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PlainValidator, StrictFloat

from fedapa.toml_table import TABLE, distinct

Kind = Literal["label-flip", "noise", "scaled", "near-copy", "colluding"]
FACTORS = {"label-flip": 0.0, "noise": 1.0, "scaled": -5.0, "near-copy": 0.05, "colluding": -5.0}


def _who(value: Any) -> int | list[int]:
    """A number of clients, or which."""
    named = value if isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in named) or value == 0:
        raise ValueError("give a number of clients, or a list of clients counted from 0")
    found: int | list[int] = distinct(value) if isinstance(value, list) else value
    return found


@dataclass(frozen=True)
class AttackSettings:
    """The section [attack]: see docs/beyond.md."""

    __pydantic_config__ = TABLE

    kind: Annotated[Kind, Field(description="what malicious clients do to labels, or to their updates")]
    clients: Annotated[
        int | list[int],
        PlainValidator(_who),
        Field(description="how many are malicious, drawn by the seed, or a list of clients counted from 0"),
    ] = 1
    factor: Annotated[
        StrictFloat | None,
        Field(
            description="noise: its norm in norms of the update (1); scaled, colluding: what multiplies the update (-5)"
            "; near-copy: share of the own update that is added (0.05)"
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.kind == "label-flip" and self.factor is not None:
            raise ValueError("label-flip has no factor")


class Attack(NamedTuple):
    """An attack of one run: the clients are drawn, the factor is known."""

    kind: Kind
    clients: tuple[int, ...]  # ascending
    factor: float

    def __str__(self) -> str:
        how = "" if self.kind == "label-flip" else f" ({self.factor:g})"
        return f"{self.kind}{how} by {', '.join(map(str, self.clients))}"
