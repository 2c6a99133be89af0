"""The user's own code by name: ``file.py:Name`` or ``package.module:Name``, or what a package registers.

A package registers by entry points of the groups fedapa.methods, fedapa.datasets, fedapa.models, fedapa.objectives.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fedapa.errors import InputError

ON_PATH = "is it installed, or its folder on PYTHONPATH?"


def load_object(name: str, what: str) -> Any:
    """The object that a name points to; ``what`` describes it in errors."""
    place, _, attribute = name.rpartition(":")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # the user's code may fail in any way
        hint = "name a file that exists, and that python can run" if place.endswith(".py") else ON_PATH
        said = str(error) if isinstance(error, OSError | ImportError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{what} {name!r} cannot be imported: {said}", hint) from error
    if not hasattr(module, attribute):
        names = sorted(n for n in vars(module) if not n.startswith("_"))
        raise InputError(f"{what} {name!r}: {place} has no {attribute!r}", f"it has {', '.join(names[:20])}")
    return getattr(module, attribute)


def _from_file(path: Path) -> ModuleType:
    """A file is imported once in a process, under a name that is its own; one that was changed is another module."""
    path = path.expanduser().resolve()
    key = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()
    name = f"fedapa_own_{path.stem}_{key[:8]}"
    return sys.modules[name] if name in sys.modules else import_file(path, name)


def import_file(path: Path, name: str) -> ModuleType:
    """A file as the module ``name``, run anew; one that fails leaves no module behind.

    It finds the files beside it, as a script that Python runs does; installed packages come first.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def failed(what: str, error: Exception, place: str) -> InputError:
    """What a user's code raised, and the deepest line of its own file ``place`` that was reached."""
    frames = traceback.extract_tb(error.__traceback__)
    spot = next((frame for frame in reversed(frames) if frame.filename == place), frames[-1])
    said = f"{what} failed: {type(error).__name__}: {error}"
    return InputError(said, f"see {spot.filename}, line {spot.lineno}")


def file_of(code: object) -> str:
    """The file of a function or class; empty where there is none."""
    return str(getattr(sys.modules.get(getattr(code, "__module__", "")), "__file__", ""))


def is_own(name: str) -> bool:
    """Whether a name points to code outside fedapa."""
    return ":" in name


def anchored(name: str, base: Path) -> str:
    """The same name with the path of its file made absolute: beside the config that names it, else from here."""
    place, _, attribute = name.rpartition(":")
    if not place.endswith(".py"):
        return name
    path = Path(place).expanduser()
    beside = base / path
    return f"{(beside if beside.is_file() else path).absolute()}:{attribute}"


@cache
def installed(kind: str) -> dict[str, str]:
    """What installed packages offer as methods, datasets, models or objectives: module:attribute by name."""
    return {point.name: point.value for point in entry_points(group=f"fedapa.{kind}")}


def fingerprint(name: str) -> str:
    """SHA-256 of the file that ``file.py:Name`` or ``package.module:Name`` is in. What it imports is not covered."""
    place = name.rpartition(":")[0]
    try:
        path = Path(place).expanduser() if place.endswith(".py") else _module_file(place)
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ImportError, ValueError) as error:
        raise InputError(f"the code {name!r} cannot be read: {error}", "is it where it was?") from None


def _module_file(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module named {module!r}")
    return Path(spec.origin)


def check_unchanged(name: str, kept: str) -> None:
    """Refuse code that is not the one with this fingerprint."""
    if (found := fingerprint(name)) != kept:
        place = name.rpartition(":")[0]
        raise InputError(
            f"{place} was changed: this run began with the code {kept[:12]}, it is {found[:12]} now",
            "restore the file, or run again in a new folder",
        )
