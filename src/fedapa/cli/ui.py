"""What commands share: tables, JSON, progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import Progress

format_option = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", help="How to print it."
)
comparison_option = click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv", "latex"]), default="table", help="How to print it."
)

on_option = click.option(
    "--on",
    default="here",
    show_default=True,
    metavar="PLACE",
    help="Where runs are played: here, ray, ray://HOST:PORT, slurm[:KEY=VALUE,...] or ssh:HOST[*PLACES],...",
)
trials_option = click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", help="How to print it."
)


def show(rows: Sequence[dict[str, Any]], form: str, columns: dict[str, str] | None = None, title: str = "") -> None:
    """Rows as JSON or CSV, or as a table with the chosen columns (key: heading)."""
    if form == "json":
        dump(list(rows))
        return
    if form == "csv":
        from fedapa.cli.comparison_formats import as_csv

        click.echo(as_csv(rows), nl=False)
        return
    from rich.console import Console
    from rich.table import Table

    columns = columns or {key: key.replace("_", " ") for key in (rows[0] if rows else {})}
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for key, heading in columns.items():
        numeric = rows and all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(key)) for key in columns))
    width = None if sys.stdout.isatty() else 1000  # a pipe has no width limit
    Console(width=width, highlight=False, markup=False).print(table)


def dump(content: Any) -> None:
    """Plain JSON on standard output."""
    click.echo(json.dumps(content, indent=2, default=str))


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list | tuple):
        return " ".join(cell(v) for v in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value))


def printable(text: str) -> str:
    """Without what a terminal would obey: the runs and kits that are shown may be somebody else's."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def say(text: str) -> None:
    click.echo(printable(text), err=True)


def progress() -> Progress:
    """A bar with time left on a terminal; elsewhere a line every few seconds, once something takes that long."""
    from rich import progress as parts
    from rich.console import Console

    from fedapa.cli.progress_lines import ProgressLines

    if not sys.stderr.isatty():
        return ProgressLines()
    text = parts.TextColumn
    return parts.Progress(
        text("{task.description}"),
        parts.BarColumn(),
        parts.MofNCompleteColumn(),
        parts.TimeElapsedColumn(),
        text("left"),
        parts.TimeRemainingColumn(),
        text("{task.fields[note]}"),
        console=Console(stderr=True),
    )


log_option = click.option(
    "--log", metavar="A,B", help="Also log to tensorboard, mlflow, wandb, or to your own file.py:Class."
)


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that change a config on the command line."""
    for option in (
        click.option("--data-dir", type=click.Path(file_okay=False), help="Folder of the data files."),
        click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key: --set run.rounds=10."),
        click.option("--seeds", type=click.IntRange(1), metavar="N", help="Seeds 0 to N-1, one allocation each."),
        click.option("--method", "methods", metavar="A,B", help="Methods to run, by name, or all."),
    ):
        command = option(command)
    return command
