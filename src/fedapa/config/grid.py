"""A file of several scenarios: the keys of [scenario.NAME] override those that the file sets for all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from fedapa.config.load import Change, apply, checked, parse
from fedapa.config.sections import Config
from fedapa.errors import InputError


def load_scenarios(source: str, changes: Iterable[str | Change] = ()) -> dict[str, Config]:
    """A config per scenario, by name; a file without scenarios is one scenario with an empty name."""
    text, name, raw = parse(source)
    changes = list(changes)
    overlays = raw.pop("scenario", {"": {}})
    if not isinstance(overlays, dict) or not all(isinstance(one, dict) for one in overlays.values()):
        raise InputError(f"{name}: scenario is not a table of tables", "write [scenario.NAME.data] and so on")
    found = {}
    for label, overlay in overlays.items():
        if label and not re.fullmatch(r"\w[\w.+-]*", label):
            hint = "it names a folder: use letters, digits, - and _"
            raise InputError(f"{name}: {label!r} cannot name a scenario", hint)
        where = f"{name}, scenario {label}" if label else name
        merged = laid_over(deepcopy(raw), deepcopy(overlay))
        found[label] = checked(merged, text if not label else "", where, apply(merged, changes), source)
    return found


def laid_over(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged, anything else is replaced."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        merged[key] = laid_over(below, value) if both else value  # type: ignore[arg-type]
    return merged
