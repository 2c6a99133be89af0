"""The config of a run that ``fit`` makes, where all that it was given has a name; so the folder of such a run is whole.

Data that were dealt by ``fa.load`` remember their words. Arrays, modules and classes of a script have no name that
another process could find: a run of those has no config, and commands that need one say so.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedapa.config import own_code
from fedapa.config.experiment import anchored, config_hash, method_from
from fedapa.config.load import as_table, check, dump
from fedapa.config.sections import Config
from fedapa.core.hyper_parameters import plain
from fedapa.data.federated import Federated
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, method_class
from fedapa.methods.method import Method
from fedapa.methods.wrappers import Wrapped
from fedapa.rounds.round_plan import Plan
from fedapa.store import run_folder
from fedapa.store.run_settings import EXPERIMENT

WORDS = "_loaded_by"  # of data: the section [data] that makes them


class Given(NamedTuple):
    """What ``fit`` was given."""

    method: Method
    label: str
    data: Federated
    model: Mapping[str, Any]
    objective: str | None
    training: Mapping[str, Any]
    plan: Plan
    engine: str
    workers: int
    log: Sequence[str]


def loaded_by(data: Federated, words: Mapping[str, Any]) -> Federated:
    """The same data, which remember how they were made; a changed copy does not."""
    object.__setattr__(data, WORDS, dict(words))
    return data


def keep(folder: Path, given: Given) -> dict[str, str]:
    """Write the config of a new run, if there is one; returns what run.db says of it."""
    config = config_of(given)
    if config is None:
        return {}
    if not (folder / "run.db").exists():
        run_folder.create(folder, dump(config))
    return {"config": config_hash(config), EXPERIMENT: json.dumps(as_table(config))}


def config_of(given: Given) -> Config | None:
    """A config that describes exactly this run; None where something has no name."""
    named, words = named_by(given.method), getattr(given.data, WORDS, None)
    if named is None or words is None or not isinstance(given.model["name"], str):
        return None
    run = {
        "rounds": given.plan.rounds,
        "participation": list(given.plan.participation),
        "schedule": given.plan.schedule,
        "engine": given.engine,
        "workers": given.workers,
        "log": list(given.log),
    }
    raw: dict[str, Any] = {
        "methods": [given.label],
        "seeds": [given.plan.seed],
        "method": {given.label: named},
        "data": words,
        "model": dict(given.model),
        "training": dict(given.training),
        "run": run,
    }
    raw |= {} if given.objective is None else {"objective": {"name": given.objective}}
    try:
        own_code.resolve(raw, Path.cwd())
        config = anchored(check(tomllib.loads(tomli_w.dumps(raw)), name="fit", with_own_code=True))
        return config if plain(method_from(config, given.label)) == plain(given.method) else None
    except (InputError, TypeError):  # a word that a config has not: the run is kept without one
        return None


def named_by(method: Method) -> dict[str, Any] | None:
    """The table [method.NAME] that makes this method; None for wrapped ones and classes without a module."""
    if isinstance(method, Wrapped):
        return None
    kind = type(method)
    changed = {f.name: value for f in fields(method) if (value := getattr(method, f.name)) != f.default}
    shipped = [name for name, known in METHODS.items() if not known.preset and method_class(name) is kind]
    base = shipped[0] if shipped else _own_name(kind)
    return None if base is None else {"base": base, **changed}


def _own_name(kind: type[Method]) -> str | None:
    """file.py:Class of a class at the top of a module; a script or notebook itself must not be imported again."""
    if kind.__module__ == "__main__" or "." in kind.__qualname__:
        return None
    try:
        return f"{Path(inspect.getfile(kind)).absolute()}:{kind.__name__}"
    except (OSError, TypeError):
        return None
