"""fedapa new KIND NAME"""

from __future__ import annotations

import keyword
import re
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template

import click

from fedapa.errors import InputError

# What every kind is made of: the skeleton's file, and where it goes.
SKELETONS = {
    "method": {"method.py.txt": "{name}.py", "test_method.py.txt": "test_{name}.py"},
    "dataset": {"dataset.py.txt": "{name}.py", "test_dataset.py.txt": "test_{name}.py"},
    "federation": {
        "federation.toml.txt": "{name}/federation.toml",
        "test_federation.py.txt": "{name}/test_{name}.py",
        "north.csv": "{name}/north.csv",
        "south.csv": "{name}/south.csv",
        "east.csv": "{name}/east.csv",
    },
}
NEXT = {
    "method": "fedapa verify {name}.py; {pytest} test_{name}.py; fedapa run demo --method local,{name}.py:{title}",
    "dataset": "python {name}.py; {pytest} test_{name}.py; docs/start-researcher.md",
    "federation": "fedapa silo run {name}/federation.toml; {pytest} {name}; docs/start-coordinator.md",
}


@click.command(short_help="Start a method, a data set or a federation of your own")
@click.argument("kind", type=click.Choice(list(SKELETONS)))
@click.argument("name")
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), default=".", help="Folder to write into."
)
def command(kind: str, name: str, folder: Path) -> None:
    """Write a working skeleton of KIND, called NAME, with its test."""
    name = _checked(name)
    files = {folder / where.format(name=name): _filled(source, name) for source, where in SKELETONS[kind].items()}
    if there := [path for path in files if path.exists()]:
        raise InputError(f"{there[0]} exists already", "choose another name, or remove it first")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        click.echo(path)
    click.echo(f"next: {NEXT[kind].format(name=name, title=_title(name), pytest=_pytest())}", err=True)


def _checked(name: str) -> str:
    """As a Python module is called: my-method becomes my_method."""
    found = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", found) or keyword.iskeyword(found):
        raise InputError(f"{name!r} cannot be the name of a Python module", "use small letters, digits and dashes")
    return found


def _filled(source: str, name: str) -> str:
    text = (resources.files("fedapa.cli") / "skeletons" / source).read_text(encoding="utf-8")
    return Template(text).safe_substitute(name=name, title=_title(name))


def _title(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _pytest() -> str:
    """How to call pytest of this Python; another one on the path would not find fedapa."""
    return f"{'' if find_spec('pytest') else 'pip install pytest; '}python -m pytest"
