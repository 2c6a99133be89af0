"""fedapa run CONFIG"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command(short_help="Run a config or preset")
@click.argument("config")
@ui.config_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the runs.")
@click.option("--device", help="Where clients compute: auto, cpu, cuda, cuda:1, mps; several by commas.")
@ui.log_option
@ui.comparison_option
def command(
    config: str,
    methods: str | None,
    seeds: int | None,
    changes: tuple[str, ...],
    data_dir: str | None,
    out: Path | None,
    device: str | None,
    log: str | None,
    form: str,
) -> None:
    """Run every method of CONFIG (a file or a preset) for every seed, one folder each, and compare them.

    After Ctrl-C, a crash or a power cut, `fedapa resume` continues after the last finished round.
    """
    from fedapa.cli import common

    changes += () if device is None else (f"run.device={device}",)
    wanted = common.read(config, methods, seeds, changes, data_dir, log)
    out = out or common.default_out(config)
    common.execute_all(common.prepare(wanted, out), out, form)
    ui.say(f"runs are in {out}")
