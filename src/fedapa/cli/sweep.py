"""fedapa sweep CONFIG..."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from fedapa.cli import ui


@click.command(short_help="Run many runs over all cores, scenario by scenario")
@click.argument("configs", metavar="CONFIG...", nargs=-1, required=True)
@ui.config_options
@click.option(
    "--only", default="*", metavar="PATTERN", help="Only runs whose SCENARIO/METHOD-seedN matches this pattern."
)
@click.option(
    "--skip-collected",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Skip runs that are in this results file; may be given again.",
)
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time; default one per core.")
@ui.on_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the runs.")
@ui.log_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check configs, data and methods, list the runs and their time, and stop.",
)
@ui.comparison_option
def command(
    configs: tuple[str, ...],
    methods: str | None,
    seeds: int | None,
    changes: tuple[str, ...],
    data_dir: str | None,
    only: str,
    files: tuple[Path, ...],
    jobs: int | None,
    on: str,
    out: Path | None,
    log: str | None,
    dry_run: bool,
    form: str,
) -> None:
    """Run every scenario, method and seed of the CONFIGs, several at a time, each on one core, longest first.

    A CONFIG is what `fedapa run` takes, or has tables [scenario.NAME] whose keys override the rest. The runs are
    in OUT/SCENARIO/METHOD-seedN, their states and results in OUT/sweep.db and OUT/results.json. The same command
    resumes a killed sweep, and so does `fedapa resume OUT`. Finished runs are never repeated, failed ones do not stop
    the others, and several sweeps may work in one folder.

    A run is collected if a FILE has one of the same scenario, method, seed, config hash, allocation and numerics
    version. So long experiments can continue from committed results on another machine.

    With --on, runs are played on a Ray cluster, a Slurm queue or other machines over ssh. They need this package in the
    same version, and data sets under the same path. A folder on a shared file system is used in place; otherwise runs
    travel there and back. A place that is lost gives its run to another.
    """
    from fedapa.cli import common
    from fedapa.config.grid import load_scenarios
    from fedapa.sweep import runner

    extra = common.changes_of(methods, seeds, changes, data_dir, log)
    scenarios = common.merged([load_scenarios(config, extra) for config in configs])
    out = out or common.default_out(configs[0])
    skip = runner.collected_runs(scenarios, files, only) if files else set()
    if dry_run:
        common.check_all(runner.chosen(scenarios, only))
        ui.show(runner.outlook(scenarios, out, only, skip), form)
        return
    common.check_writable(out)
    common.check_data(runner.chosen(scenarios, only))
    paths = runner.lay_out_all(scenarios, out, only, skip)
    if skip:
        ui.say(f"skipped {len(skip)} collected runs; {len(paths)} are left")
    if paths:
        run_all(paths, out, jobs, form, on)


def run_all(paths: list[Path], out: Path, jobs: int | None, form: str, on: str = "here") -> None:
    """Execute the runs with a progress bar, then compare them; failures are listed at the end."""
    from fedapa.cli import common
    from fedapa.errors import RunError
    from fedapa.sweep import runner

    with ui.progress() as bar:
        whole = bar.add_task("all runs", total=None, note="")

        def show(now: runner.Progress) -> None:
            note = f"{now.finished}/{now.runs} runs"
            bar.update(whole, total=round(now.whole), completed=round(now.done), note=note)
            show_failure(bar, now.event)

        try:
            failed = runner.play(out, paths, jobs, show, on)
        except KeyboardInterrupt:
            again = f"`fedapa resume {shlex.quote(str(out))}` goes on"
            raise common.Interrupted("interrupted", again) from None
    if len(failed) < len(paths):
        runner.write_results(out)
        common.print_comparison(out, form)
    ui.say(f"runs are in {out}")
    if failed:
        listed = "".join(f"\n  {path}: {reason}" for path, reason in failed.items())
        again = f"`fedapa resume {shlex.quote(str(out))}` tries them again"
        raise RunError(f"{len(failed)} of {len(paths)} runs failed:{listed}", again)


def show_failure(bar: Any, event: Any) -> None:
    if event is not None and event.what == "failed" and not bar.disable:
        bar.console.print(f"failed {event.path.name}: {event.text}", style="red", markup=False)
