"""What `mkdocs build` needs beyond the pages of docs: the navigation, and pages that are made from the code.

A new page under docs is found by itself: it becomes a guide, unless a section below names it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import click
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "src"))
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]

# Sections in order; a pattern stands for every page that no pattern before it took.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Home": ("index.md",),
    "Start": ("start-researcher.md", "start-site.md", "start-coordinator.md", "gallery.md"),
    "Methods": ("methods.md", "add-a-method.md", "methods/*.md"),
    "Reference": ("reference/*.md", "glossary.md"),
    "Results": ("results.md", "results/*.md", "results-data.md", "parity.md", "performance.md"),
    "Theory": ("theory.md", "beyond.md"),
    "Security": ("what-leaves-the-building.md", "project/security.md"),
    "Decisions": ("decisions/*.md",),
    "Project": ("project/*.md",),
    "Guides": ("*.md",),
}
ORDER = ("Home", "Start", "Guides", "Methods", "Reference", "Results", "Theory", "Security", "Decisions", "Project")
PROJECT = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")


@event_priority(-100)  # after the plugin, which would load a script of another server
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.extra["polyfills"] = ["search-offline.js"]
    config.nav = navigation([*(path.relative_to(HERE).as_posix() for path in HERE.rglob("*.md")), *made()])
    return config


def navigation(pages: list[str]) -> list[dict[str, Any]]:
    """Every page in the first section that names it, in the order of its patterns."""
    left, found = sorted(pages, key=lambda page: page.removesuffix(".md")), dict[str, list[str]]()
    for section, patterns in SECTIONS.items():
        for pattern in patterns:
            # In glob a star does not cross folders; here the same.
            taken = [page for page in left if re.fullmatch(pattern.replace(".", r"\.").replace("*", "[^/]*"), page)]
            found.setdefault(section, []).extend(taken)
            left = [page for page in left if page not in taken]
    assert not left, f"no section takes {left}"
    # A section that holds the home page alone would hide its headings.
    return [{name: found[name][0] if name == "Home" else found[name]} for name in ORDER if found[name]]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, text in made().items():
        files.append(File.generated(config, name, content=text))
    return files


def made() -> dict[str, str]:
    """Pages that exist on the site alone: the README, the project's papers and the reference."""
    pages = {"index.md": moved((ROOT / "README.md").read_text(encoding="utf-8"), "", "index.md")}
    for name in PROJECT:
        page = f"project/{name.lower()}"
        pages[page] = moved((ROOT / name).read_text(encoding="utf-8"), "", page)
    return {**pages, "reference/api.md": api(), "reference/cli.md": commands(), "reference/config.md": settings()}


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas become MathML, which browsers show without a script."""
    return re.sub(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', _formula, html, flags=re.S)


def _formula(found: re.Match[str]) -> str:
    tex = re.sub(r"\\tag\{(.*?)\}", r"\\qquad\\text{(\1)}", unescape(found[2])).replace("\\ ", r"\;")
    shown = convert(tex, display="block" if found[1] == "div" else "inline")
    # Bars of a norm would grow with the exponent behind them; a prime in an exponent would be raised twice.
    shown = shown.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')
    return re.sub(r"<msup>(<mi>\w*</mi>)<mi>(&#x0203[23];)</mi></msup>", r"<mrow>\1<mo>\2</mo></mrow>", shown)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.generated_by:
        return markdown
    return moved(markdown, "docs/", page.file.src_uri)


# --------------------------------------------------------------------------------------------------------------- links


def moved(text: str, folder: str, page: str) -> str:
    """Links as they are right in the repository, made right on the site; ``folder`` is where docs lie from there."""

    def one(found: re.Match[str]) -> str:
        target, anchor = found[2], found[3] or ""
        if re.match(r"\w+:|//", target) or not target:
            return found[0]
        here = (ROOT / folder / page if folder else ROOT / "README.md").parent
        place = (here / target).resolve()
        return f"{found[1]}({_on_site(place, page)}{anchor})"

    return re.sub(r"(\])\(([^)#\s]*)(#[^)\s]*)?\)", one, text)


def _on_site(place: Path, page: str) -> str:
    """A page of the site, relative to this one; else the file in the repository."""
    up = "../" * page.count("/")
    if place.is_relative_to(HERE) and place.is_file() and place.suffix != ".py":
        return up + place.relative_to(HERE).as_posix()
    if place.is_relative_to(HERE) and place.relative_to(HERE).parts[0] == "reference":
        return up + place.relative_to(HERE).as_posix()
    name = place.relative_to(ROOT).as_posix()
    if name == "README.md":
        return up + "index.md"
    if name in PROJECT:
        return f"{up}project/{name.lower()}"
    return f"{REPOSITORY}/{'tree' if place.is_dir() else 'blob'}/main/{name}"


# ----------------------------------------------------------------------------------------------------------- reference


# The names of `import fedapa as fa` by what a reader wants of them; methods and wrappers are found by their modules.
NAMES = {
    "Data, training, results": (
        "load from_files from_arrays from_datasets Federated Fields Lazy fit Training Result Score open OpenedRun Sink"
    ),
    "Methods": "make",
    "Wrappers": "",
    "A method of your own": "Method hyper Role Claims Task Local Batch Tree proximal task_loss",
    "Objectives": "Objective Classification Regression",
    "Errors": "FedapaError InputError RunError",
}
OPENINGS = {
    "Methods": "Hyper-parameters and their defaults; the page of a method has its rule, its messages and its paper.",
    "Wrappers": "Each takes a method and gives a method: `fa.Quantised(fa.FedAPA())`, in a config `fedapa+quantised`.",
}


def api() -> str:
    """Every public name, from its docstring, in the order in which a reader needs them."""
    import fedapa

    groups = {title: names.split() for title, names in NAMES.items()}
    for name in sorted({*fedapa.__all__} - {name for names in groups.values() for name in names}, key=str.lower):
        wraps = fedapa._HOME[name].rpartition(".")[2] in ("wrappers", "robust")
        groups["Wrappers" if wraps else "Methods"].append(name)
    lines = ["# Python", "", "Every name of `import fedapa as fa`, with its signature and docstring.", ""]
    for title, names in groups.items():
        lines += [f"## {title}", "", *([OPENINGS[title], ""] if title in OPENINGS else [])]
        for name in names:
            lines += [f"::: {fedapa._HOME[name]}.{name}", *_of_method(name), ""]
    return "\n".join(lines)


def _of_method(name: str) -> list[str]:
    """A method's functions are those of every method: its settings are shown instead, and where its rule is."""
    from fedapa.methods.catalogue import METHODS, method_class

    pages = [page for page in METHODS if method_class(page).__name__ == name]
    if not pages:
        return []
    linked = ", ".join(f"[{METHODS[page].title}](../methods/{page}.md)" for page in pages)
    return ["    options: { members: false, show_bases: false }", "", f"As {linked}."]


def commands() -> str:
    """Every command with its arguments and options, as click knows them."""
    from fedapa.cli import group

    lines = [
        "# Commands",
        "",
        "Every command of `fedapa`, its arguments, options and defaults, read from the program.",
        "",
    ]
    for name, command in walked(group, "fedapa"):
        lines += one_command(name, command)
    return "\n".join(lines)


def walked(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        with click.Context(command, info_name=name) as context:
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield from walked(found, f"{name} {inner}")


def one_command(name: str, command: click.Command) -> list[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    help_text = re.sub(r"\n\s+", "\n", (command.help or "").replace("\b\n", ""))
    rows = [_option(option) for option in command.params if isinstance(option, click.Option) and not option.hidden]
    table = ["| option | meaning | default |", "|---|---|---|", *rows, ""] if rows else []
    return [f"## {name}", "", "```console", f"$ {usage}", "```", "", _plain(help_text), "", *table]


def _option(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    kind = "" if option.is_flag else f" *{option.make_metavar(click.Context(click.Command('x')))}*"
    default = option.default
    shown = (
        ""
        if callable(default) or option.is_flag or default in (None, (), "") or "UNSET" in str(default)
        else f"`{default}`"
    )
    return f"| {names}{_cell(kind)} | {_cell(_plain(option.help or ''))} | {_cell(shown)} |"


def settings() -> str:
    """Every key of a config with its type, default and meaning, from the schema that checks configs."""
    from fedapa.config.sections import Config

    schema = Config.model_json_schema()
    lines = [
        "# Config",
        "",
        "Every key of a config file (TOML), its type, default and meaning, from the schema that",
        "checks it. Unknown keys are errors. `fedapa cp PRESET FILE` writes a whole one.",
        "",
    ]
    own = {key: value for key, value in schema["properties"].items() if not _section(value, schema)}
    lines += ["## Top level", "", *_keys(own), ""]
    for key, value in schema["properties"].items():
        if section := _section(value, schema):
            told = " ".join(str(section.get("description", "")).split())
            lines += [
                f"## [{key}]",
                "",
                *([_plain(told), ""] if told else []),
                *_keys(section["properties"], section.get("required", ())),
                "",
            ]
    return "\n".join(lines)


def _section(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The table that a key holds, where it holds one."""
    for one in (value, *value.get("anyOf", ()), *value.get("allOf", ())):
        if "$ref" in one:
            found: Mapping[str, Any] = schema["$defs"][one["$ref"].rpartition("/")[2]]
            return found if "properties" in found else None
    return None


def _keys(properties: Mapping[str, Any], required: Any = ()) -> list[str]:
    rows = []
    for key, value in properties.items():
        default = "required" if key in required else _default(value)
        rows.append(f"| `{key}` | {_cell(_type(value))} | {default} | {_cell(_plain(value.get('description', '')))} |")
    return ["| key | type | default | meaning |", "|---|---|---|---|", *rows]


def _default(value: Mapping[str, Any]) -> str:
    return _cell(f"`{value['default']!r}`") if value.get("default") is not None else ""


def _type(value: Mapping[str, Any]) -> str:
    """A JSON schema in words: integer from 1; one of a, b."""
    if "enum" in value:
        return "one of " + ", ".join(f"`{one}`" for one in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value:
        return " or ".join(_type(one) for one in value["anyOf"] if one.get("type") != "null")
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {value[word]:g}" for word, sign in signs.items() if word in value]
    return " ".join(
        [{"array": "list", "object": "table"}.get(value.get("type", ""), value.get("type", "any")), *limits]
    )


def _plain(text: str) -> str:
    """Help texts are not Markdown: what looks like tags or emphasis is shown as it is written."""
    return re.sub(r"(`[^`]*`)|([<*_\[])", lambda found: found[1] or "\\" + found[2], text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
