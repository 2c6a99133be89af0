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
    that the run's method makes for it. A verdict says which of the first and the last to use; they go to
    OUT/alone-model and OUT/site-model, the server's state with the new client to OUT/checkpoints. RUN is not changed.
    """
    from fedapa.config.experiment import read_config
    from fedapa.site.export_models import check_simulated
    from fedapa.site.onboarding import check_client_name, onboard
    from fedapa.site.silo_scores import shown

    check_simulated(run)
    who = check_client_name(name or file.stem)
    total = rounds or read_config(run).run.rounds
    with ui.progress() as bar:
        task = bar.add_task(f"onboarding {who}", total=total, note="")
        found = onboard(run, who, file, out or run / "joined" / who, rounds, lambda t: bar.advance(task), anyway)
    if form == "json":
        scores = {k: {name: one._asdict() for name, one in mine.items()} for k, mine in found.scores.items()}
        verdict = {"use": found.verdict.use, "gain": found.verdict.gain._asdict(), "text": found.verdict.text}
        about = {"rows": found.rows, "weights": found.weights, "folder": found.folder}
        ui.dump({"name": who, "models": scores, "verdict": verdict, **about})
        return
    rows = [
        {"model": k, **{m.title: shown(m, mine[m.name]) for m in found.measures}} for k, mine in found.scores.items()
    ]
    ui.show(rows, form, title=f"{who}: {found.rows[0]} train and {found.rows[1]} test rows, 95 % intervals")
    if found.weights:
        click.echo("weights: " + ", ".join(f"{k} {v:.3f}" for k, v in found.weights.items()))
    click.echo(f"verdict: {found.verdict.text}")
    ui.say(f"written to {found.folder}, and beside it alone-model/")
