"""Experiments load, say how they are run, and their results belong to them."""

import json
from pathlib import Path

import pytest

from fedapa.config.grid import load_scenarios
from maker import load_maker

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments"
FILES = sorted(FOLDER.glob("*.toml"))
SHARED = {"figure2": "table1"}  # whose runs it shows


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_experiment(path: Path) -> None:
    scenarios = load_scenarios(str(path))
    verb = "run" if list(scenarios) == [""] else "sweep"
    assert path.read_text(encoding="utf-8").startswith(f"# fedapa {verb} experiments/{path.name} --out runs/")
    wanted = {(name, method, seed) for name, c in scenarios.items() for method in c.methods for seed in c.seeds}
    kept = FOLDER / "results" / f"{SHARED.get(path.stem, path.stem)}.json"
    if not kept.is_file():
        pytest.skip("not run yet")
    runs = json.loads(kept.read_text(encoding="utf-8"))["runs"]
    ran = {(run["scenario"], run["label"], run["seed"]) for run in runs}
    assert ran & wanted
    assert path.stem in SHARED or ran <= wanted
    for run in runs:
        rounds = scenarios.get(run["scenario"], next(iter(scenarios.values()))).run.rounds
        assert (run["status"], run["rounds_done"]) == ("finished", rounds)
        assert run["environment"]["packages"]["torch"]


def test_the_results_page_is_current() -> None:
    current = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert current == load_maker("make_results").page(), "run: python docs/make_results.py"
