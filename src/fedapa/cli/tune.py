"""fedapa tune CONFIG"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedapa.cli import ui

if TYPE_CHECKING:
    from fedapa.tune.trials import Plan
    from fedapa.tune.tuning import Choice, TrialRow

Row = dict[str, Any]


@click.command(short_help="Choose hyper-parameters on held-out train data")
@click.argument("config")
@ui.config_options
@click.option("--trials", type=click.IntRange(1), default=20, show_default=True, help="Trials of every method.")
@click.option("--search", type=click.Choice(["random", "optuna"]), default="random", show_default=True)
@click.option("--space", "file", type=click.Path(path_type=Path), help="TOML file of search spaces.")
@click.option("--set-space", "words", multiple=True, metavar="NAME=RANGE", help="'ditto.lam=log:0.01..10', or off.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of a trial; default the config's.")
@click.option("--allocations", metavar="0,1", help="Seeds to try every setting on; default the config's.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the search.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time; default one per core.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the trials.")
@click.option("--dry-run", is_flag=True, help="Show what would be searched, and stop.")
@ui.trials_option
def command(
    config: str,
    methods: str | None,
    seeds: int | None,
    changes: tuple[str, ...],
    data_dir: str | None,
    trials: int,
    search: str,
    file: Path | None,
    words: tuple[str, ...],
    rounds: int | None,
    allocations: str | None,
    seed: int,
    jobs: int | None,
    out: Path | None,
    dry_run: bool,
    form: str,
) -> None:
    """Try settings of every method of CONFIG on held-out train data, and write the best to OUT/tuned.toml.

    Every method gets the same number of trials, allocations and rounds; trial 0 is its default settings. The search
    covers the learning rate and the local epochs of all methods, Local too, and the hyper-parameters for which a method
    declares a range (docs/start-researcher.md). The score of a trial is the primary score (accuracy, RMSE) on held-out
    data of the model that the method is evaluated by: the mean over the last five rounds and the allocations. Test data
    is not used.

    The same command or `fedapa resume OUT` resumes a killed tuning, also with more --trials. A trial that fails is kept
    with its reason and stops no other. Trials are in OUT/tune.json and OUT/trials.csv;
    `fedapa run OUT/tuned.toml` runs the tuned methods with the validation share and the rounds of CONFIG.
    """
    from fedapa.cli import common
    from fedapa.config.load import load
    from fedapa.tune.space import asked_for
    from fedapa.tune.trials import make_plan, trial_config

    wanted = load(config, [*common.changes_of(methods, seeds, changes, data_dir), *_seeds(allocations, seeds)])
    plan = make_plan(wanted, asked_for(file, words), trials, search, seed, rounds)
    if not (wanted.sites or wanted.data).validation:
        ui.say(f"note: {config} holds no train data out; trials hold out {plan.validation:.0%} of every train set")
    if dry_run:
        pairs = [(name, key) for name in plan.methods for key in plan.space[name]]
        rows = [{"method": name, "searched": key, "range": plan.space[name][key]} for name, key in pairs]
        ui.show(rows, form)
        ui.say(budget(plan))
        return
    out = out or common.default_out(config)
    common.check_writable(out)
    common.check_data([trial_config(plan, wanted.methods[0], [])])
    run_trials(plan, out, jobs, form)


def _seeds(allocations: str | None, seeds: int | None) -> list[Any]:
    from fedapa.config.load import Change
    from fedapa.errors import InputError

    if allocations is None:
        return []
    if seeds is not None:
        raise InputError("--seeds and --allocations mean the same", "give one of them")
    try:
        found = [int(word) for word in allocations.split(",")]
    except ValueError:
        hint = "for example --allocations 0,1"
        raise InputError(f"--allocations {allocations} is not a list of seeds", hint) from None
    return [Change(f"--allocations {allocations}", ("seeds",), found)]


def budget(plan: Plan) -> str:
    each = [(plan.trials, "trial"), (len(plan.seeds), "allocation"), (plan.rounds, "round")]
    shape = " x ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in each)
    return f"budget of every method: {shape} = {plan.runs * plan.rounds:,} rounds; methods: {', '.join(plan.methods)}"


def run_trials(plan: Plan, out: Path, jobs: int | None, form: str) -> None:
    """Execute the trials with a progress bar, then show them; those that failed are listed at the end."""
    from fedapa.cli import common
    from fedapa.cli.sweep import show_failure
    from fedapa.core.threads import available_cores
    from fedapa.errors import RunError
    from fedapa.tune import tuning

    ui.say(budget(plan))
    again = f"`fedapa resume {shlex.quote(str(out))}`"
    with ui.progress() as bar:
        whole = bar.add_task("all trials", total=None, note="")

        def show_progress(now: tuning.Progress) -> None:
            bar.update(whole, total=now.whole, completed=now.done, note=f"{now.finished}/{now.runs} runs")
            show_failure(bar, now.event)

        try:
            plan, rows = tuning.tune(plan, out, jobs or available_cores(), show_progress)
        except KeyboardInterrupt:
            raise common.Interrupted("interrupted", f"{again} goes on") from None
    _show(plan, rows, form)
    ui.say(f"trials are in {out / tuning.TABLE}")
    for row in rows:
        if row.state == "failed":
            ui.say(f"failed: {row.method} trial {row.trial}: {row.reason}")
    if unfinished := sum(row.state == "unfinished" for row in rows):
        raise RunError(f"{unfinished} trials are not finished: another process has their runs", f"{again} goes on")
    if without := [name for name in plan.methods if name not in tuning.best(rows)]:
        raise RunError(f"no trial of {', '.join(without)} finished", f"{again} tries failed trials again")
    ui.say(f"`fedapa run {shlex.quote(str(out / tuning.TUNED))}` runs the chosen settings")


def _show(plan: Plan, rows: list[TrialRow], form: str) -> None:
    from dataclasses import asdict

    from fedapa.tune import tuning

    chosen = tuning.choices(rows)
    if form == "json":
        ui.dump(
            {
                "plan": asdict(plan),
                "trials": [row.as_dict() for row in rows],
                "chosen": [one.as_dict() for one in chosen],
            }
        )
    elif form == "csv":
        click.echo(tuning.as_csv(rows), nl=False)
    else:
        _show_tables(plan, rows)
        ui.show([_choice(one) for one in chosen], form, title="chosen on held-out train data")


def _choice(chosen: Choice) -> Row:
    row, score = chosen.row, chosen.row.score
    what = score.unit or score.name
    shown = {"method": row.method, "trial": row.trial, f"held out {what}": score.number(row.held)}
    shown |= {f"default {what}": score.number(chosen.default)}
    return {**shown, "settings": " ".join(f"{k}={v}" for k, v in _written(row.settings).items()) or "default"}


def _show_tables(plan: Plan, rows: list[TrialRow]) -> None:
    """A table of trials per method, since every method has settings of its own; trial 0 shows the defaults."""
    from fedapa.tune.space import defaults

    config = plan.read()
    for name, space in plan.spaces().items():
        default, mine = defaults(config, name, space), [row for row in rows if row.method == name]
        shown = [_readable(row, plan.seeds) | _written(row.settings or default) for row in mine]
        ui.show(shown, "table", title=f"{name}: trial 0 is the default")


def _readable(row: TrialRow, seeds: list[int]) -> Row:
    score = row.score
    what, of = score.unit or score.name, row.allocations
    each = {f"seed {seed} {what}": score.number(of[str(seed)]) for seed in seeds} if len(seeds) > 1 else {}
    held = row.state if row.held is None else score.number(row.held)
    return {"trial": row.trial, f"held out {what}": held, **each, "s": round(row.seconds)}


def _written(settings: Row) -> dict[str, str]:
    return {
        key.removeprefix("training."): f"{value:g}" if isinstance(value, float) else str(value)
        for key, value in settings.items()
    }
