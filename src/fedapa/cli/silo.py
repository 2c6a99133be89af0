"""fedapa silo run"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedapa.cli import ui


@click.group(short_help="Simulate a federation of your own sites on one machine")
def command() -> None:
    """Simulate a federation of your own sites on one machine, for planning."""


@command.command()
@click.argument("config")
@ui.config_options
@click.option("--deliver", metavar="METHOD", help="Whose models go to the sites; default fedapa, or the last method.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the runs.")
@ui.format_option
def run(
    config: str, methods: str | None, seeds: int | None, changes: tuple[str, ...], data_dir: str | None,
    deliver: str | None, out: Path | None, form: str,
) -> None:  # fmt: skip
    """Run every method of CONFIG on every split of the sites' data; accuracy and AUC of every site.

    Every seed is another split. Intervals are 95 % confidence intervals over the splits, widened for the rows that
    splits share. The models of the first split go to OUT/sites/NAME/site-model. Cut off, the same command with the
    same --out goes on.
    """
    from fedapa.cli import common
    from fedapa.config.experiment import load_own
    from fedapa.errors import InputError

    wanted = common.read(config, methods, seeds, changes, data_dir)
    own = load_own(wanted, wanted.seeds[0])
    chosen = deliver or ("fedapa" if "fedapa" in wanted.methods else wanted.methods[-1])
    if chosen not in wanted.methods:
        raise InputError(f"--deliver {chosen}: not one of the methods", f"choose from {', '.join(wanted.methods)}")
    out = out or common.default_out(config)
    runs = common.prepare(wanted, out)
    for note in own.notes:
        ui.say(f"note: {note}")
    if failed := common.play_all(runs, out):
        raise common.summed_up(failed, len(runs), out)
    _report(wanted, runs, out, chosen, form)


def _report(wanted: Any, runs: list[Path], out: Path, chosen: str, form: str) -> None:
    from fedapa.data.schema import to_json
    from fedapa.run.checkpoint import write_json
    from fedapa.site import silo
    from fedapa.site.deliver import agreed_schema, deliver_all

    scored = []
    with ui.progress() as bar:
        task = bar.add_task("scoring", total=len(runs), note="")
        for folder in runs:
            scored += silo.score_run(folder)
            bar.advance(task)
    everything = silo.as_dict(scored)
    write_json(out / "silo.json", everything)
    write_json(out / "schema.json", to_json(agreed_schema(wanted)))
    folder = next(path for path in runs if path.name == f"{chosen}-seed{wanted.seeds[0]}")
    delivered = deliver_all(folder, scored, out / "sites")
    if form == "json":
        ui.dump(everything | {"delivered": [str(path) for path in delivered]})
        return
    ui.show([_readable(row) for row in silo.table(scored)], form, title=f"{len(wanted.seeds)} splits, 95 % intervals")
    for note in everything["notes"]:
        click.echo(f"note: {note}")
    ui.say(f"all numbers: {out}/silo.json; runs: {out}; models of {chosen}: {out}/sites/*/site-model")


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    from fedapa.site.silo import readable

    return {
        "site": row["site"],
        "method": row["method"],
        "test rows": row["test rows"],
        "accuracy %": readable(row["accuracy"], 100, 1),
        "vs local": readable(row["accuracy gain"], 100, 1, signed=True),
        "AUC": readable(row["auc"]),
        "AUC vs local": readable(row["auc gain"], signed=True),
    }
