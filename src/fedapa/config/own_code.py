"""The user's own methods, and what packages register, in a config: files found beside it, names that fit a folder.

``methods = ["my.py:HalfWay+ema"]`` becomes the method ``halfway+ema`` with ``base = "/where/it/is/my.py:HalfWay+ema"``,
so that [method."halfway+ema"] and --set change its settings, and a run has everything that it needs to be resumed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapa import plugins
from fedapa.config.sections import Config
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, own_code, taken_apart

BASE, CODE = "base", "code"  # keys of [method.NAME]


def resolve(raw: dict[str, Any], base: Path) -> None:
    """Own methods of a config that is not checked yet get names and tables; names of packages become their code."""
    tables = raw.get("method", {})
    if isinstance(raw.get("methods"), list) and isinstance(tables, dict):
        raw["methods"] = [_named(raw, name, base) if isinstance(name, str) else name for name in raw["methods"]]
    for table in tables.values() if isinstance(tables, dict) else ():
        if isinstance(table, dict) and isinstance(table.get(BASE), str):
            table[BASE] = _anchored(table[BASE], base)
    run = raw.get("run", {})
    if isinstance(run, dict) and isinstance(run.get("log"), list):
        run["log"] = [plugins.anchored(name, base) if isinstance(name, str) else name for name in run["log"]]
    for section, key, kind in (
        ("model", "name", "models"),
        ("objective", "name", "objectives"),
        ("data", "source", "datasets"),
    ):
        if isinstance(table := raw.get(section), dict) and isinstance(name := table.get(key), str):
            table[key] = registered(name, kind)


def _named(raw: dict[str, Any], name: str, base: Path) -> str:
    """The method's name among the runs; its table says where its code is."""
    if own_code(name) is None:
        return name
    label, where = label_of(name), _anchored(name, base)
    table = raw.setdefault("method", {}).setdefault(label, {})
    if not isinstance(table, dict):
        return name  # the check of the whole config says what is wrong
    known = table.setdefault(BASE, where)
    if label in METHODS or _anchored(str(known), base) != where:
        hint = f'give it a name of its own: [method.NAME] base = "{name}", methods = ["NAME"]'
        raise InputError(f"{name} would be called {label!r}, which is another method here", hint)
    return label


def label_of(name: str) -> str:
    """What runs of an own method are called: the name of its class in lower case, or its package's name for it."""
    method, _, wrappers = taken_apart(name)
    return "+".join([method.rpartition(":")[2].lower() if plugins.is_own(method) else method, *wrappers])


def _anchored(name: str, base: Path) -> str:
    """The code behind the name of an own method, with its file's path made absolute; other names as they are."""
    own, method = own_code(name), taken_apart(name).method
    return name if own is None else plugins.anchored(own, base) + name[len(method) :]


def registered(name: str, kind: str) -> str:
    """The code behind a name that a package registered, unless fedapa has one of that name; else the name itself."""
    found = plugins.installed(kind).get(name)
    return name if found is None or name in _shipped(kind) else found


def _shipped(kind: str) -> set[str]:
    from fedapa.data.sources import SOURCES
    from fedapa.training.architectures import MODELS
    from fedapa.training.objective import OBJECTIVES

    return {"datasets": {*SOURCES}, "models": {*MODELS}, "objectives": {*OBJECTIVES}}[kind]


def with_fingerprints(config: Config) -> Config:
    """The same with the fingerprint of every own method's code beside its name, as a run keeps it."""
    tables = {name: _with_fingerprint(name, config.method.get(name, {})) for name in config.methods}
    return config.model_copy(update={"method": config.method | {k: table for k, table in tables.items() if table}})


def _with_fingerprint(name: str, table: dict[str, Any]) -> dict[str, Any]:
    own = own_code(table.get(BASE, name))
    return table if own is None else {CODE: plugins.fingerprint(own), **table}


def check_code(config: Config, name: str) -> None:
    """Refuse a method whose code is not the one that the run began with."""
    table = config.method.get(name, {})
    if (own := own_code(table.get(BASE, name))) is not None and CODE in table:
        plugins.check_unchanged(own, str(table[CODE]))
