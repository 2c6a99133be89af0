"""Keep the finished runs of every experiment as experiments/results/NAME.json: python experiments/collect.py runs/paper

A folder may hold the runs of several experiments; each takes those that its file names. One line per run; what failed
is named with the reason and how far it came. New runs are merged into the file: a run replaces the one of its scenario,
method and seed, and those of its scenario and method that were made under an older numerics version or another config.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fedapa.analysis import collected, result_sets, run_results
from fedapa.config.grid import load_scenarios
from fedapa.store import run_db

HERE = Path(__file__).parent


def wanted(experiment: Path) -> set[tuple[str, str, int]]:
    """Scenario, method and seed of every run that a file names."""
    return {
        (scenario, method, seed)
        for scenario, config in load_scenarios(str(experiment)).items()
        for method in config.methods
        for seed in config.seeds
    }


def collect(folder: Path, experiment: Path, kept: Path = HERE / "results") -> Path | None:
    names = wanted(experiment)
    mine = [run for run in result_sets.load(folder) if (run.scenario, run.label, run.seed) in names]
    finished = [run for run in mine if run.status == "finished"]
    if not finished:
        return None
    path = kept / f"{experiment.stem}.json"
    path.parent.mkdir(exist_ok=True)
    rows = collected.merged(earlier(path, "runs", names), result_sets.as_dicts(finished))
    failed = [failure(run) for run in mine if run.status == "failed"]
    failed = collected.merged_failures(earlier(path, "failed", names), failed, rows)
    return result_sets.write_file(path, rows, failed)


def earlier(path: Path, part: str, names: set[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """What was collected before and the experiment still names."""
    rows = collected.read(path, part) if path.is_file() else []
    return [row for row in rows if (row["scenario"], row["label"], row["seed"]) in names]


def failure(run: run_results.RunResult) -> dict[str, Any]:
    with run_db.reading(run.folder / "run.db") as db:
        reason = run_db.meta(db).get("reason", "")
    came = {"rounds_done": run.rounds_done, "best": run.headline.best}
    return {"scenario": run.scenario, "label": run.label, "seed": run.seed, **came, "reason": reason}


if __name__ == "__main__":
    chosen = [HERE / f"{name}.toml" for name in sys.argv[2:]] or sorted(HERE.glob("*.toml"))
    for experiment in chosen:
        print(experiment.name, "->", collect(Path(sys.argv[1]), experiment))
