"""fedapa silo run"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedapa.cli import ui

MOST_SITES = 12  # whose rows are printed one by one
NONE = "–"


@click.group(short_help="Simulate a federation of your own sites on one machine")
def command() -> None:
    """Simulate a federation of your own sites on one machine, for planning."""


@command.command()
@click.argument("config")
@ui.config_options
@click.option(
    "--deliver", metavar="METHOD", help="Method whose models go to the sites; default fedapa, or the last method."
)
@click.option(
    "--deliver-anyway", "anyway", is_flag=True, help="Also deliver models that predict one class for all rows."
)
@click.option(
    "--no-baselines", "bare", is_flag=True, help="Skip what every site can do alone: gains are then over Local as set."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the runs.")
@ui.format_option
def run(
    config: str,
    methods: str | None,
    seeds: int | None,
    changes: tuple[str, ...],
    data_dir: str | None,
    deliver: str | None,
    anyway: bool,
    bare: bool,
    out: Path | None,
    form: str,
) -> None:
    """Run every method of CONFIG on every split of the sites' data and show the scores of every site.

    Every seed is another split. Intervals are 95 % confidence intervals over the splits, widened for the rows that
    splits share; where all splits have the same test rows (time), they are by bootstrap of these rows. Gains are over
    the better of two models that a site can have alone: the network with rate, rounds and weight decay of its own, and
    a plain model of scikit-learn, both chosen on rows held out from its train rows.

    The models of the first split go to OUT/sites/NAME/site-model; a model that is no better than
    the most frequent class is not delivered. The same command with the same --out resumes an interrupted one.
    """
    from fedapa.cli import common
    from fedapa.config.experiment import load_own
    from fedapa.errors import InputError
    from fedapa.site.inspection import shortened

    wanted = common.read(config, methods, seeds, changes, data_dir)
    own = load_own(wanted, wanted.seeds[0])
    chosen = deliver or ("fedapa" if "fedapa" in wanted.methods else wanted.methods[-1])
    if chosen not in wanted.methods:
        raise InputError(f"--deliver {chosen}: not one of the methods", f"choose from {', '.join(wanted.methods)}")
    out = out or common.default_out(config)
    runs = common.prepare(wanted, out)
    for note in shortened(own.notes):
        ui.say(f"note: {note}")
    failed = common.play_all(runs, out)
    common.tell_refused(runs)
    if failed:
        raise common.summed_up(failed, len(runs), out)
    _report(wanted, runs, out, chosen, anyway, bare, form)


def _report(wanted: Any, runs: list[Path], out: Path, chosen: str, anyway: bool, bare: bool, form: str) -> None:
    from fedapa.analysis import result_sets
    from fedapa.config.load import training_of
    from fedapa.data.schema import to_json
    from fedapa.site import silo_scores
    from fedapa.site.export_models import agreed_schema, deliver_all
    from fedapa.store.checkpoint import write_json

    scored: list[Any] = []
    ways: list[dict[str, Any]] = []
    seeds = [] if bare else wanted.seeds
    with ui.progress() as bar:
        task = bar.add_task("scoring", total=len(runs) + len(seeds), note="")
        for folder in runs:
            scored += silo_scores.score_run(folder)
            bar.advance(task)
        for seed in seeds:
            alone, chosen_ways = silo_scores.score_alone(wanted, seed)
            scored, ways = scored + alone, ways + chosen_ways
            bar.advance(task)
    measures = silo_scores.measures_in(runs[0])
    training = training_of(wanted, "local")
    everything = silo_scores.as_dict(scored, measures, ways, training.lr * training.epochs * wanted.run.rounds)
    write_json(out / result_sets.SILO, everything)
    write_json(out / "schema.json", to_json(agreed_schema(wanted)))
    splits = [path for seed in wanted.seeds for path in runs if path.name == f"{chosen}-seed{seed}"]
    delivered, refused = deliver_all(splits[0], scored, out / "sites", anyway, splits)
    privacy = result_sets.protection(result_sets.load(out))
    if form == "json":
        found = {"delivered": [str(path) for path in delivered], "not delivered": refused, "privacy": privacy}
        ui.dump(everything | found)
        return
    rival, title = everything["gain over"], f"{len(wanted.seeds)} split{'s'[: len(wanted.seeds) - 1]}, 95 % intervals"
    sites = silo_scores.table(scored, measures)
    rows = [_readable(row, measures, rival) for row in sites]
    if len({row["site"] for row in rows}) <= MOST_SITES:
        ui.show(rows, form, title=title)
    methods = silo_scores.overall(scored, measures, sites)
    ui.show([_overall(row, measures, rival) for row in methods], form, title="all sites")
    for note in everything["notes"]:
        click.echo(f"note: {note}")
    for line in privacy:
        click.echo(f"privacy: {line}")
    for reason in refused.values():
        ui.say(f"warning: {reason}; --deliver-anyway writes it all the same")
    models = f"; models of {chosen}: {out}/sites/*/site-model" if delivered else ""
    ui.say(f"all numbers: {out}/silo.json; runs: {out}{models}")


def _readable(row: dict[str, Any], measures: list[Any], rival: str) -> dict[str, Any]:
    """Every measure, and the gain in the two that count most, above 0 where the method is better."""
    return {key: row[key] for key in ("site", "method", "test rows")} | _numbers(row, measures, rival)


def _overall(row: dict[str, Any], measures: list[Any], rival: str) -> dict[str, Any]:
    counts = NONE if row["method"] == rival else "/".join(str(row[key]) for key in ("gain", "lose", "unclear"))
    return {"method": row["method"], **_numbers(row, measures, rival), "sites gain/lose/unclear": counts}


def _numbers(row: dict[str, Any], measures: list[Any], rival: str) -> dict[str, Any]:
    from fedapa.site.silo_scores import shown

    found = {}
    for k, measure in enumerate(measures):
        found[measure.title] = shown(measure, row[measure.name])
        if k < 2:
            gain = f"vs {rival}" if k == 0 else f"{measure.title} vs {rival}"
            is_rival = row["method"] == rival  # nobody gains over itself
            found[gain] = NONE if is_rival else shown(measure, row[f"{measure.name} gain"], signed=True)
    return found
