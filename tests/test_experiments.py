"""Experiments load, say how they are run, and their results belong to them."""

import json
from pathlib import Path

import pytest

from fedapa.config.load import load

FOLDER = Path(__file__).parents[1] / "experiments"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_experiment(path: Path) -> None:
    config = load(str(path))
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(f"# fedapa run experiments/{path.name} ")
    result = FOLDER / "results" / f"{path.stem}.json"
    assert result.is_file(), f"no results of {path.name}"
    found = json.loads(result.read_text(encoding="utf-8"))
    ran = {(run["label"], run["seed"]) for run in found["runs"]}
    assert ran == {(method, seed) for method in config.methods for seed in config.seeds}
    assert all(run["status"] == "finished" and run["rounds_done"] == config.run.rounds for run in found["runs"])
    assert all(run["environment"]["packages"]["torch"] for run in found["runs"])
