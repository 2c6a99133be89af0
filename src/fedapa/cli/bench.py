"""fedapa bench"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedapa.cli import ui


@click.command(short_help="Measure the engines against a plain loop")
@click.option("--only", multiple=True, metavar="NAME", help="One suite; may be given again. --list names them.")
@click.option("--list", "listing", is_flag=True, help="Name the suites and stop.")
@click.option("--quick", is_flag=True, help="Tiny sizes: checks that everything works, measures nothing.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds of a whole run.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Keep the results in this JSON file.")
@ui.format_option
def command(only: tuple[str, ...], listing: bool, quick: bool, rounds: int, out: Path | None, form: str) -> None:
    """Measure training, evaluation, whole runs, the server's step, memory and start-up.

    Everything is measured side by side with a plain PyTorch loop (DataLoader, autograd, torch.optim.SGD): medians, with
    the lowest and the highest in brackets. The machine should be idle otherwise. Without the real images,
    random ones of the same shape are used. All suites together are kept as benchmarks/DATE.json, of which
    docs/make_performance.py makes docs/performance.md.
    """
    import json

    from fedapa.bench.fixtures import How
    from fedapa.bench.suites import SUITES, chosen, report

    if listing:
        ui.show([{"suite": name, "measures": suite.__doc__} for name, suite in SUITES.items()], form)
        return
    names = chosen(only)
    if out is not None:
        _check_parent(out)
    found = report(names, How(quick, rounds), lambda name: ui.say(f"measuring {name}"))
    if out is None and not quick and not only:
        out = Path("benchmarks") / f"{found['machine']['date'][:10]}.json"
    if out is not None:
        _keep(out, found)
    if form == "json":
        click.echo(json.dumps(found, indent=2))
        return
    ui.show([readable(row) for row in found["rows"]], form)


def readable(row: dict[str, Any]) -> dict[str, str]:
    found, unit = row["found"], row["unit"]
    verdict = {True: "yes", False: "NO", None: ""}[row["holds"]]
    wanted = "" if row["target"] is None else f"{'at most' if row['at_most'] else 'at least'} {row['target']:g} {unit}"
    middle = f"{found['median']:.3g} {unit} [{found['low']:.3g}, {found['high']:.3g}]"
    return {"suite": row["suite"], "what": row["what"], "wanted": wanted, "found": middle, "met": verdict}


def _check_parent(out: Path) -> None:
    from fedapa.cli.common import check_writable

    check_writable(out.parent)


def _keep(out: Path, found: dict[str, Any]) -> None:
    from fedapa.store.checkpoint import write_json
    from fedapa.store.run_folder import make_folder

    make_folder(out.parent)
    write_json(out, found)
    ui.say(f"kept in {out}")
