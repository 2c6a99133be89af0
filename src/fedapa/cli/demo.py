"""fedapa demo"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command(short_help="See it work: Local, FedAvg and FedAPA on handwritten digits")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the runs.")
@ui.format_option
def command(out: Path | None, form: str) -> None:
    """Compare Local, FedAvg and FedAPA on twenty clients with handwritten digits: a minute, no download."""
    from fedapa.cli import common

    out = out or common.default_out("demo")
    runs = common.prepare(common.read("demo", None, None, (), None), out)
    ui.say("twenty clients, each with its own mix of handwritten digits; three ways to train a model for each of them")
    common.execute_all(runs, out, form)
    ui.say(f"runs are in {out}; next: fedapa ls presets, fedapa plan cifar10-dirichlet")
