"""A sweep: the runs of one or more files, in one folder, executed on all cores, with one database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fedapa.analysis import collected, result_sets, run_results
from fedapa.config.experiment import config_hash, lay_out, load_data, read_config, run_names, single, training_hash
from fedapa.config.sections import Config
from fedapa.errors import InputError, RunError
from fedapa.store.run_folder import in_use, rounds_done, status
from fedapa.store.sweep_db import NAME, Finished, Planned, Store
from fedapa.sweep import cost, pool
from fedapa.sweep.where import player
from fedapa.version import NUMERICS

RESULTS = "results.json"
Report = Callable[["Progress"], None]


@dataclass
class Progress:
    """Progress of a sweep; costs are expected seconds on one core."""

    whole: float
    done: float
    finished: int
    runs: int
    event: pool.Event | None = None


@dataclass(frozen=True)
class Job:
    path: Path
    planned: Planned
    seconds: float  # expected, for all of it
    trains: str  # config hash of the method without its running mean: runs that share it train alike


def is_sweep(folder: Path) -> bool:
    return (folder / NAME).is_file()


Scenarios = Sequence[tuple[str, Config]]  # by name; a name may come twice, with other methods


def collected_runs(scenarios: Scenarios, files: Sequence[Path], only: str = "*") -> set[str]:
    """SCENARIO/METHOD-seedN of the runs that files of results hold already: same config, numerics and allocation."""
    known = collected.keys(files)
    there = {(one.scenario, one.label, one.seed) for one in known}
    found = set()
    for scenario, config in scenarios:
        for name, (method, seed) in run_names(config).items():
            path = str(Path(scenario) / name)
            if fnmatch(path, only) and (scenario, method, seed) in there:
                own = config_hash(single(config, method, seed))
                partition = load_data(config, seed).fingerprint
                if collected.Key(scenario, method, seed, own, NUMERICS, partition) in known:
                    found.add(path)
    return found


def outlook(scenarios: Scenarios, out: Path, only: str = "*", skip: Collection[str] = ()) -> list[dict[str, Any]]:
    """The runs of a sweep and the expected minutes of each on one core; nothing is written."""
    guesses = {
        str(Path(scenario) / name): (cost.Kind(scenario, method), cost.guess(config, method))
        for scenario, config in scenarios
        for name, (method, _) in run_names(config).items()
        if fnmatch(str(Path(scenario) / name), only)
    }
    seconds = cost.expected(guesses, Store(out).runs() if is_sweep(out) else [])
    states = {name: "collected" if name in skip else status(out / name) for name in guesses}
    attacks = {scenario: config.attack.kind for scenario, config in scenarios if config.attack is not None}
    rows = [{"run": name, "state": states[name], "minutes": seconds[name] / 60} for name in guesses]
    if not attacks:
        return rows
    return [{**row, "attack": attacks.get(guesses[str(row["run"])][0].scenario, "")} for row in rows]


def lay_out_all(scenarios: Scenarios, out: Path, only: str = "*", skip: Collection[str] = ()) -> list[Path]:
    """The run folders of all scenarios whose SCENARIO/METHOD-seedN matches ``only`` and is not to be skipped."""
    paths = [path for name, config in scenarios for path in lay_out(config, out / name, _wanted(only, name, skip))]
    if not paths and not skip:
        raise InputError(f"no run matches --only {only!r}", "it is compared with SCENARIO/METHOD-seedN")
    return paths


def chosen(scenarios: Scenarios, only: str) -> list[Config]:
    """The scenarios with a run that matches."""
    return [config for scenario, config in scenarios if any(map(_wanted(only, scenario), run_names(config)))]


def _wanted(only: str, scenario: str, skip: Collection[str] = ()) -> Callable[[str], bool]:
    def is_wanted(name: str) -> bool:
        path = str(Path(scenario) / name)
        return fnmatch(path, only) and path not in skip

    return is_wanted


def play(
    out: Path, paths: Iterable[Path], workers: int | None, report: Report | None = None, on: str = "here"
) -> dict[str, str]:
    """Execute the unfinished runs, longest first; returns why runs failed, by their path below ``out``.

    ``on`` says where: see `fedapa sweep --help`.
    """
    play_there = player(on, workers, out)
    store = Store(out)
    jobs, failed = _jobs(out, list(paths), store)
    todo = [job for job in jobs if status(job.path) != "finished"]
    share = {job.path: rounds_done(job.path) / job.planned.rounds for job in jobs}
    by_path = {job.path: job for job in jobs}
    progress = Progress(sum(job.seconds for job in jobs), 0.0, len(jobs) - len(todo), len(jobs))

    def on_event(event: pool.Event | None) -> None:
        if event is not None:
            _note(store, by_path[event.path].planned, event, failed)
            if event.what == "round":
                share[event.path] = event.round / by_path[event.path].planned.rounds
            progress.finished += event.what == "finished"
        progress.done = sum(share[job.path] * job.seconds for job in jobs)
        progress.event = event
        if report is not None:
            report(progress)

    on_event(None)
    items = together(todo)
    play_there([tuple(job.path for job in item) for item in sorted(items, key=lambda i: -_left(i[0], share))], on_event)
    return failed


def together(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs, those in one list whose runs train alike: METHOD and METHOD+ema of one scenario and seed."""
    found: dict[tuple[str, int, str], list[Job]] = {}
    for job in jobs:
        found.setdefault((job.planned.scenario, job.planned.seed, job.trains), []).append(job)
    return list(found.values())


def _left(job: Job, share: Mapping[Path, float]) -> float:
    return job.seconds * (1 - share[job.path])


def _jobs(out: Path, paths: list[Path], store: Store) -> tuple[list[Job], dict[str, str]]:
    """The runs to execute, and those that are damaged, which must not stop the rest."""
    plans, guesses, trains = {}, {}, {}
    for path in paths:
        config = read_config(path)
        (method,), (seed,) = config.methods, config.seeds
        name = str(path.relative_to(out))
        plans[name] = Planned(name, "" if path.parent == out else path.parent.name, method, seed, config.run.rounds)
        guesses[name] = (cost.Kind(plans[name].scenario, method), cost.guess(config, method))
        trains[name] = training_hash(config)
    store.plan(list(plans.values()))
    known = store.runs()
    failed = _catch_up(out, plans, {run["path"]: run["state"] for run in known}, store)
    seconds = cost.expected(guesses, known)
    return [
        Job(out / name, plan, seconds[name], trains[name]) for name, plan in plans.items() if name not in failed
    ], failed


def _catch_up(out: Path, plans: Mapping[str, Planned], known: Mapping[str, str], store: Store) -> dict[str, str]:
    """Update the states of runs that finished, stopped or were damaged since the last sweep."""
    failed = {}
    for plan in plans.values():
        try:
            if status(out / plan.path) == "finished":
                if known[plan.path] != "finished":
                    _keep(out, plan, store)
            elif known[plan.path] == "running" and not in_use(out / plan.path):
                store.note(plan.path, "planned")
        except InputError as error:
            failed[plan.path] = error.message
            store.note(plan.path, "failed", error.message)
    return failed


def _note(store: Store, plan: Planned, event: pool.Event, failed: dict[str, str]) -> None:
    if event.what == "finished":
        _keep(store.path.parent, plan, store)
    elif event.what == "failed":
        failed[plan.path] = event.text
        store.note(plan.path, "failed", event.text)
    elif event.what == "started":
        store.note(plan.path, "running")


def _keep(out: Path, plan: Planned, store: Store) -> None:
    run = run_results.read(out / plan.path, plan.scenario)
    if run is None:
        raise RunError(f"{out / plan.path} is finished but has no results", "remove it and sweep again")
    store.keep(plan.path, _finished(run))


def _finished(run: run_results.RunResult) -> Finished:
    numbers = tuple(n for p in (run.before, run.after) for n in (p.last, p.best, p.tail, p.summary.worst10))
    return Finished(run.evaluated, numbers, run.kib, run.seconds, result_sets.as_dicts([run])[0])


def write_results(out: Path) -> Path:
    """All finished runs of a sweep as one small JSON file, a line each."""
    runs = [run for run in result_sets.load(out) if run.status == "finished"]
    return result_sets.write_file(out / RESULTS, result_sets.as_dicts(runs))
