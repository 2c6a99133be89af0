"""fedapa site dry-run"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedapa.cli import ui


@click.command("dry-run", short_help="List every tensor that would leave")
@click.argument("config")
@click.option("--method", help="Default: fedapa; with --run, all of that run.")
@click.option("--run", "run", type=click.Path(dir_okay=False), help="The coordinator's config of the run to join.")
@click.option("--site", metavar="NAME", help="Which site, if the config has several.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key: --set run.rounds=10.")
@click.option("--data-dir", type=click.Path(file_okay=False), help="Folder of the data files.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="wire.json", show_default=True)
@ui.format_option
def dry_run(
    config: str,
    method: str | None,
    run: str | None,
    site: str | None,
    changes: tuple[str, ...],
    data_dir: str | None,
    out: Path,
    form: str,
) -> None:
    """Run one round of the site of CONFIG without any network and list every tensor that would leave it.

    The list is written to wire.json with every setting of method, model and training. A client that joins with it
    sends nothing else, and refuses a run with any other setting. Also shows how good the site is on its own.

    With --run, methods, settings and layout are those of the coordinator's config, and the data those of CONFIG: it
    fails where they do not fit. So this is how a site accepts a run.
    """
    from fedapa.cli import common
    from fedapa.federation import manifest
    from fedapa.site.dry_run import dry_runs

    if out.exists():
        manifest.read(out)  # only a file that a dry run wrote is replaced
    if run is None:
        wanted = common.read(config, method or "fedapa", None, changes, data_dir)
    else:
        mine, theirs = common.read(config, None, None, (), data_dir), common.read(run, method, None, changes, None)
        wanted = theirs.model_copy(update={"sites": mine.sites, "data": mine.data})
    with ui.progress() as bar:
        task = bar.add_task("training alone", total=wanted.run.rounds, note="")
        played = dry_runs(wanted, wanted.methods, site, lambda log: bar.advance(task))
    manifest.write(out, manifest.together([found.wire for found in played]))
    if form == "json":
        told = [_told(found) for found in played]
        ui.dump(told[0] if len(told) == 1 else told)
        return
    for found in played:
        _show_messages(found, form)
    _show_rest(played[0])
    ui.say(f"layout {played[0].wire['layout'][:12]}: accepted by this site, as are these settings")
    ui.say(f"written to {out}; a client that joins with it sends nothing else")


def _told(found: Any) -> dict[str, Any]:
    scores = {name: interval._asdict() for name, interval in found.alone.items()}
    notes = {"privacy": found.privacy, "warnings": found.warnings}
    return {"wire": found.wire, "sees": found.sees, "alone": scores, **notes}


def _show_messages(found: Any, form: str) -> None:
    unique = {str(row): row for message in found.wire["up"] for row in message}
    rows = [
        {**row, "shape": "x".join(map(str, row["shape"])), "who sees it": found.sees[row["name"]]}
        for row in unique.values()
    ]
    if rows:
        ui.show(rows, form, title=f"{found.site}: what leaves in every round of {found.method}")
    else:
        click.echo(f"{found.site}: nothing leaves with {found.method}")
    for line in found.privacy:
        click.echo(f"privacy: {line}")
    for line in found.warnings:
        ui.say(f"warning: {found.method}: {line}")


def _show_rest(found: Any) -> None:
    """What is the same for all methods."""
    from fedapa.site.model_card import score_text

    for line in found.wire["once"]:
        click.echo(f"leaves once: {line}")
    for when, fields in found.wire["said"].items():
        click.echo(f"said {when}: {'; '.join(dict.fromkeys(fields.values()))}")
    click.echo("stays here: rows, cells, states, models, scores per row, and the audit log")
    scores = ", ".join(score_text(measure, found.alone[measure.name]) for measure in found.measures)
    click.echo(f"alone, {found.rows[0]} train and {found.rows[1]} test rows: {scores}")
