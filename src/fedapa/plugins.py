"""The user's own code by name: ``file.py:Name`` or ``package.module:Name``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from fedapa.errors import InputError


def load_object(name: str, what: str) -> Any:
    """The object that a name points to; ``what`` describes it in errors."""
    place, _, attribute = name.rpartition(":")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        hint = "name a file that exists" if place.endswith(".py") else "is its folder on PYTHONPATH?"
        raise InputError(f"{what} {name!r} cannot be imported: {error}", hint) from error
    if not hasattr(module, attribute):
        names = sorted(n for n in vars(module) if not n.startswith("_"))
        raise InputError(f"{what} {name!r}: {place} has no {attribute!r}", f"it has {', '.join(names[:20])}")
    return getattr(module, attribute)


def _from_file(path: Path) -> ModuleType:
    """A file is imported once in a process, under a name that is its own."""
    path = path.expanduser().resolve()
    name = f"fedapa_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    return sys.modules[name] if name in sys.modules else import_file(path, name)


def import_file(path: Path, name: str) -> ModuleType:
    """A file as the module ``name``, run anew; one that fails leaves no module behind."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


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
