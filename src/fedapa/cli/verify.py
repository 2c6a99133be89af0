"""fedapa verify FILE"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedapa.cli import ui
from fedapa.training.settings import HEAD


@click.command(short_help="Check a method of your own against the laws")
@click.argument("target")
@click.option(
    "--objective", default="classification", show_default=True, help="Or regression, survival, file.py:Class."
)
@click.option("--model", default="", help="See `fedapa ls models`, or file.py:function; default: a small network.")
@click.option("--head", default=HEAD, show_default=True, help="The last layer of that model.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the model or the objective: --set model.settings.vocabulary=10.",
)
@ui.format_option
def command(target: str, objective: str, model: str, head: str, changes: tuple[str, ...], form: str) -> None:
    """Run every law on TARGET: a Python file that defines methods, or the name of a shipped method.

    Prints which law failed, with the numbers that show it. Exit code 1 if any did.
    """
    from fedapa.errors import InputError, RunError
    from fedapa.methods.catalogue import is_known, make
    from fedapa.training.objective import make_objective
    from fedapa.verify import LAWS, load_method, verify

    settings = _settings(changes)
    if settings["model"] and not model:
        raise InputError("--set model.settings is given, and no model", "name it: --model")
    aim = make_objective(objective, **settings["objective"])
    methods = {target: make(target)} if is_known(target) or not _is_file(target) else load_method(Path(target))
    rows = []
    with ui.progress() as bar:
        task = bar.add_task("laws", total=2 * len(LAWS) * len(methods), note="")
        for name, method in methods.items():
            for found in verify(method, aim, model, head, settings["model"]):
                verdict = "holds" if found.holds else "BROKEN"
                rows.append(
                    {
                        "method": name,
                        "law": found.law,
                        "schedule": found.schedule,
                        "verdict": verdict,
                        "measured": found.detail,
                    }
                )
                bar.advance(task)
    ui.show(rows, form)
    if broken := [row for row in rows if row["verdict"] == "BROKEN"]:
        first = broken[0]
        raise RunError(
            f"{len(broken)} of {len(rows)} laws broken; first: {first['law']}: {first['measured']}",
            "docs/add-a-method.md says what each law is for",
        )


def _is_file(target: str) -> bool:
    """Whether it looks like one; anything else is a method's name with a typing error."""
    return target.endswith(".py") or "/" in target or Path(target).exists()


def _settings(changes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Settings of the model and of the objective, by the keys that they have in a config."""
    from fedapa.config.load import parse_change
    from fedapa.errors import InputError

    found: dict[str, dict[str, Any]] = {"model": {}, "objective": {}}
    for said, path, value in map(parse_change, changes):
        section = {("model", "settings"): "model", ("objective",): "objective"}.get(tuple(map(str, path[:-1])))
        if section is None:
            hint = "it knows model.settings.NAME and objective.NAME; the laws have data and rates of their own"
            raise InputError(f"{said}: verify does not know this key", hint)
        found[section][str(path[-1])] = value
    return found
