"""fedapa data fetch | split | inspect"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from fedapa.cli import ui

MOST_COLUMNS = 60  # that are listed one by one
MOST_PROBLEMS = 20


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
@click.option("--event", metavar="COLUMN", help="Whether it happened at the time under --label, or not until then.")
@click.option("--site", "site_column", metavar="COLUMN", help="Column of sites, where one file holds all of them.")
@click.option("--drop", default="", metavar="A,B", help="Columns to leave out.")
@click.option("--categories", default="", metavar="A,B", help="Columns whose numbers are codes.")
@click.option("--classes", default="", metavar="A,B", help="Classes in order, or with their labels: fine=0,ill=1|2.")
@click.option(
    "--missing", default="", metavar="A,B", help="More texts that mean a missing value; chol=0 in one column."
)
@click.option("--decimal", type=click.Choice([".", ","]), help="Sign before decimals; found by default.")
@click.option("--thousands", metavar="SIGN", help="Sign between thousands; found by default.")
@click.option("--dates", default="", metavar="A,B", help="Columns to make numbers of days; seen=%d.%m.%Y says how.")
@click.option("--image", "image_column", metavar="COLUMN", help="Column of image files.")
@click.option("--group", metavar="COLUMN", help="Split by it: rows of one group (a patient) stay together.")
@click.option("--time", metavar="COLUMN", help="Split by it: the latest rows test.")
@click.option("--in-order", is_flag=True, help="The last rows of every file test.")
@click.option("--subgroups", default="", metavar="A,B", help="Columns by which a site's own card tells scores apart.")
@click.option("--repeats", default=10, show_default=True, type=click.IntRange(1), help="Splits of every site's rows.")
@click.option("--encoding", help="Of text files; found by default.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="site.toml", show_default=True)
@click.option("--force", is_flag=True, help="Overwrite OUT.")
@ui.format_option
def inspect(
    files: tuple[Path, ...],
    group: str | None,
    time: str | None,
    in_order: bool,
    repeats: int,
    out: Path,
    force: bool,
    form: str,
    **said: Any,
) -> None:
    """Inspect the data of one site (FILE) or several: rows, types, classes, missing values, and likely mistakes.

    A FILE is a .csv, .tsv, .parquet or .npz file, or a folder class/image.png. Nothing leaves the machine. The
    result is written to OUT, a config that `fedapa silo run` and `fedapa site dry-run` take. Where something is
    wrong, all of it is told, and OUT holds it as comments.
    """
    from fedapa.errors import InputError

    if sum(map(bool, (group, time, in_order))) > 1:
        raise InputError("--group, --time and --in-order exclude each other", "choose one")
    if out.exists() and not force:
        raise InputError(f"{out} exists", "choose another --out, or --force")
    split = "group" if group else "time" if time else "order" if in_order else "stratified"
    wanted, given = _wanted(files, {**said, "split": split, "split_column": group or time})
    _inspect(wanted, given, repeats, out, form)


def _wanted(files: tuple[Path, ...], said: dict[str, Any]) -> tuple[Any, set[str]]:
    """The section [sites] as the options have it, and which of them were given."""
    from fedapa.data.missing import MISSING
    from fedapa.data.site_description import Sites
    from fedapa.errors import InputError

    named = {path.stem: str(path) for path in files}
    if len(named) < len(files):
        raise InputError("two files have the same name", "give every site's file a name of its own")
    lists: dict[str, Any] = {name: _words(said.pop(name)) for name in ("drop", "categories", "subgroups")}
    missing, classes = _pairs(said.pop("missing")), _pairs(said.pop("classes"))
    given = {name for name in ("encoding", "decimal", "thousands") if said[name] is not None}
    kept = {name: value for name, value in said.items() if value is not None and name != "dates"}
    dates = {name: "" if form is None else form for name, form in _pairs(said["dates"]).items()}
    plain = tuple(name for name, value in missing.items() if value is None)
    special = {name: tuple(value.split("|")) for name, value in missing.items() if value is not None}
    merged = {name: (name,) if value is None else tuple(value.split("|")) for name, value in classes.items()}
    own: dict[str, Any] = {
        "missing": (*MISSING, *plain),
        "missing_values": special,
        "classes": merged or None,
        "dates": dates,
    }
    return Sites(files=named, **own, **lists, **kept), given


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _pairs(text: str) -> dict[str, str | None]:
    """NAME or NAME=VALUE, separated by commas."""
    found = (word.partition("=") for word in _words(text))
    return {name.strip(): value.strip() if sign else None for name, sign, value in found}


def _inspect(wanted: Any, given: set[str], repeats: int, out: Path, form: str) -> None:
    from fedapa.site import describe, inspection
    from fedapa.store.checkpoint import write_atomically

    found = inspection.inspected(wanted, given)
    said = shlex.join(["fedapa", *sys.argv[1:]])
    write_atomically(out, describe.config_text(found, out.absolute().parent, said, repeats).encode())
    if (own := found.own) is None:
        _refuse(found, out)
    clients = [_site_row(client, own.schemas[0]) for client in own.data.clients]
    if form == "json":
        ui.dump(
            {
                "columns": {name: p.columns for name, p in found.profiles.items()},
                "sites": clients,
                "notes": found.notes,
                "inputs": own.schemas[0].inputs,
                "written": str(out),
            }
        )
        return
    for title, rows in _column_tables(found.profiles):
        ui.show(rows, form, title=title)
    ui.show(clients, form, title="sites (rows of every class)" if found.target == "class" else "sites")
    for note in found.notes:
        click.echo(f"note: {note}")
    ui.say(f"written to {out}; next: fedapa {'silo run' if len(clients) > 1 else 'site dry-run'} {out}")


def _refuse(found: Any, out: Path) -> NoReturn:
    """Every problem as a line with its hint; the last hint says where all of it stands."""
    from fedapa.errors import InputError

    shown = found.problems[:MOST_PROBLEMS]
    for problem in shown[:-1]:
        click.echo(f"error: {problem.message}", err=True)
        click.echo(f"hint: {problem.hint}", err=True)
    more = len(found.problems) - len(shown)
    rest = f" ({more} more problems are in {out})" if more else ""
    raise InputError(
        f"{shown[-1].message}{rest}", f"{shown[-1].hint}; {out} holds all that was found, --force replaces it"
    )


def _column_tables(profiles: Any) -> list[tuple[str, list[dict[str, Any]]]]:
    """Every column of a few files; of wide tables and many files the kinds of columns, over all files."""
    whole = sum(len(p.columns) for p in profiles.values())
    if whole <= MOST_COLUMNS:
        return [(f"{name}: {p.rows:,} rows", p.columns) for name, p in profiles.items()]
    kinds: dict[str, dict[str, None]] = {}
    for p in profiles.values():
        for row in p.columns:
            kinds.setdefault(row["type"], {})[row["column"]] = None
    rows = [{"type": kind, "columns": len(names), "names": _some(list(names))} for kind, names in kinds.items()]
    return [(f"columns of {len(profiles)} files (--format json lists them all)", rows)]


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _site_row(client: Any, schema: Any) -> dict[str, Any]:
    row = {"site": client.name, "rows": len(client.train.y) + len(client.test.y), "test rows": len(client.test.y)}
    if not schema.classes:
        import torch

        from fedapa.data.site_description import RISK

        y = torch.cat([client.train.y, client.test.y]).double()
        if schema.label.startswith(RISK):
            return row | {"events": int((y > 0).sum()), "longest time": f"{y.abs().max():.4g}"}
        return row | {"mean": f"{y.mean():.4g}", "lowest": f"{y.min():.4g}", "highest": f"{y.max():.4g}"}
    counts = sum(part.y.bincount(minlength=len(schema.classes)) for part in (client.train, client.test)).tolist()
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
