"""Run the trials of all methods on all cores, score them on held-out data, and write the best settings.

No number in this file comes from test data: a score is the primary one on data that was taken out of the clients' train
sets, of the model that the method is evaluated by, mean of the last five rounds and of all allocations.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedapa.config.load import dump
from fedapa.core.scores import ACCURACY, Score
from fedapa.store import sweep_db
from fedapa.store.atomic_io import make_folder, write_atomically
from fedapa.store.run_folder import lock
from fedapa.sweep import runner
from fedapa.tune.search import Scored, propose
from fedapa.tune.space import defaults, table
from fedapa.tune.trials import Plan, Trial, is_tuning, same_or_more, save, stored, trial_config

TABLE, TUNED = "trials.csv", "tuned.toml"
Report = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """Rounds of all runs of a tuning; of runs that are going, as much as their share of the expected time."""

    done: int
    whole: int
    finished: int  # runs
    runs: int
    event: Any = None


@dataclass(frozen=True)
class TrialRow:
    """A trial: its settings, its score on held-out data by allocation and their mean, seconds and state."""

    method: str
    trial: int
    settings: dict[str, Any]
    held: float | None  # None while it is not finished
    allocations: dict[str, float | None]  # by seed
    seconds: float
    state: str
    reason: str
    score: Score

    @property
    def height(self) -> float | None:
        """The score on held-out data, turned so that more is better."""
        return None if self.held is None else self.score.sign * self.held

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"score": self.score.as_dict()}


@dataclass(frozen=True)
class Choice:
    """The best trial of a method, beside the score of its default."""

    row: TrialRow
    default: float | None

    def as_dict(self) -> dict[str, Any]:
        whole = self.row.as_dict()
        return {key: whole[key] for key in ("method", "trial", "settings", "held", "score")} | {"default": self.default}


def tune(plan: Plan, out: Path, jobs: int, report: Report | None = None) -> tuple[Plan, list[TrialRow]]:
    """Start a tuning in a folder or resume the one there; returns its plan and the table of trials."""
    with lock(make_folder(out)):
        trials: list[Trial] = []
        if is_tuning(out):
            known, trials = stored(out)
            plan = same_or_more(plan, known, out)
        fresh = trials
        while True:
            if fresh:
                _play(plan, out, trials, fresh, jobs, report)
            fresh = _next(plan, trials, rows(out, plan, trials))
            trials = sorted([*trials, *fresh], key=lambda trial: (plan.methods.index(trial.method), trial.number))
            _save(out, plan, trials, rows(out, plan, trials))  # before they run: a killed tuning resumes with the same
            if not fresh:
                return plan, _write(out, plan, trials)


def _next(plan: Plan, trials: Sequence[Trial], found: Sequence[TrialRow]) -> list[Trial]:
    """New trials of every method: first its default, then what the search proposes."""
    config, spaces, fresh = plan.read(), plan.spaces(), []
    for name, space in spaces.items():
        default = defaults(config, name, space)
        mine = [trial for trial in trials if trial.method == name] or [Trial(name, 0, {})]
        scores = {row.trial: row.height for row in found if row.method == name}
        tried = [Scored(trial.settings or default, scores.get(trial.number)) for trial in mine]
        new = propose(plan.search, name, space, plan.seed, tried, plan.trials)
        fresh += [trial for trial in mine if trial not in trials]
        fresh += [Trial(name, len(mine) + k, settings) for k, settings in enumerate(new)]
    return fresh


def _play(
    plan: Plan, out: Path, trials: Sequence[Trial], fresh: Sequence[Trial], jobs: int, report: Report | None
) -> None:
    """Execute the runs of some trials; a failed one is recorded and stops no other."""
    by_method = {name: [trial for trial in fresh if trial.method == name] for name in plan.methods}
    scenarios = [(name, trial_config(plan, name, mine)) for name, mine in by_method.items() if mine]
    paths = runner.lay_out_all(scenarios, out)
    runs, before = plan.runs * len(plan.methods), (len(trials) - len(fresh)) * len(plan.seeds)

    def on_progress(now: runner.Progress) -> None:
        if now.event is not None and now.event.what in ("finished", "failed"):
            _save(out, plan, trials, rows(out, plan, trials))
        if report is not None:
            done = before + len(paths) * (now.done / now.whole if now.whole else 1)
            report(Progress(round(done * plan.rounds), runs * plan.rounds, before + now.finished, runs, now.event))

    runner.play(out, paths, jobs, on_progress)


# ---------------------------------------------------------------------------------------------------------- the table


def rows(out: Path, plan: Plan, trials: Sequence[Trial]) -> list[TrialRow]:
    """One row per trial."""
    known = {run["path"]: run for run in sweep_db.read(out)} if runner.is_sweep(out) else {}
    held, score = sweep_db.held(out) if known else ({}, ACCURACY)
    return [_row(trial, {seed: trial.path(seed) for seed in plan.seeds}, known, held, score) for trial in trials]


def _row(
    trial: Trial,
    paths: Mapping[int, str],
    known: Mapping[str, dict[str, Any]],
    held: Mapping[str, float | None],
    score: Score,
) -> TrialRow:
    runs = [known.get(path, {"state": "planned", "reason": "", "seconds": None}) for path in paths.values()]
    states, reasons = [run["state"] for run in runs], [run["reason"] for run in runs if run["state"] == "failed"]
    scores = {str(seed): held.get(path) for seed, path in paths.items()}
    if all(state == "finished" for state in states) and not all(map(_is_score, scores.values())):
        states, reasons = ["failed"], ["no score on held-out data"]
    whole = all(state == "finished" for state in states)
    return TrialRow(
        method=trial.method,
        trial=trial.number,
        settings=trial.settings,
        held=fmean(float(value) for value in scores.values() if value is not None) if whole else None,
        allocations=scores,
        seconds=sum(run["seconds"] or 0.0 for run in runs),
        state="failed" if "failed" in states else "finished" if whole else "unfinished",
        reason="; ".join(dict.fromkeys(reasons)),
        score=score,
    )


def _is_score(score: float | None) -> bool:
    return score is not None and math.isfinite(score)


def best(found: Sequence[TrialRow]) -> dict[str, TrialRow]:
    """The best trial of every method that has one; the earliest of equals, so the default before all others."""
    chosen: dict[str, TrialRow] = {}
    for row in found:
        rival = chosen.get(row.method)
        if row.height is not None and (rival is None or rival.height is None or row.height > rival.height):
            chosen[row.method] = row
    return chosen


def choices(found: Sequence[TrialRow]) -> list[Choice]:
    """What was chosen for every method."""
    default = {row.method: row.held for row in found if row.trial == 0}
    return [Choice(row, default[name]) for name, row in best(found).items()]


def as_csv(found: Sequence[TrialRow]) -> str:
    """The table with a column per setting and allocation."""
    flat = [_flat(row) for row in found]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(row: TrialRow) -> dict[str, Any]:
    plain = {key: value for key, value in row.as_dict().items() if key not in ("settings", "allocations", "score")}
    scores = {f"held_{seed}": score for seed, score in row.allocations.items()}
    return {**plain, **scores, **row.settings}


# ------------------------------------------------------------------------------------------------------- what is kept


def _save(out: Path, plan: Plan, trials: Sequence[Trial], found: Sequence[TrialRow]) -> None:
    save(out, plan, trials, [row.as_dict() for row in found])


def _write(out: Path, plan: Plan, trials: Sequence[Trial]) -> list[TrialRow]:
    found = rows(out, plan, trials)
    _save(out, plan, trials, found)
    write_atomically(out / TABLE, as_csv(found).encode())
    if chosen := best(found):
        write_atomically(out / TUNED, tuned(plan, chosen).encode())
    return found


def tuned(plan: Plan, chosen: Mapping[str, TrialRow]) -> str:
    """A config of the tuned methods, with the rounds and the validation share of the config that was tuned."""
    config = plan.read()
    own = {f"{name}-tuned": table(config, name, row.settings) for name, row in chosen.items()}
    lines = [
        f"# {name}-tuned: trial {row.trial} of {plan.trials}, {row.score.text(row.held)} on held-out train data"
        for name, row in chosen.items()
    ]
    head = "# Chosen by `fedapa tune` on held-out train data; test data was not looked at."
    return "\n".join([head, *lines, "", dump(config.model_copy(update={"methods": list(own), "method": own}))])
