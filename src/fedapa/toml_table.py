"""What the tables of a config have in common: dataclasses whose annotations also say which values are legal.

A config reads such a dataclass from a table of TOML: it refuses unknown keys and values of another type. Made in
Python, the dataclass takes what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StrictFloat

TABLE = ConfigDict(extra="forbid", allow_inf_nan=False)


def _listed(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError("input should be a valid list")
    return value


def distinct(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value} is named twice")
    return values


Share = Annotated[StrictFloat, Field(gt=0, le=1)]
Texts = Annotated[Sequence[str], BeforeValidator(_listed), AfterValidator(tuple)]
