"""fedapa verify FILE"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui
from fedapa.training.settings import HEAD


@click.command(short_help="Check a method of your own against the laws")
@click.argument("target")
@click.option("--objective", default="classification", show_default=True, help="Or regression, or file.py:Class.")
@click.option("--model", default="", help="See `fedapa ls models`, or file.py:function; default: a small network.")
@click.option("--head", default=HEAD, show_default=True, help="The last layer of that model.")
@ui.format_option
def command(target: str, objective: str, model: str, head: str, form: str) -> None:
    """Run every law on TARGET: a Python file that defines methods, or the name of a shipped method.

    Prints which law failed, with the numbers that show it. Exit code 1 if any did.
    """
    from fedapa.errors import RunError
    from fedapa.methods.catalogue import is_known, make
    from fedapa.training.objective import make_objective
    from fedapa.verify import LAWS, load_method, verify

    methods = {target: make(target)} if is_known(target) else load_method(Path(target))
    rows = []
    with ui.progress() as bar:
        task = bar.add_task("laws", total=2 * len(LAWS) * len(methods), note="")
        for name, method in methods.items():
            for found in verify(method, make_objective(objective), model, head):
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
