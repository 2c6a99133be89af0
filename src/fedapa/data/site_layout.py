"""The section [layout]: what all sites of a federation agree on before they train; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from fedapa.toml_table import TABLE, Texts


def _as_floats(value: Any) -> Any:
    return [float(v) if type(v) is int else v for v in value] if isinstance(value, list | tuple) else value


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] >= value[1]:
        raise ValueError("the first number must be the smaller one")
    return value


Range = Annotated[tuple[StrictFloat, StrictFloat], BeforeValidator(_as_floats), AfterValidator(_ordered)]


@dataclass(frozen=True)
class LayoutColumn:
    __pydantic_config__ = TABLE

    name: StrictStr
    kind: Literal["number", "category"] = "number"
    levels: Annotated[Texts, Field(description="of a category, in the order of their inputs")] = ()
    indicator: Annotated[StrictBool, Field(description="an extra input tells that the number is missing")] = False
    unit: Annotated[StrictStr, Field(description="such as years or mg/dl")] = ""


@dataclass(frozen=True)
class Layout:
    """Names, kinds, units and codes: no value of any row. `fedapa coordinator new-config` writes it."""

    __pydantic_config__ = TABLE

    label: Annotated[StrictStr, Field(description="column to predict")] = "label"
    classes: Annotated[Texts, Field(description="names of the classes, in order; none: numbers")] = ()
    target_range: Annotated[Range | None, Field(description="[lowest, highest] number that a label may be")] = None
    shape: Annotated[Sequence[StrictInt], Field(description="of a sample that is no row"), AfterValidator(tuple)] = ()
    mode: Annotated[StrictStr, Field(description="of images: L or RGB")] = ""
    columns: Annotated[Sequence[LayoutColumn], AfterValidator(tuple)] = ()
