"""What FedAPA's paper prints for a scenario and a method, so that it can stand beside our numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from fedapa.core.hyper_parameters import plain
from fedapa.methods.catalogue import METHODS, make
from fedapa.store.run_settings import flat

WHERE = ("source", "partition", "alpha", "classes_per_client", "clients")
ABLATED = {"source": "cifar10", "partition": "dirichlet", "alpha": 0.1, "clients": 20}  # of Tables 2 to 4
SAME = {"fedapa-reference": "fedapa"}  # the released code is what the paper ran


class Printed(NamedTuple):
    """The paper's numbers for one method; None where it has none."""

    accuracy: float | None = None
    kib: float | None = None
    seconds_per_round: float | None = None


@cache
def tables() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))
    return found


def printed(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Printed:
    """``config`` is one run's, ``settings`` are those of its method."""
    data, name = config.get("data", {}), base_of(config)
    base, column = SAME.get(name, name), _column(data)
    if column is None or base not in METHODS or _own(config).get("training"):  # the paper trains all alike
        return Printed()
    changed = _changes(name, settings)
    if changed:
        return Printed(_ablation(changed) if base == "fedapa" and _fits(ABLATED, data) else None)
    cost = tables()["table2"].get(base, {}) if _fits(ABLATED, data) else {}
    return Printed(column["accuracy"].get(base), cost.get("kib"), cost.get("seconds_per_round"))


def deviations(config: Mapping[str, Any]) -> list[str]:
    """Where a run's setting is not the paper's."""
    given = {**config.get("training", {}), "rounds": config.get("run", {}).get("rounds")}
    given["model"] = config.get("model", {}).get("name")
    wanted = tables()["setting"]
    return [f"{key} {given[key]}, not {wanted[key]}" for key in wanted if given.get(key) not in (None, wanted[key])]


def base_of(config: Mapping[str, Any]) -> str:
    """The registered method behind the one that a run's config names."""
    return str(_own(config).get("base", (config.get("methods") or [""])[0]))


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    """The table [method.NAME] of the one method that a run's config names."""
    names = config.get("methods") or [""]
    found: dict[str, Any] = config.get("method", {}).get(names[0], {})
    return found


def _column(data: Mapping[str, Any]) -> dict[str, Any] | None:
    return next((row for row in tables()["table1"] if _fits(row, data)), None)


def _fits(row: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    return all(row.get(key) == data.get(key) for key in WHERE)


def _changes(base: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the method as it is registered."""
    default = flat(plain(make(base)))
    return {key: given[key] for key in given if key in default and given[key] != default[key]}


def _ablation(changed: Mapping[str, Any]) -> float | None:
    for table in (tables()["table3"], tables()["table4"]):
        for words, accuracy in table.items():
            if set(words.split()) == {f"{key}={value}" for key, value in changed.items()}:
                return float(accuracy)
    return None
