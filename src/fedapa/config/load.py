"""Read a config from a preset or a file, apply ``--set``, and explain every mistake with file, line and caret."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import tomli_w
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from fedapa import plugins
from fedapa.config import own_code, presets
from fedapa.config.sections import Config
from fedapa.errors import InputError, did_you_mean
from fedapa.methods.catalogue import METHODS, RESERVED, is_known, recipe_training
from fedapa.training.settings import Training

Path_ = tuple[str | int, ...]

# What pydantic calls these mistakes, in sections that are models and in those that are dataclasses.
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
NO_TABLE = ("model_type", "dataclass_type")


class Change(NamedTuple):
    """A key, its new value, and the command-line argument that sets it."""

    said: str
    path: Path_
    value: Any


def load(source: str, changes: Iterable[str | Change] = ()) -> Config:
    """A config from a file or a shipped preset, with ``key.path=value`` changes on top."""
    text, name, raw = parse(source)
    if "scenario" in raw:
        raise InputError(f"{name} has several scenarios", f"`fedapa sweep {source}` runs such a file")
    return checked(raw, text, name, apply(raw, changes), source)


def checked(raw: dict[str, Any], text: str, name: str, origin: Mapping[Path_, str], source: str) -> Config:
    """The user's own config: files are looked for beside it, and own methods are imported to check their settings."""
    own_code.resolve(raw, _folder(source))
    return beside(check(raw, text, name, origin, with_own_code=True), source)


def parse(source: str) -> tuple[str, str, dict[str, Any]]:
    """Text and name of a config file or preset, and what it says, not yet checked."""
    text, name = _text(source)
    try:
        return text, name, tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{name}: nested too deeply", "nest fewer brackets") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not valid TOML: {error}", "see https://toml.io for the syntax") from None


def apply(raw: dict[str, Any], changes: Iterable[str | Change]) -> dict[Path_, str]:
    """Change ``raw`` in place; returns the argument behind each change."""
    origin: dict[Path_, str] = {}
    for change in changes:
        said, path, value = parse_change(change) if isinstance(change, str) else change
        _assign(raw, path, value, said)
        origin[path] = said
    if ("data", "partition") in origin:
        _drop_old_rule(raw["data"], origin)
    return origin


def _drop_old_rule(data: dict[str, Any], origin: Mapping[Path_, str]) -> None:
    """Another partition rule takes the place of the config's, with its parameters: those that it lacks are left out.

    What the command line gives stays, right or wrong.
    """
    from fedapa.data.partitions.rules import RULES

    if (rule := RULES.get(str(data["partition"]).replace("_", "-"))) is None:
        return
    known = {parameter.name for parameter in rule.parameters}
    others = {parameter.name for other in RULES.values() for parameter in other.parameters} - known
    for key in others & data.keys():
        if ("data", key) not in origin:
            del data[key]


def check(
    raw: Mapping[str, Any],
    text: str = "",
    name: str = "config",
    origin: Mapping[Path_, str] = {},
    with_own_code: bool = False,
) -> Config:
    """The validated config; an error points at the place of the first mistake.

    Code that the config names is not imported unless ``with_own_code``: a site checks what a coordinator sent.
    """
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = tuple(step for step in first["loc"] if isinstance(step, str | int))
        raise _located(text, name, origin, path, *_explain(first, path)) from None
    _check_methods(config, text, name, origin, with_own_code)
    _check_attack(config, text, name, origin)
    _check_objective(config, text, name, origin)
    if config.sites is not None and raw.get("data", {}).keys() - {"data_dir"}:
        hint = "remove one of them; [sites] is for your own data"
        raise _located(text, name, origin, ("data",), "[data] and [sites] exclude each other", hint)
    return config


def beside(config: Config, source: str) -> Config:
    """Files of sites and of own code are looked for beside the config that names them."""
    base = _folder(source)
    model = config.model.model_copy(update={"name": _anchored(config.model.name, base)})
    objective = config.objective.model_copy(update={"name": plugins.anchored(config.objective.name, base)})
    data = config.data.model_copy(update={"source": _source_beside(config.data.source, base)})
    augment, trainer = (plugins.anchored(name, base) for name in (config.training.augment, config.training.trainer))
    training = replace(config.training, augment=augment, trainer=trainer)
    method = {name: _with_own_code(table, base) for name, table in config.method.items()}
    changed = {"model": model, "objective": objective, "data": data, "training": training, "method": method}
    config = config.model_copy(update=changed)
    if config.sites is None:
        return config
    found: dict[str, Any] = {"files": {k: str(base / Path(v).expanduser()) for k, v in config.sites.files.items()}}
    if config.sites.schema_file is not None:
        found["schema_file"] = str(base / Path(config.sites.schema_file).expanduser())
    return config.model_copy(update={"sites": replace(config.sites, **found)})


def _source_beside(source: str, base: Path) -> str:
    if not source.endswith(".npz"):
        return plugins.anchored(source, base)
    beside = base / Path(source).expanduser()
    return str((beside if beside.is_file() else Path(source).expanduser()).absolute())


def _folder(source: str) -> Path:
    return Path(source).absolute().parent if Path(source).is_file() else Path.cwd()


def _anchored(names: str | list[str] | dict[str, str], base: Path) -> str | list[str] | dict[str, str]:
    if isinstance(names, dict):
        return {client: plugins.anchored(name, base) for client, name in names.items()}
    if isinstance(names, list):
        return [plugins.anchored(name, base) for name in names]
    return plugins.anchored(names, base)


def _with_own_code(table: dict[str, Any], base: Path) -> dict[str, Any]:
    """A method's hyper-parameters with the files of its own training.trainer and training.augment found."""
    own = table.get("training", {})
    found = {key: plugins.anchored(own[key], base) for key in ("trainer", "augment") if key in own}
    return {**table, "training": {**own, **found}} if found else table


def dump(config: Config) -> str:
    """The whole config as TOML, defaults included."""
    return tomli_w.dumps(as_table(config))


def as_table(config: Config) -> dict[str, Any]:
    """The whole config as plain values, which TOML and JSON can hold."""
    found: dict[str, Any] = _without_none(config.model_dump(mode="json"))
    if config.sites is not None:
        found["data"] = {key: value for key, value in found["data"].items() if key == "data_dir"}
    return found


def settings_of(config: Config, name: str) -> tuple[str, dict[str, Any]]:
    """The registered method behind a name of this config, and its hyper-parameters."""
    table = config.method.get(name, {})
    return table.get("base", name), {key: value for key, value in table.items() if key not in RESERVED}


def training_of(config: Config, name: str) -> Training:
    """[training] with what the method's recipe says on top, and the keys of [method.NAME.training] on top of that."""
    own = config.method.get(name, {}).get("training", {})
    recipe = recipe_training(settings_of(config, name)[0])
    return _training_adapter().validate_python({**asdict(config.training), **recipe, **own})


@cache
def _training_adapter() -> TypeAdapter[Training]:
    """Made once: it takes ten milliseconds, and every run asks for it several times."""
    return TypeAdapter(Training)


def _text(source: str) -> tuple[str, str]:
    path = Path(source)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), source
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {source}: {error}") from None
    if source in presets.names():
        return presets.text(source), f"preset {source}"
    hint = f"{did_you_mean(source, presets.names(), '')} `fedapa ls presets` lists them".strip()
    raise InputError(f"no file and no preset is called {source!r}", hint)


def parse_change(change: str) -> Change:
    """A key=value of --set."""
    key, equals, value = change.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {change!r} is not key=value", "for example --set run.rounds=10")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string
    return Change(f"--set {change}", tuple(key.strip().split(".")), parsed)


def _assign(raw: dict[str, Any], path: Path_, value: Any, said: str) -> None:
    here = raw
    for step in path[:-1]:
        here = here.setdefault(str(step), {})
        if not isinstance(here, dict):
            raise InputError(f"{said}: {step} is a value, not a table", "check the dots of the key")
    here[str(path[-1])] = value


def _check_methods(config: Config, text: str, name: str, origin: Mapping[Path_, str], with_own_code: bool) -> None:
    from fedapa.methods.catalogue import make, own_code

    known = [*METHODS, *(k for k, v in config.method.items() if "base" in v)]
    for k, method in enumerate(config.methods):
        if method not in known and not is_known(method):
            raise _located(text, name, origin, ("methods", k), *_unknown(method, known))
    for method in config.method:
        if not re.fullmatch(r"\w[\w.+@-]*", method):
            hint = "it names a folder: use letters, digits, - and _"
            raise _located(text, name, origin, ("method", method), f"{method!r} cannot name a method", hint)
        base, settings = settings_of(config, method)
        path: Path_ = ("method", method)
        if not is_known(base):
            spot = (*path, "base") if method != base else path
            raise _located(text, name, origin, spot, *_unknown(base))
        _check_training(config, method, text, name, origin)
        if own_code(base) is not None and not with_own_code:
            continue
        try:
            make(base, **settings)
        except InputError as error:
            wrong = next((k for k in settings if repr(k) in error.message or f".{k} " in error.message), None)
            raise _located(text, name, origin, (*path, wrong) if wrong else path, error.message, error.hint) from None


def _unknown(base: str, known: Collection[str] = METHODS) -> tuple[str, str]:
    """What is wrong with the name of a method: of own code, that which follows it."""
    from fedapa.methods.catalogue import entry, own_code

    if own_code(base) is not None:
        try:
            entry(base)
        except InputError as error:
            return error.message, error.hint
    if base.endswith(".py"):
        return f"{base!r} is a file, and the method is a class in it", f"name both: {base}:CLASS"
    return f"unknown method {base!r}", did_you_mean(base, known, f"choose one of {', '.join(known)}")


def _check_training(config: Config, method: str, text: str, name: str, origin: Mapping[Path_, str]) -> None:
    """The keys of [method.NAME.training] are those of [training], in the same ranges."""
    place: Path_ = ("method", method, "training")
    if not isinstance(config.method[method].get("training", {}), dict):
        said = f"method.{method}.training must be a table"
        raise _located(text, name, origin, place, said, "for example { lr = 0.05 }")
    try:
        training_of(config, method)
    except ValidationError as error:
        first = error.errors()[0]
        said, hint = _explain(first, ("training", *first["loc"]))
        raise _located(text, name, origin, (*place, *first["loc"]), f"[method.{method}]: {said}", hint) from None


def _check_attack(config: Config, text: str, name: str, origin: Mapping[Path_, str]) -> None:
    """Check the number of clients; that of own sites is known only when their files are read."""
    if config.attack is None or config.sites is not None:
        return
    from fedapa.methods.malicious import attackers

    try:
        attackers(config.attack.clients, config.data.clients, 0)
    except InputError as error:
        raise _located(text, name, origin, ("attack", "clients"), error.message, error.hint) from None


def _check_objective(config: Config, text: str, name: str, origin: Mapping[Path_, str]) -> None:
    """Check the names and settings of known objectives; own code is imported when a run is assembled."""
    wanted = config.objective
    if plugins.is_own(wanted.name):
        return
    from fedapa.training.objective import make_objective

    try:
        make_objective("classification" if wanted.name == "auto" else wanted.name, **wanted.settings)
    except InputError as error:
        wrong = next((key for key in wanted.settings if key in error.message), "name")
        raise _located(text, name, origin, ("objective", wrong), error.message, error.hint) from None


def _explain(error: ErrorDetails, path: Path_) -> tuple[str, str]:
    where = ".".join(str(step) for step in path)
    if error["type"] in UNKNOWN_KEY:
        legal = _legal_keys(path[:-1])
        return f"unknown key {where}", did_you_mean(str(path[-1]), legal, f"legal here: {', '.join(legal)}")
    said = error["msg"].removeprefix("Value error, ")
    said = "it must be a table" if error["type"] in NO_TABLE else said[0].lower() + said[1:]
    return f"{where} is {error['input']!r}: {said}", "`fedapa cp PRESET FILE` writes a complete example"


def _legal_keys(path: Path_) -> list[str]:
    here: type[BaseModel] = Config
    for step in path:
        inner = here.model_fields[str(step)].annotation
        inner = next((part for part in get_args(inner) if part is not type(None)), inner)  # X | None
        if is_dataclass(inner):
            return [field.name for field in fields(inner)]
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        here = inner
    return list(here.model_fields)


def _located(text: str, name: str, origin: Mapping[Path_, str], path: Path_, message: str, hint: str) -> InputError:
    for known, change in origin.items():
        if path[: len(known)] == known:
            return InputError(f"{change}: {message}", hint)
    spot = _find(text, path)
    if spot is None:
        return InputError(f"{name}: {message}", hint)
    line, column = spot
    shown = text.splitlines()[line]
    return InputError(f"{name}:{line + 1}: {message}\n  {shown}\n  {' ' * column}^", hint)


def _find(text: str, path: Path_) -> tuple[int, int] | None:
    """Line and column of a key in TOML text; of its table where the key itself is not written."""
    keys = [str(step) for step in path if isinstance(step, str)]
    for depth in range(len(keys), 0, -1):
        table = ""
        for number, line in enumerate(text.splitlines()):
            if header := re.match(r"\s*\[([^\[\]]+)\]", line):
                table = re.sub(r"[\s\"']", "", header.group(1))
                if table == ".".join(keys[:depth]):
                    return number, line.index("[")
            elif (key := re.match(r"\s*([\w.\-\"']+)\s*=", line)) and _joined(table, key.group(1)) == keys[:depth]:
                return number, key.start(1)
    return None


def _joined(table: str, key: str) -> Sequence[str]:
    return [part.strip("\"'") for part in f"{table}.{key}".strip(".").split(".")]


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value
