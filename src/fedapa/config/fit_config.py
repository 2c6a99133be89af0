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
from fedapa.methods.catalogue import METHODS, method_class, wrapper_name
from fedapa.methods.method import Method
from fedapa.methods.wrappers import Wrapped
from fedapa.rounds.round_plan import Plan
from fedapa.store import run_folder
from fedapa.store.run_settings import EXPERIMENT
from fedapa.training.objective import OBJECTIVES, Objective

WORDS = "_loaded_by"  # of data: the section [data] that makes them


class Given(NamedTuple):
    """What ``fit`` was given."""

    method: Method
    label: str
    data: Federated
    model: Mapping[str, Any]  # the section [model]; its name may be an object
    objective: Objective | str | None
    training: Mapping[str, Any]
    trainer: object
    plan: Plan
    run: Mapping[str, Any]  # keys of the section [run] that are no part of the plan


def loaded_by(data: Federated, words: Mapping[str, Any]) -> Federated:
    """The same data, which remember how they were made; a changed copy does not."""
    object.__setattr__(data, WORDS, dict(words))
    return data


def words_of(data: Federated) -> dict[str, Any] | None:
    """The section [data] that makes them, if they remember one."""
    found: dict[str, Any] | None = getattr(data, WORDS, None)
    return found


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
    words, model, objective = words_of(given.data), _model(given.model), _objective(given.objective)
    method, training = named_by(given.method), _training(given.training, given.trainer)
    if words is None or model is None or objective is None or method is None or training is None:
        return None
    plan = given.plan
    run = {"rounds": plan.rounds, "participation": list(plan.participation), "schedule": plan.schedule, **given.run}
    raw: dict[str, Any] = {
        "methods": [given.label],
        "seeds": [plan.seed],
        "method": {given.label: method},
        "data": words,
        "model": model,
        "objective": objective,
        "training": training,
        "run": run,
    }
    try:
        own_code.resolve(raw, Path.cwd())
        config = anchored(check(tomllib.loads(tomli_w.dumps(raw)), name="fit", with_own_code=True))
        return config if plain(method_from(config, given.label)) == plain(given.method) else None
    except (InputError, TypeError):  # a word that a config has not: the run is kept without one
        return None


def _model(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The section [model]; None where a model is an object."""
    name = given["name"]
    names = name.values() if isinstance(name, Mapping) else name if isinstance(name, list | tuple) else [name]
    if not all(isinstance(one, str) for one in names):
        return None
    name = list(name) if isinstance(name, tuple) else name
    return {**given, "name": name, "shared": _patterns(given["shared"]), "frozen": _patterns(given["frozen"])}


def _patterns(given: str | Sequence[str]) -> str | list[str]:
    return given if isinstance(given, str) else list(given) or ""


def _objective(given: Objective | str | None) -> dict[str, Any] | None:
    """The section [objective]; None where it is an object that fedapa did not make."""
    if given is None or isinstance(given, str):
        return {} if given is None else {"name": given}
    if type(given) not in OBJECTIVES.values():
        return None
    return {"name": given.spec, **_changed(given)}


def _training(given: Mapping[str, Any], trainer: object) -> dict[str, Any] | None:
    """The section [training]; None where the training loop is a function that no other process could find."""
    is_named = trainer is None or isinstance(trainer, str) or own_name(trainer) is not None
    return dict(given) if is_named else None


def named_by(method: Method) -> dict[str, Any] | None:
    """The table [method.NAME] that makes this method; None for classes without a module."""
    kind = type(method)
    changed = _changed(method)
    if isinstance(method, Wrapped):
        changed.pop("inner")
        inside, wrapper = named_by(method.inner), wrapper_name(method)
        if inside is None or wrapper is None:
            return None
        return {**inside, **changed, "base": f"{inside['base']}+{wrapper}"}
    shipped = [name for name, known in METHODS.items() if not known.preset and method_class(name) is kind]
    base = shipped[0] if shipped else own_name(kind)
    return None if base is None else {"base": base, **changed}


def _changed(settings: Method | Objective) -> dict[str, Any]:
    """The fields that are no default."""
    return {f.name: value for f in fields(settings) if (value := getattr(settings, f.name)) != f.default}


def own_name(code: Any) -> str | None:
    """file.py:NAME of a class or function at the top of a module; a script or notebook must not be imported again."""
    name = getattr(code, "__qualname__", "")
    if not name.isidentifier() or code.__module__ == "__main__":
        return None
    try:
        return f"{Path(inspect.getfile(code)).absolute()}:{name}"
    except (OSError, TypeError):
        return None
