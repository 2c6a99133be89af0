"""Keep the finished runs of every experiment as experiments/results/NAME.json: python experiments/collect.py runs/paper

A folder may hold the runs of several experiments; each takes those that its file names. One line per run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fedapa.config.grid import load_scenarios
from fedapa.run import results

HERE = Path(__file__).parent


def wanted(experiment: Path) -> set[tuple[str, str, int]]:
    """Scenario, method and seed of every run that a file names."""
    return {
        (scenario, method, seed)
        for scenario, config in load_scenarios(str(experiment)).items()
        for method in config.methods
        for seed in config.seeds
    }


def key(run: dict[str, Any]) -> tuple[str, str, int]:
    return run["scenario"], run["label"], run["seed"]


def collect(folder: Path, experiment: Path) -> Path | None:
    names = wanted(experiment)
    rows = [row for row in results.as_dicts(results.load(folder)) if key(row) in names and row["status"] == "finished"]
    if not rows:
        return None
    path = HERE / "results" / f"{experiment.stem}.json"
    path.parent.mkdir(exist_ok=True)
    return results.write_file(path, sorted(rows, key=key))


if __name__ == "__main__":
    chosen = [HERE / f"{name}.toml" for name in sys.argv[2:]] or sorted(HERE.glob("*.toml"))
    for experiment in chosen:
        print(experiment.name, "->", collect(Path(sys.argv[1]), experiment))
