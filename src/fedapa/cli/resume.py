"""fedapa resume [DIR]"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command(short_help="Continue runs that were cut off")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@ui.on_option
@ui.comparison_option
def command(folder: Path | None, on: str, form: str) -> None:
    """Continue all unfinished runs of FOLDER (default: the latest under ./runs), bit for bit as if never stopped.

    --on is for sweeps, as in `fedapa sweep`.
    """
    from fedapa.cli import common
    from fedapa.cli.sweep import run_all
    from fedapa.cli.tune import run_trials
    from fedapa.errors import InputError
    from fedapa.store.run_folder import runs_under
    from fedapa.sweep.runner import is_sweep
    from fedapa.tune.trials import is_tuning, stored

    folder = folder or common.newest_out()
    if is_tuning(folder):
        run_trials(stored(folder)[0], folder, None, form)
        return
    runs = runs_under(folder)
    if not runs:
        raise InputError(f"{folder} holds no run", "name the folder that `fedapa run` printed")
    if is_sweep(folder):
        run_all(runs, folder, None, form, on)
        return
    common.execute_all(runs, folder, form)
    ui.say(f"runs are in {folder}")
