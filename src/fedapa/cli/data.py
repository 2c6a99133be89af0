"""fedapa data fetch | split"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fedapa.cli import ui


@click.group(short_help="Fetch data sets and look at how they are split")
def command() -> None:
    """Fetch data sets and look at how they are split over clients."""


@command.command()
@click.argument("name")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder of the data files.")
def fetch(name: str, data_dir: Path | None) -> None:
    """Download the data set NAME from its official location, check its hash and unpack it.

    This is the only command that uses the network.
    """
    from fedapa.data.sources import fetch as fetch_source

    path = fetch_source(name, data_dir, progress=sys.stderr.isatty())
    click.echo(f"{name} is in {path}")


@command.command()
@click.argument("source")
@click.option("--rule", default="dirichlet", show_default=True, help="Rule that deals samples, or a saved partition.")
@click.option("--clients", default=20, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--alpha", type=float, help="Dirichlet concentration (dirichlet, quantity).")
@click.option("--classes-per-client", type=int, help="Classes at every client (pathological, random-classes).")
@click.option("--min-train", type=int, help="Train sets must be larger than this.")
@click.option("--min-test", type=int, help="Test sets must be larger than this.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder of the data files.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Keep the partition in this .npz file.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Bubble plot (.svg, .pdf or .png).")
@ui.format_option
def split(
    source: str, rule: str, clients: int, seed: int, data_dir: Path | None, save: Path | None, plot: Path | None,
    form: str, **parameters: Any,
) -> None:  # fmt: skip
    """Deal the data set SOURCE to clients and show who got what."""
    import json

    from fedapa.config.experiment import make_partition
    from fedapa.data import inspect, partition, sources

    dataset = sources.load(source, data_dir)
    given = {name: value for name, value in parameters.items() if value is not None}
    found = make_partition(rule, dataset, clients, seed, given)
    rows = inspect.table(found, dataset.y_train, dataset.y_test)
    name = partition.fingerprint(found)
    if form == "json":
        click.echo(json.dumps({"fingerprint": name, "rule": found.rule, "clients": rows}, indent=2, default=str))
    else:
        ui.show(rows, form, title=f"{source}, {rule}, seed {seed}, fingerprint {name}")
    if save is not None:
        partition.save(found, save)
        ui.say(f"partition saved in {save}; use it with --set data.partition={save}")
    if plot is not None:
        inspect.bubble_plot(found, dataset.y_train, plot)
        ui.say(f"plot in {plot}")
