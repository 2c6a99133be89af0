"""What a tuning tries: one dimension per hyper-parameter, declared beside it by ``hyper(search=...)``.

One notation for declarations, space files and the command line: ``log:0.01..10`` (every order of magnitude alike),
``0..0.9`` (uniform), ``1,2,5`` (choices), ``off`` (not searched). ``... if attention=heuristic`` in a declaration
holds for methods with that setting alone. Settings that make a name a variant, such as ``private_head`` of pfedhn-pc,
are not searched.

Where the declared ranges come from:
  papers     FedProx mu: its grid, 0.001 to 1. FedAPA mu: the values of its Table 4 without 0.
  codes      ranges around the values of the authors' or public codes: FedPHP lambda (0.05, 0.1), FedProto lambda
             (0.1, 1), FedGH's server rate (0.01, 1), DBE kappa (50, a pull of kappa / d) and mu (0.1, 1).
  ours       all others: about a decade to both sides of the default, or most of the legal range of a share.
  training   rate and epochs of every method, Local included; the same for all.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedapa.config.load import check, settings_of, training_of
from fedapa.config.sections import Config
from fedapa.errors import InputError, did_you_mean
from fedapa.methods.catalogue import METHODS, entry, make
from fedapa.methods.method import Method

TRAINING = {"training.lr": "log:0.001..0.1", "training.epochs": "1,2,5"}
NUMBER = r"([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)"
DIGITS = 3  # significant digits of a drawn number: enough to tune by, short enough to read


class Range(NamedTuple):
    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{'log:' if self.log else ''}{self.low:g}..{self.high:g}"


class Choices(NamedTuple):
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ",".join(value if isinstance(value, str) else json.dumps(value) for value in self.values)


Dimension = Range | Choices
Space = dict[str, Dimension]  # by hyper-parameter, or training.KEY
Settings = dict[str, Any]  # values, by the same names


# ------------------------------------------------------------------------------------------------------- the notation


def parse(given: Any, where: str) -> Dimension | None:
    """The dimension that a notation means; None for ``off``."""
    if isinstance(given, list):
        return _choices(given, where)
    if not isinstance(given, str):
        raise InputError(f"{where} is {given!r}", 'write "log:0.01..10", "0..1", "1,2,5" or "off"')
    if given.strip() == "off":
        return None
    if found := re.fullmatch(rf"\s*(log:)?\s*{NUMBER}\s*\.\.\s*{NUMBER}\s*", given):
        return _range(float(found[2]), float(found[3]), bool(found[1]), f"{where}={given}")
    return _choices([_value(word.strip()) for word in given.split(",") if word.strip()], where)


def read_space(texts: Mapping[str, Any], where: str = "") -> Space:
    """A space from its notations, by hyper-parameter."""
    parsed = {key: parse(texts[key], f"{where}{key}") for key in sorted(texts)}
    return {key: dimension for key, dimension in parsed.items() if dimension is not None}


def _range(low: float, high: float, log: bool, said: str) -> Range:
    if low >= high:
        raise InputError(f"{said}: the lower end comes first", "for example 0.1..1")
    if log and low <= 0:
        raise InputError(f"{said}: a logarithmic range starts above 0", f"for example log:{high / 1000:g}..{high:g}")
    return Range(low, high, log)


def _choices(values: Sequence[Any], where: str) -> Choices:
    if not values:
        raise InputError(f"{where} has nothing to choose from", "for example 1,2,5; off does not search it")
    return Choices(tuple(dict.fromkeys(values)))


def _value(word: str) -> Any:
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word  # a bare word is a string


# ---------------------------------------------------------------------------------------------- spaces of the methods


def spaces(config: Config, asked: Mapping[str, Any]) -> dict[str, Space]:
    """The space of every method of a config: the declared one, with the requested changes."""
    placed = [_placed(key, config) for key in asked]
    found = {}
    for name in config.methods:
        wanted: dict[str, Any] = {**TRAINING, **declared(config, name)}
        wanted |= {key: asked[full] for full, (owner, key) in zip(asked, placed, strict=True) if owner in ("", name)}
        found[name] = read_space(wanted, f"the search space of {name}, ")
        if not found[name]:
            hint = f"for example --set-space '{name}.training.lr=log:0.01..0.1'"
            raise InputError(f"there is nothing to search for {name}", hint)
        _check_legal(config, name, found[name])
    return found


def declared(config: Config, name: str) -> dict[str, str]:
    """What the method behind a name declares, its wrappers included."""
    base, settings = settings_of(config, name)
    method, fixed = make(base, **settings), entry(base).preset
    return {key: text for one in _layers(method) for key, text in _searched(one) if key not in fixed}


def _layers(method: Method) -> Iterator[Method]:
    yield method
    if (inner := getattr(method, "inner", None)) is not None:
        yield from _layers(inner)


def _searched(method: Method) -> Iterator[tuple[str, str]]:
    for field in fields(method):
        text, _, condition = field.metadata.get("search", "").partition(" if ")
        key, _, value = condition.partition("=")
        if text and (not condition or str(getattr(method, key)) == value):
            yield field.name, text


def asked_for(file: Path | None, words: Sequence[str]) -> dict[str, Any]:
    """Notations by METHOD.NAME or training.NAME: those of a file, then those of the command line."""
    return {**(_from_file(file) if file is not None else {}), **dict(_from_word(word) for word in words)}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return dict(_flat(tomllib.loads(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        hint = "it is TOML: tables [METHOD] and [training] with keys like lam = 'log:0.01..10'"
        raise InputError(f"cannot read the search space {file}: {error}", hint) from None


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _from_word(word: str) -> tuple[str, str]:
    key, equals, text = word.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set-space {word!r} is not NAME=RANGE", "for example --set-space 'ditto.lam=log:0.01..10'")
    return key.strip(), text


def _placed(key: str, config: Config) -> tuple[str, str]:
    """The method that a key belongs to, empty for all of them, and its name there."""
    if key.startswith("training."):
        return "", key
    names = {*config.methods, *config.method, *METHODS}
    owner = max((name for name in names if key.startswith(f"{name}.")), key=len, default=None)
    if owner is None:
        hint = did_you_mean(key.partition(".")[0], [*names, "training"], "write METHOD.NAME or training.NAME")
        raise InputError(f"the search space names {key}, which is of no method", hint)
    return owner, key.removeprefix(f"{owner}.")


def _check_legal(config: Config, name: str, space: Space) -> None:
    """Check before the first run that the ends of ranges and all choices are legal values."""
    for key, dimension in space.items():
        for value in dimension.values if isinstance(dimension, Choices) else dimension[:2]:
            said = f"the search space of {name}, {key}={dimension}"
            own = {name: table(config, name, {key: value})}
            whole = {"methods": [name], "method": own, "training": asdict(config.training)}
            check(whole, name=said, with_own_code=True)


def table(config: Config, name: str, settings: Settings) -> dict[str, Any]:
    """The table [method.NAME] of a method with these settings on top of its own."""
    given = dict(config.method.get(name, {}))
    training = given.pop("training", {}) | {
        key.removeprefix("training."): value for key, value in settings.items() if key.startswith("training.")
    }
    own = {key: value for key, value in settings.items() if not key.startswith("training.")}
    return {"base": name, **given, **own, **({"training": training} if training else {})}


def defaults(config: Config, name: str, space: Space) -> Settings:
    """The values that a method has without tuning."""
    base, settings = settings_of(config, name)
    layers, training = list(_layers(make(base, **settings))), training_of(config, name)
    return {
        key: getattr(training, key.removeprefix("training."))
        if key.startswith("training.")
        else next(getattr(one, key) for one in layers if hasattr(one, key))
        for key in space
    }


# ------------------------------------------------------------------------------------------------------------ drawing


def drawn(space: Space, name: str, seed: int, trial: int, attempt: int = 0) -> Settings:
    """The settings of a numbered trial. Values of training.* are the same for every method."""
    return {
        key: _at(dimension, _uniform(seed, key if key.startswith("training.") else f"{name}.{key}", trial, attempt))
        for key, dimension in space.items()
    }


def _uniform(*key: object) -> float:
    """A number from 0 to 1 by key alone, so that neither order nor number of draws matters."""
    return float(np.random.default_rng(stream(*key)).random())


def stream(*key: object) -> int:
    """The seed of a stream that is named by its key."""
    return int.from_bytes(hashlib.sha256(json.dumps(["tune", *key]).encode()).digest()[:8])


def _at(dimension: Dimension, u: float) -> Any:
    if isinstance(dimension, Choices):
        return dimension.values[int(u * len(dimension.values))]
    low, high, log = dimension
    return rounded(math.exp(math.log(low) + u * math.log(high / low)) if log else low + u * (high - low), dimension)


def rounded(value: Any, dimension: Dimension) -> Any:
    """Numbers of a range with few digits, still inside it."""
    if isinstance(dimension, Choices):
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), dimension.low), dimension.high)


def size(space: Space) -> float:
    """How many different settings there are."""
    return math.prod(len(d.values) if isinstance(d, Choices) else math.inf for d in space.values())
