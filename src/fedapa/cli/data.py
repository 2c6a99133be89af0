"""fedapa data fetch | split | inspect"""

from __future__ import annotations

import shlex
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
    from fedapa.data.fetching import fetch as fetch_source

    path = fetch_source(name, data_dir, progress=sys.stderr.isatty())
    click.echo(f"{name} is in {path}")


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--label", default="label", show_default=True, help="Column to predict.")
@click.option("--site", "site_column", metavar="COLUMN", help="Column of sites, where one file holds all of them.")
@click.option("--drop", default="", metavar="A,B", help="Columns to leave out.")
@click.option("--categories", default="", metavar="A,B", help="Columns whose numbers are codes.")
@click.option("--image", "image_column", metavar="COLUMN", help="Column of image files.")
@click.option("--group", metavar="COLUMN", help="Split by it: rows of one group (a patient) stay together.")
@click.option("--time", metavar="COLUMN", help="Split by it: the latest rows test.")
@click.option("--encoding", default="utf-8", show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="site.toml", show_default=True)
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@ui.format_option
def inspect(
    files: tuple[Path, ...],
    label: str,
    site_column: str | None,
    drop: str,
    categories: str,
    image_column: str | None,
    group: str | None,
    time: str | None,
    encoding: str,
    out: Path,
    force: bool,
    form: str,
) -> None:
    """Inspect the data of one site (FILE) or several: rows, types, classes, missing values, and likely mistakes.

    A FILE is a .csv, .tsv, .parquet or .npz file, or a folder class/image.png. Nothing leaves the machine. The
    result is written to OUT, a config that `fedapa silo run` and `fedapa site dry-run` take.
    """
    from fedapa.data.site_description import Sites
    from fedapa.errors import InputError

    if group and time:
        raise InputError("--group and --time exclude each other", "choose one")
    named = {path.stem: str(path) for path in files}
    if len(named) < len(files):
        raise InputError("two files have the same name", "give every site's file a name of its own")
    wanted = Sites(
        files=named,
        label=label,
        site_column=site_column,
        drop=_words(drop),
        categories=_words(categories),
        image_column=image_column,
        encoding=encoding,
        split_column=group or time,
        split="group" if group else "time" if time else "stratified",
    )
    if out.exists() and not force:
        raise InputError(f"{out} exists", "choose another --out, or --force")
    _inspect(wanted, out, form)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _inspect(wanted: Any, out: Path, form: str) -> None:
    from dataclasses import replace

    from fedapa.data.sites import assemble
    from fedapa.site import describe
    from fedapa.store.checkpoint import write_atomically

    tables = {} if wanted.image_column else {k: Path(f) for k, f in wanted.files.items() if _is_table(Path(f))}
    profiles = {name: describe.inspected(path, wanted) for name, path in tables.items()}
    wanted = replace(wanted, drop=tuple(dict.fromkeys((*wanted.drop, *describe.dropped(list(profiles.values()))))))
    own = assemble(wanted)
    found = [(name, warned) for name, p in profiles.items() for warned in p.warnings]
    notes = [warned.text if len(tables) < 2 else f"{name}: {warned.text}" for name, warned in found]
    notes += [*own.notes, *(f"left out: {name}" for name in wanted.drop)]
    clients = [_site_row(client, own.schemas[0]) for client in own.data.clients]
    said = shlex.join(["fedapa", *sys.argv[1:]])
    write_atomically(out, describe.config_text(wanted, out.absolute().parent, said, notes).encode())
    if form == "json":
        ui.dump(
            {
                "columns": {name: p.columns for name, p in profiles.items()},
                "sites": clients,
                "notes": notes,
                "inputs": own.schemas[0].inputs,
                "written": str(out),
            }
        )
        return
    for name, p in profiles.items():
        ui.show(p.columns, form, title=f"{name}: {p.rows:,} rows")
    ui.show(clients, form, title="sites (rows of every class)")
    for note in notes:
        click.echo(f"note: {note}")
    ui.say(f"written to {out}; next: fedapa {'silo run' if len(clients) > 1 else 'site dry-run'} {out}")


def _is_table(path: Path) -> bool:
    return not path.is_dir() and path.suffix.lower() != ".npz"


def _site_row(client: Any, schema: Any) -> dict[str, Any]:
    counts = sum(part.y.bincount(minlength=len(schema.classes)) for part in (client.train, client.test)).tolist()
    row = {"site": client.name, "rows": len(client.train.y) + len(client.test.y)}
    return row | dict(zip(schema.class_names, counts, strict=True))


@command.command()
@click.argument("source")
@click.option("--rule", default="dirichlet", show_default=True, help="Partition rule, or a saved partition.")
@click.option("--clients", default=20, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--alpha", type=float, help="Dirichlet concentration (dirichlet, quantity).")
@click.option("--classes-per-client", type=int, help="Classes at every client (pathological, random-classes).")
@click.option("--groups", type=int, help="Planted groups (uneven-groups, overlapping-groups, rotated-groups, ...).")
@click.option("--train-share", type=float, help="Share of the train samples that is dealt at all.")
@click.option("--min-train", type=int, help="Train sets must be larger than this.")
@click.option("--min-test", type=int, help="Test sets must be larger than this.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder of the data files.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Keep the partition in this .npz file.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Bubble plot (.svg, .pdf or .png).")
@ui.format_option
def split(
    source: str,
    rule: str,
    clients: int,
    seed: int,
    data_dir: Path | None,
    save: Path | None,
    plot: Path | None,
    form: str,
    **parameters: Any,
) -> None:
    """Partition the data set SOURCE over clients and show what each client gets."""
    import json

    from fedapa.config.experiment import make_partition
    from fedapa.data import inspect, sources
    from fedapa.data.partitions.partition import fingerprint
    from fedapa.store import partition_file

    dataset = sources.load(source, data_dir)
    given = {name: value for name, value in parameters.items() if value is not None}
    found = make_partition(rule, dataset, clients, seed, given)
    rows = inspect.table(found, dataset.y_train, dataset.y_test)
    name = fingerprint(found)
    if form == "json":
        click.echo(json.dumps({"fingerprint": name, "rule": found.rule, "clients": rows}, indent=2, default=str))
    else:
        ui.show(rows, form, title=f"{source}, {rule}, seed {seed}, fingerprint {name}")
    if save is not None:
        partition_file.save(found, save)
        ui.say(f"partition saved in {save}; use it with --set data.partition={save}")
    if plot is not None:
        inspect.bubble_plot(found, dataset.y_train, plot)
        ui.say(f"plot in {plot}")
