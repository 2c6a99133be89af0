"""fedapa onboard RUN FILE"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command(short_help="Add a client to a finished federation")
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Name of the new client; default that of its file.")
@click.option("--rounds", type=click.IntRange(1), help="Visits; default as many as the run has rounds.")
@click.option(
    "--deliver-anyway", "anyway", is_flag=True, help="Also deliver a model that predicts one class for all rows."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder; default RUN/joined/NAME.")
@ui.format_option
def command(
    run: Path, file: Path, name: str | None, rounds: int | None, anyway: bool, out: Path | None, form: str
) -> None:
    """Add a client with the data FILE to the run RUN, finished or not, without retraining the others.

    Compares three models on the new client's own test rows: trained alone, the mean of the others' models, and the one
    that the run's method makes for it. That model goes to OUT/site-model, the server's state with the new client to
    OUT/checkpoints. RUN is not changed.
    """
    from fedapa.config.experiment import read_config
    from fedapa.errors import InputError
    from fedapa.site.onboarding import onboard
    from fedapa.site.silo_scores import shown

    who = name or file.stem
    if Path(who).name != who or who == "..":  # it names a folder below RUN
        raise InputError(f"{who!r} cannot name a client", "leave slashes out of --name")
    total = rounds or read_config(run).run.rounds
    with ui.progress() as bar:
        task = bar.add_task(f"onboarding {who}", total=total, note="")
        found = onboard(run, who, file, out or run / "joined" / who, rounds, lambda t: bar.advance(task), anyway)
    if form == "json":
        scores = {k: {name: one._asdict() for name, one in mine.items()} for k, mine in found.scores.items()}
        ui.dump({"name": who, "rows": found.rows, "models": scores, "weights": found.weights, "folder": found.folder})
        return
    rows = [
        {"model": k, **{m.title: shown(m, mine[m.name]) for m in found.measures}} for k, mine in found.scores.items()
    ]
    ui.show(rows, form, title=f"{who}: {found.rows[0]} train and {found.rows[1]} test rows, 95 % intervals")
    if found.weights:
        click.echo("weights: " + ", ".join(f"{k} {v:.3f}" for k, v in found.weights.items()))
    ui.say(f"written to {found.folder}")
