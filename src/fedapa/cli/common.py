"""From command-line arguments to a config, and from a config to finished runs."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedapa.cli import ui
from fedapa.config.load import Change, load
from fedapa.config.sections import Config
from fedapa.errors import FedapaError, InputError, RunError
from fedapa.methods.catalogue import METHODS

if TYPE_CHECKING:
    from fedapa.analysis.method_rows import MethodRow
    from fedapa.analysis.run_results import RunResult
    from fedapa.core.scores import Score

RUNS = Path("runs")


class Interrupted(FedapaError):
    exit_code = 3


def read(
    source: str,
    methods: str | None,
    seeds: int | None,
    changes: Iterable[str],
    data_dir: str | None,
    log: str | None = None,
) -> Config:
    """A config with the command line's changes applied, validated as a whole."""
    return load(source, changes_of(methods, seeds, changes, data_dir, log))


def changes_of(
    methods: str | None, seeds: int | None, changes: Iterable[str], data_dir: str | None, log: str | None = None
) -> list[str | Change]:
    """The command line's options as changes of a config."""
    extra: list[str | Change] = list(changes)
    if methods is not None:
        names = list(METHODS) if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
        extra.append(Change(f"--method {methods}", ("methods",), names))
    if seeds is not None:
        extra.append(Change(f"--seeds {seeds}", ("seeds",), list(range(seeds))))
    if log is not None:
        extra.append(Change(f"--log {log}", ("run", "log"), [name.strip() for name in log.split(",") if name.strip()]))
    if data_dir is not None:
        extra.append(Change(f"--data-dir {data_dir}", ("data", "data_dir"), str(Path(data_dir).absolute())))
    return extra


def merged(files: Sequence[dict[str, Config]]) -> list[tuple[str, Config]]:
    """The scenarios of several files; two of one name share a folder, as long as their runs have different names."""
    return [pair for scenarios in files for pair in scenarios.items()]


def check_data(configs: Iterable[Config]) -> None:
    """Missing or broken files are found before the first run starts."""
    from fedapa.config.experiment import load_data

    seen = set()
    for config in configs:
        if (key := (config.data.source, config.data.data_dir, repr(config.sites))) not in seen:
            seen.add(key)
            load_data(config, config.seeds[0])


def check_all(configs: Iterable[Config]) -> None:
    """Everything that a run needs before its first round: data of every allocation, the model, every method."""
    from fedapa.config.experiment import assemble, method_from, single
    from fedapa.sinks import make_sink

    for config in configs:
        for name in config.run.log:
            make_sink(name)
        for seed in config.seeds:
            assemble(single(config, config.methods[0], seed))
        for method in config.methods:
            method_from(config, method)
            warn(config, method)


def prepare(wanted: Config, out: Path) -> list[Path]:
    """Create the run folders of a config. Errors in it or in the data are raised before anything is written."""
    from fedapa.config.experiment import assemble, attack_of, lay_out, single
    from fedapa.training.engines.choice import engine_note

    check_writable(out)
    parts = assemble(single(wanted, wanted.methods[0], wanted.seeds[0]))
    for seed in wanted.seeds:
        if (attack := attack_of(wanted, parts.task.clients, seed)) is not None:
            ui.say(f"note: malicious clients: {attack}{f' (seed {seed})' if len(wanted.seeds) > 1 else ''}")
    if not parts.task.training.is_plain:
        ui.say(f"recipe: {parts.task.training.told()}; engine {engine_note(parts.task)}")
    for method in wanted.methods:
        warn(wanted, method)
    return lay_out(wanted, out)


def warn(wanted: Config, method: str) -> None:
    """Warn before a run with noised uploads, or of a method that fits some models only, if it may learn nothing.

    A method that cannot be run with the trainer or the models is refused here, before others have been trained.
    """
    from fedapa.config.experiment import assemble, single
    from fedapa.config.load import settings_of, training_of
    from fedapa.methods.catalogue import method_class
    from fedapa.methods.method import Method
    from fedapa.rounds.expected_uploads import Expected
    from fedapa.rounds.loop import check_fits
    from fedapa.simulation import doubts

    name = settings_of(wanted, method)[0]
    own = bool(wanted.model.shared or training_of(wanted, method).trainer) or not isinstance(wanted.model.name, str)
    if own or "noised" in name.split("+") or method_class(name).remarks is not Method.remarks:
        parts = assemble(single(wanted, method, wanted.seeds[0]))
        sample = parts.data.clients[0].train.x[0]
        check_fits(parts.method, parts.task)
        if own:
            Expected(parts.method, parts.task, sample)
        for line in doubts(parts.method, parts.task, sample):
            ui.say(f"warning: {method}: {line}")


def tell_refused(runs: Iterable[Path]) -> None:
    """Warn of uploads that the server refused: how many, from how many clients, and the first reason."""
    from fedapa.store.run_folder import refusals

    for run in runs:
        with suppress(FedapaError):  # a run.db that cannot be read has an error of its own, which is reported elsewhere
            if (found := refusals(run)) is not None:
                ui.say(f"warning: {run.name}: {found}")


def default_out(source: str) -> Path:
    """runs/NAME-TIME, with a number appended if two start in the same second."""
    base = RUNS / f"{Path(source).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, k = base, 1
    while path.exists():
        path, k = base.with_name(f"{base.name}-{k}"), k + 1
    return path


def newest_out() -> Path:
    """The folder of the latest runs."""
    from fedapa.store.run_list import runs_under

    found = [path for path in RUNS.glob("*") if path.is_dir() and runs_under(path)]
    if not found:
        raise InputError("there are no runs here", "`fedapa run` makes some under ./runs; or name a folder")
    return max(found, key=lambda path: path.stat().st_mtime)


def check_writable(out: Path) -> None:
    """Refuse before any work is done, not after."""
    existing = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise InputError(f"{existing} is not a folder", "choose another --out")
    if not os.access(existing, os.W_OK):
        raise InputError(f"{existing} cannot be written to", "choose another --out")


Play = Callable[[Path, Callable[[Any], None]], object]


def execute_all(
    runs: Sequence[Path], out: Path, form: str, play: Play | None = None, again: str = "fedapa resume"
) -> None:
    """Run everything that is not finished and compare the runs; a failed run does not stop the others.

    ``play`` executes one run, by default in this process.
    """
    failed = play_all(runs, out, play, again)
    tell_refused(runs)
    if len(failed) < len(runs):
        print_comparison(out, form)  # also if some failed: the others are done
    if failed:
        raise summed_up(failed, len(runs), out)


def play_all(
    runs: Sequence[Path], out: Path, play: Play | None = None, again: str = "fedapa resume"
) -> list[tuple[Path, FedapaError]]:
    """Execute every run that is not finished; returns which ones failed, and why."""
    from fedapa.config.experiment import execute, read_config, unfinished
    from fedapa.store.run_folder import rounds_done

    todo = unfinished(list(runs))
    failed: list[tuple[Path, FedapaError]] = []
    totals = {run: read_config(run).run.rounds for run in todo}
    with ui.progress() as bar:
        done = sum(rounds_done(run) for run in todo)
        whole = bar.add_task("all runs", total=sum(totals.values()), completed=done, note="")
        for run in todo:
            one = bar.add_task(run.name, total=totals[run], completed=rounds_done(run), note="")

            primary = cache(partial(_primary, run))  # it never changes: run.db is asked once, not in every round

            def step(log: Any, one: Any = one, primary: Callable[[], Score] = primary) -> None:
                bar.update(one, completed=log.round + 1, note=_note(log, primary))
                bar.advance(whole)

            try:
                (play or execute)(run, step)
            except FedapaError as error:
                failed.append((run, error))
                if not bar.disable:
                    bar.console.print(f"failed {run.name}: {error.message}", style="red", markup=False)
            except KeyboardInterrupt:
                hint = f"`{again} {shlex.quote(str(out))}` continues after the last finished round"
                raise Interrupted("interrupted", hint) from None
            bar.remove_task(one)
    return failed


def summed_up(failed: Sequence[tuple[Path, FedapaError]], runs: int, out: Path) -> FedapaError:
    """One error for all runs that failed, each reason once."""
    reasons = list(dict.fromkeys(error.message for _, error in failed))
    listed = [f"{', '.join(run.name for run, e in failed if e.message == reason)}: {reason}" for reason in reasons]
    kind = InputError if all(isinstance(error, InputError) for _, error in failed) else RunError
    hint = failed[0][1].hint or f"see {out}/*/log.txt"
    if runs == 1:
        return kind(failed[0][1].message, hint)
    return kind(f"{len(failed)} of {runs} runs failed: {'; '.join(listed)}", hint)


def _note(log: Any, primary: Callable[[], Score]) -> str:
    """The primary score before and after local training."""
    from fedapa.core.summaries import summarise

    if log.before is None or log.after is None:
        return ""
    score = primary()
    before, after = (summarise(score, c[:, 0, 0], c[:, 0, 1]).pooled for c in (log.before, log.after))
    digits = 1 if score.unit == "%" else score.digits
    return f"{before:.{digits}f} / {after:.{digits}f} {score.unit or score.name}"


def _primary(run: Path) -> Score:
    """What a run is judged by."""
    from fedapa.store import run_db

    with run_db.reading(run / "run.db") as db:
        return run_db.primary(db)


def print_comparison(out: Path, form: str, rival: str = "local") -> list[RunResult]:
    """Print a table of methods; returns the runs behind it."""
    from fedapa.analysis import comparison, result_sets, standings
    from fedapa.cli import comparison_formats

    runs, unreadable = result_sets.survey(out)
    for path, why in unreadable.items():
        ui.say(f"left out {path.name}: {why}")
    if rival not in {run.label for run in runs} and rival != "local":
        raise InputError(f"there is no run of {rival!r} in {out}", "--against names a method that was run")
    if versions := result_sets.mixed(runs):
        ui.say(f"note: {versions}")
    rows = comparison.table(runs, rival)
    ranks = standings.ranks(rows)
    if form == "json":
        whole: dict[str, Any] = {} if ranks is None else {"ranks": ranks._asdict()}
        whole |= {"privacy": lines} if (lines := result_sets.protection(runs)) else {}
        ui.dump({"methods": [row.as_dict() for row in rows], **whole, "runs": result_sets.as_dicts(runs)})
    elif form == "csv":
        click.echo(comparison_formats.as_csv([comparison_formats.flat(row) for row in rows]), nl=False)
    elif form == "latex":
        click.echo(comparison_formats.as_latex(rows), nl=False)
    else:
        for scenario in dict.fromkeys(row.scenario for row in rows):
            mine = [row for row in rows if row.scenario == scenario]
            noised = any(row.epsilon is not None for row in mine)
            planted = any(row.groups_found is not None for row in mine)
            extra = [{"epsilon": row.epsilon} if noised else {} for row in mine]
            groups = [_found(row) if planted else {} for row in mine]
            columns = zip(mine, extra, groups, strict=True)
            shown = [_readable(row, rival) | more | found for row, more, found in columns]
            ui.show(shown, form, title=scenario)
            for line in (standings.who_wins(mine), _doubts(mine, rival)):
                if line:
                    click.echo(line)
        if ranks is not None:
            _show_ranks(ranks)
        if names := standings.left_out(runs, rows):
            click.echo(f"Left out until they are finished: {', '.join(names)}.")
        for line in result_sets.protection(runs):
            click.echo(f"privacy: {line}")
        for line in result_sets.site_notes(runs):
            click.echo(f"sites: {line}")
    return runs


def print_clients(out: Path, form: str, rival: str = "local") -> list[RunResult]:
    """Print the gain of every client; returns the runs behind it."""
    from fedapa.analysis import pairing, result_sets
    from fedapa.cli import comparison_formats

    runs = result_sets.load(out)
    rows = [row.as_dict() for row in pairing.client_gains(runs, rival)]
    if not rows:
        raise InputError(f"nothing in {out} can be compared with {rival}", "run it on the same allocations")
    if form == "csv":
        click.echo(comparison_formats.as_csv(rows), nl=False)
    elif form == "latex":
        raise InputError("there is no LaTeX table of clients", "choose --format csv or json")
    else:
        ui.show(rows, form)
    return runs


def made_with(runs: Sequence[RunResult]) -> str:
    """Code, engine and processor behind some runs, each named once; --format json has them run by run."""
    parts = ("commit", "engine", "processor")
    found = {part: dict.fromkeys(str(getattr(run.provenance, part)) for run in runs) for part in parts}
    return "; ".join(f"{part} {' and '.join(values)}" for part, values in found.items())


def _show_ranks(ranks: Any) -> None:
    """Of the last round; 1 is best."""
    ordered = sorted(ranks.mean_rank.items(), key=lambda pair: pair[1])
    title = f"mean rank over the scenarios ({ranks.allocations} of the allocations each), 1 is best"
    title += "" if ranks.p is None else f"; Friedman{_sure(ranks.p)}"
    title += "" if ranks.difference is None else f"; less than {ranks.difference:.1f} apart: not told apart (Nemenyi)"
    ui.show([{"method": name, "mean rank": rank} for name, rank in ordered], "table", title=title)


def _sure(p: float | None) -> str:
    return "" if p is None else f" (p {p:.3f})" if p >= 0.001 else " (p < 0.001)"


def _doubts(rows: Sequence[MethodRow], rival: str) -> str:
    """Why gains have no p, each reason once."""
    notes = dict.fromkeys(row.gain_note for row in rows if row.gain_note)
    return f"vs {rival}, no interval and no p: {'; '.join(notes)}." if notes else ""


def _gain(row: MethodRow) -> str:
    """The gain in points with the p of the paired test, and its round unless that is the last one planned."""
    if (gain := row.gain) is None:
        return "–"
    where = "" if gain.round == row.rounds_planned else f" at round {gain.round}"
    return f"{row.score.number(gain.points, signed=True)}{_sure(gain.p_adjusted)}{where}"


def _found(row: MethodRow) -> dict[str, str]:
    """How well the planted groups were found; methods without weights or clusters do not look for any."""
    return {"groups (ARI)": "–" if row.groups_found is None else f"{row.groups_found:.2f}"}


def _readable(row: MethodRow, rival: str) -> dict[str, Any]:
    """The primary score with its spread; the model that the method's paper evaluates carries a star."""
    score = row.score
    what = score.unit or score.name
    shown: dict[str, Any] = {"method": row.method, "allocations": row.allocations, "rounds": row.rounds}
    for name in ("before", "after"):
        phase = row.phase(name)
        spread = "" if phase.sd is None else f" ± {score.number(phase.sd)}"
        star = "*" if row.evaluated == name else ""
        shown[f"{name} {what}"] = f"{score.number(phase.last)}{spread}{star}"
    shown[f"best {what}"] = score.number(row.headline.best)
    if row.headline.selected is not None:
        shown[f"selected {what}"] = score.number(row.headline.selected)
    if (attacked := row.attacked) is not None:
        shown[f"honest {what}"] = score.number(attacked.honest)
        shown["by attack"] = score.number(attacked.points, signed=True)
        shown["weight on malicious %"] = "–" if attacked.weight is None else f"{100 * attacked.weight:.1f}"
    shown[f"worst client {what}"] = score.number(row.worst_client)
    shown["gain/equal/lose"] = "–" if row.gain is None else "/".join(map(str, row.gain.clients))
    shown[f"vs {rival}"] = _gain(row)
    shown["KiB/client/round"] = f"{row.kib:.1f}"
    return shown
