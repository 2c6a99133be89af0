"""A config for a site's data, written from what an inspection found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedapa.data.profile import Profile, profile
from fedapa.data.site_description import Sites
from fedapa.data.tables import read_table


def inspected(path: Path, sites: Sites) -> Profile:
    """A table as it stands in its file."""
    table = read_table(path, sites.header, sites.encoding, sites.missing, sites.missing_values)
    if sites.site_column is not None:
        table.column(sites.site_column, "site column")
    return profile(table, sites.label, tuple(c for c in (sites.site_column, sites.split_column) if c))


def dropped(profiles: Sequence[Profile]) -> list[str]:
    """Columns that cannot help: names of rows and persons, dates, and what is constant at every site."""
    names = dict.fromkeys(name for p in profiles for name in p.named("identifier", "date"))
    always = [p.named("constant") for p in profiles]
    names |= dict.fromkeys(name for name in (always[0] if always else []) if all(name in other for other in always))
    return list(names)


def config_text(sites: Sites, folder: Path, said: str, notes: Sequence[str]) -> str:
    """A whole config: what was found as comments, then the section [sites] and settings that suit small tables."""
    usual, own = Sites(), {}
    for key, value in vars(sites).items():
        if value != getattr(usual, key) and value is not None:
            own[key] = _plain(value)
    own["files"] = {name: _beside(file, folder) for name, file in sites.files.items()}
    content: dict[str, Any] = {
        "methods": ["local", "fedavg", "fedper", "fedapa"],
        "seeds": list(range(10)),
        "sites": own,
        "model": {"name": "mlp"},
        "training": {"lr": 0.01, "batch": 16, "drop_last": False, "keep_momentum": False},
        "run": {"rounds": 20, "participation": 1.0, "evaluate_every": 5, "checkpoint_every": 20},
    }
    comments = [f"# Written by: {said}", *(f"# note: {note}" for note in notes)]
    return "\n".join(comments) + "\n" + re.sub(r"\[\n((?:    [^\n]*,\n)+)\]", _on_one_line, tomli_w.dumps(content))


def _on_one_line(found: re.Match[str]) -> str:
    """Short lists are read more easily in one line."""
    line = " ".join(part.strip() for part in found.group(1).splitlines()).rstrip(",")
    return f"[{line}]" if len(line) < 100 else found.group(0)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple | list) else value


def _beside(file: str, folder: Path) -> str:
    path, base = Path(file).absolute(), folder.absolute()
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
