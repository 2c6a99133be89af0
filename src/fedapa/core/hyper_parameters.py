"""Settings that know their legal range: fields of frozen dataclasses with a default, a range and a line of help."""

from __future__ import annotations

import math
from dataclasses import field, fields, is_dataclass
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from fedapa.errors import InputError


def hyper(
    default: Any,
    help: str,
    low: float = -math.inf,
    high: float = math.inf,
    source: str = "",
    search: str = "",
    repr: bool = True,
) -> Any:
    """A hyper-parameter: its default, one line of help, its legal range and where the default comes from.

    ``search`` is what `fedapa tune` tries: "log:0.01..10", "0..0.9" or choices "1,2,5"; nothing keeps the default.
    ``repr=False``: a field that came later than stored runs, whose identity is a ``repr``.
    """
    meta = {"help": help, "low": low, "high": high, "source": source, "search": search}
    return field(default=default, metadata=meta, repr=repr)


def check_settings(owner: Any) -> None:
    """Every field of a dataclass is of its type and in its range; InputError names the one that is not."""
    hints = _hints(owner.__class__)
    for f in fields(owner):
        _check(type(owner).__name__, f.name, getattr(owner, f.name), hints[f.name], f.metadata)


@lru_cache(maxsize=256)  # annotations are texts, which take long to read
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _check(owner: str, name: str, value: Any, hint: Any, meta: Any) -> None:
    if choices := [a for a in get_args(hint) if isinstance(a, str)]:
        if value not in choices:
            raise InputError(f"{owner}.{name} is {value!r}", f"choose one of {', '.join(choices)}")
        return
    if isinstance(value, bool) or hint is bool:
        if not (isinstance(value, bool) and hint is bool):
            raise InputError(f"{owner}.{name} is {value!r}", f"it must be {getattr(hint, '__name__', hint)}")
        return
    if isinstance(value, int | float):
        low, high = meta.get("low", -math.inf), meta.get("high", math.inf)
        if not (low <= value <= high) or math.isnan(value):
            raise InputError(f"{owner}.{name} is {value}, outside its legal range", f"choose from {low:g} to {high:g}")
        if hint is int and not isinstance(value, int):
            raise InputError(f"{owner}.{name} is {value}", "it must be a whole number")
    elif hint in (int, float):
        raise InputError(f"{owner}.{name} is {value!r}", "it must be a number")


def describe(kind: type[Any]) -> list[dict[str, Any]]:
    """The settings of a class as rows for listings."""
    hints = get_type_hints(kind)
    return [
        {"name": f.name, "default": f.default, "type": _type_name(hints[f.name]), **dict(f.metadata)}
        for f in fields(kind)
    ]


def plain(value: Any) -> Any:
    """Settings as JSON holds them, every dataclass with the name of its class; what JSON does not know is its repr."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__, **{f.name: plain(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else repr(value)


def _type_name(hint: Any) -> str:
    choices = [a for a in get_args(hint) if isinstance(a, str)]
    return " | ".join(choices) if choices else str(getattr(hint, "__name__", hint))
