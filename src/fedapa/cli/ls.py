"""fedapa ls"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from fedapa.cli import ui

TITLES = {
    "methods": "methods (KiB: LeNet-5 on CIFAR-10, 20 clients); also as NAME@authors, NAME+ema, NAME+quantised, ...",
    "recipes": "recipes: METHOD@authors trains as the method's authors do",
    "wrappers": "wrappers: METHOD+WRAPPER",
    "presets": "presets",
    "datasets": "datasets",
    "models": "models",
}
KINDS = ("methods", "recipes", "wrappers", "presets", "datasets", "models")


@click.command(short_help="List methods, recipes, wrappers, presets, datasets or models")
@click.argument("kind", type=click.Choice(KINDS), required=False)
@ui.format_option
def command(kind: str | None, form: str) -> None:
    """List methods, recipes, wrappers, presets, datasets or models; without a KIND, all of them."""
    lists = {
        "methods": _methods,
        "recipes": _recipes,
        "wrappers": _wrappers,
        "presets": _presets,
        "datasets": _datasets,
        "models": _models,
    }
    if form == "json" and kind is None:
        import json

        click.echo(json.dumps({name: rows() for name, rows in lists.items()}, indent=2, default=str))
        return
    for name in [kind] if kind else KINDS:
        ui.show(lists[name](), form, title=TITLES[name])


def _methods() -> list[dict[str, Any]]:
    from fedapa.methods.catalogue import METHODS
    from fedapa.plugins import installed

    return [
        {
            "name": name,
            "method": e.title,
            "year": str(e.year),
            "stays local": e.stays,
            "down": e.down,
            "up": e.up,
            "KiB/client/round": f"{e.kib:.1f}",
        }
        for name, e in METHODS.items()
    ] + [
        {
            "name": name,
            "method": where,
            "year": "–",
            "stays local": "–",
            "down": "–",
            "up": "–",
            "KiB/client/round": "–",
        }
        for name, where in installed("methods").items()
        if name not in METHODS
    ]


def _recipes() -> list[dict[str, Any]]:
    from fedapa.methods.catalogue import METHODS
    from fedapa.methods.recipes import AUTHORS, recipe

    found = {f"{name}@{AUTHORS}": recipe(name, AUTHORS) for name in METHODS}
    return [
        {"name": name, "training": _settings(r.training), "hyper-parameters": _settings(r.settings), "source": r.source}
        for name, r in found.items()
    ]


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _wrappers() -> list[dict[str, Any]]:
    from fedapa.methods.catalogue import WRAPPERS

    return [{"name": f"+{name}", "what": wrapper.what} for name, wrapper in WRAPPERS.items()]


def _presets() -> list[dict[str, Any]]:
    from fedapa.config.presets import names, title

    return [{"name": name, "what": title(name)} for name in names()]


def _datasets() -> list[dict[str, Any]]:
    from fedapa.data.sources import SOURCES, is_present

    return [
        {
            "name": name,
            "train": info.train,
            "test": info.test,
            "classes": info.classes,
            "shape": "x".join(map(str, info.shape)),
            "present": "yes" if is_present(name) else "no",
            "what": info.description,
        }
        for name, info in SOURCES.items()
    ]


def _models() -> list[dict[str, Any]]:
    from fedapa.plugins import installed
    from fedapa.training.model_names import SHIPPED

    rows = [{"name": name, "what": m.what, "head": f"{m.features} features"} for name, m in SHIPPED.items()]
    others = {
        "torchvision:NAME, timm:NAME, hf:NAME": "models of these libraries, where they are installed",
        "package.module:function": "your own: (shape, classes) -> nn.Module",
        **installed("models"),
    }
    return rows + [{"name": name, "what": what, "head": "named"} for name, what in others.items()]
