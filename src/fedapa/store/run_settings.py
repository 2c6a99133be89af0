"""What a run was told: JSON in the meta of its run.db, and where runs of older versions have it."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapa.core.hyper_parameters import plain

CONFIG = "config.toml"
SETTINGS, EXPERIMENT = "settings", "experiment"  # keys of meta


def settings_to_json(**parts: Any) -> str:
    """Method, training, plan and objective, for ``settings_of``."""
    return json.dumps(plain(parts))


def settings_of(about: Mapping[str, str], part: str) -> dict[str, Any]:
    """The settings of a run's method, training, plan or objective by name; none if they cannot be read.

    A wrapper's are there beside those of the method inside it.
    """
    if SETTINGS not in about:
        return _older_settings(about.get(part, ""))
    return flat(_table(about[SETTINGS]).get(part, {}))


def config_of(about: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The config that a run was started with. A run without one still has its numbers."""
    if EXPERIMENT in about:
        return _table(about[EXPERIMENT])
    try:  # an older run: only its folder has it
        return tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """What ``plain`` makes of settings, without names of classes and with those of wrapped methods at the top."""
    inner = [value for value in table.values() if isinstance(value, dict)]
    found = {key: value for one in inner for key, value in flat(one).items()}
    return found | {key: value for key, value in table.items() if key != "is" and not isinstance(value, dict)}


def _table(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    except (ValueError, RecursionError):
        return {}


def _older_settings(description: str) -> dict[str, Any]:
    """Older runs have the text ``FedAPA(eta=0.01, ...)`` alone; seeds of both versions belong to one method."""
    try:
        call = ast.parse(description, mode="eval").body
        return flat(_arguments(call)) if isinstance(call, ast.Call) else {}
    except (SyntaxError, ValueError):
        return {}


def _arguments(call: ast.Call) -> dict[str, Any]:
    return {word.arg: _argument(word.value) for word in call.keywords if word.arg}


def _argument(value: ast.expr) -> Any:
    return _arguments(value) if isinstance(value, ast.Call) else plain(ast.literal_eval(value))
