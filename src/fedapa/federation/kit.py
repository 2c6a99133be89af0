"""A site's kit: the folder that the coordinator makes for it, with its name, its key and the coordinator's address.

It is data. What a site does with whose rows is in its own settings, not here.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import tomli_w

from fedapa.errors import InputError
from fedapa.store.atomic_io import write_atomically

KIT, KEY, CA, SECRET = "kit.toml", "site.key", "ca.crt", "secret"
LOCAL = "local"  # folder of the certificate that authenticates the site's own processes
IN_USE, ENDED = "in-use.safetensors", "ended"  # in the states of a run: the model in use; written with the last answers
IGNORED = ("data", "models")  # of older kits: the site decides that (site_settings.py)
ADDRESS = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,254}:[0-9]{1,5}")  # host:port, and no option of a program
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Kit:
    name: str
    coordinator: str  # host:port under which sites reach it
    share: int = 0  # which part of a partitioned data set is this site's


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot name a site", "use letters, digits, '.', '-' and '_', at most 63")
    return name


def write_kit(folder: Path, kit: Kit) -> None:
    write_atomically(folder / KIT, tomli_w.dumps(asdict(kit)).encode())


def read_kit(folder: Path) -> Kit:
    path = folder / KIT
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "`coordinator add-site` makes kits") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}", "ask the coordinator for the kit again") from None
    known = {f.name: f for f in fields(Kit)}
    found = {key: value for key, value in found.items() if key not in IGNORED}
    for key, value in found.items():
        legal = type(value) is int and value >= 0 if key == "share" else type(value) is str
        if key not in known or not legal:
            raise InputError(f"{path}: {key} = {value!r} is not understood", f"legal keys: {', '.join(known)}")
    if missing := {"name", "coordinator"} - found.keys():
        raise InputError(f"{path}: {min(missing)} is missing", "ask the coordinator for the kit again")
    kit = Kit(**found)
    check_name(kit.name)
    if not ADDRESS.fullmatch(kit.coordinator):
        raise InputError(f"{path}: {kit.coordinator[:80]!r} is not host:port", "ask the coordinator for the kit again")
    return kit
