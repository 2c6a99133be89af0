"""Results of several sessions add up in one file."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from command import SMALL, Call
from fedapa.analysis import collected, result_sets
from fedapa.errors import InputError
from fedapa.version import NUMERICS
from maker import load_maker


def row(label: str, seed: int, note: str = "", numerics: int = NUMERICS, config: str = "c", **more: Any) -> Any:
    origin = {"provenance": {"numerics": numerics, "config": config}} if numerics > 1 else {}
    return {"scenario": "s", "label": label, "seed": seed, "partition": "p", "status": "finished", "note": note,
            **origin, **more}  # fmt: skip


def told(rows: Any) -> list[tuple[str, int, str]]:
    return [(one["label"], one["seed"], one["note"]) for one in rows]


def test_runs_of_two_sessions_add_up_and_new_ones_replace() -> None:
    earlier = [row("a", 0, "old"), row("a", 1, "old"), row("b", 0, "old")]
    new = [row("a", 1, "new"), row("a", 2, "new")]
    assert told(collected.merged(earlier, new)) == [
        ("a", 0, "old"), ("a", 1, "new"), ("a", 2, "new"), ("b", 0, "old")
    ]  # fmt: skip


def test_older_numbers_leave_only_where_newer_ones_came() -> None:
    earlier = [row("a", seed, "old", numerics=1) for seed in (0, 1, 2)] + [row("b", 0, "old", numerics=1)]
    assert told(collected.merged(earlier, [row("a", 1, "new")])) == [("a", 1, "new"), ("b", 0, "old")]


def test_older_numbers_that_come_later_replace_nothing() -> None:
    assert told(collected.merged([row("a", 0, "kept")], [row("a", 0, "late", numerics=1)])) == [("a", 0, "kept")]
    assert told(collected.merged([row("a", 0, "kept")], [row("a", 1, "late", numerics=1)])) == [("a", 0, "kept")]


def test_a_newer_revision_of_a_method_replaces_its_older_numbers_alone() -> None:
    newer = row("a", 1, "new")
    newer["provenance"]["revision"] = 1
    earlier = [row("a", 0, "old"), row("a", 1, "old"), row("b", 0, "old")]
    assert told(collected.merged(earlier, [newer])) == [("a", 1, "new"), ("b", 0, "old")]
    assert told(collected.merged([newer], earlier)) == [("a", 1, "new"), ("b", 0, "old")]


def test_one_row_of_a_table_has_one_config() -> None:
    earlier = [row("a", 0, "old"), row("a", 1, "old")]
    assert told(collected.merged(earlier, [row("a", 0, "new", config="d")])) == [("a", 0, "new")]


def test_a_failure_is_forgotten_once_the_run_is_finished() -> None:
    earlier, new = [row("a", 0), row("a", 1), row("b", 0)], [row("b", 0, "again"), row("c", 0)]
    found = collected.merged_failures(earlier, new, [row("a", 1)])
    assert told(found) == [("a", 0, ""), ("b", 0, "again"), ("c", 0, "")]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runs": [{}]}', '{"runs": 3}'])
def test_what_is_no_file_of_results(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="not a file of results") as caught:
        collected.keys([tmp_path / "x.json"])
    assert caught.value.hint


# ----------------------------------------------------------------------------------- a sweep, collected, then another


@pytest.fixture
def grid(tmp_path: Path, here: None) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(SMALL + "\n[scenario]\nfew.data = { clients = 3 }\nmany.data = { clients = 5 }\n")
    return path


def collect(folder: Path, experiment: Path, kept: Path) -> list[dict[str, Any]]:
    path = load_maker("collect", "experiments").collect(folder, experiment, kept)
    found: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    return found


def state(answer: Any) -> dict[str, str]:
    return {one["run"]: one["state"] for one in json.loads(answer.out)}


def names(out: Path) -> set[str]:
    return {f"{run.scenario}/{run.label}-seed{run.seed}" for run in result_sets.load(out)}


def test_long_experiments_go_on_from_collected_results(grid: Path, tmp_path: Path, fedapa: Call) -> None:
    first, second, kept = tmp_path / "first", tmp_path / "second", tmp_path / "kept"
    assert fedapa("sweep", grid, "--out", first, "--only", "few/*").code == 0
    assert len(collect(first, grid, kept)) == 3
    skip = ("--skip-collected", kept / "grid.json")
    planned = state(fedapa("sweep", grid, "--out", second, *skip, "--dry-run", "--format", "json"))
    assert {planned[name] for name in planned if name.startswith("few")} == {"collected"}
    assert {planned[name] for name in planned if name.startswith("many")} == {"planned"}
    answer = fedapa("sweep", grid, "--out", second, *skip)
    assert "skipped 3 collected runs; 3 are left" in answer.err
    assert names(second) == {f"many/{label}-seed0" for label in ("local", "fedavg", "fedapa")}
    rows = collect(second, grid, kept)
    assert len(rows) == 6
    assert all(one["environment"]["date"] for one in rows)  # of earlier runs, too, whose folders are not here
    again = fedapa("sweep", grid, "--out", tmp_path / "third", *skip)
    assert again.code == 0
    assert "skipped 6 collected runs; 0 are left" in again.err
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize("other", ["config", "numerics", "revision", "partition", "status"])
def test_a_collected_run_counts_only_if_it_is_the_same(other: str, grid: Path, tmp_path: Path, fedapa: Call) -> None:
    assert fedapa("sweep", grid, "--out", tmp_path / "out", "--only", "few/local*").code == 0
    path = tmp_path / "out" / "results.json"
    words = ("sweep", grid, "--out", tmp_path / "new", "--only", "few/local*", "--skip-collected", path)

    def planned() -> str:
        return state(fedapa(*words, "--dry-run", "--format", "json"))["few/local-seed0"]

    assert planned() == "collected"
    whole = json.loads(path.read_text())
    (run,) = whole["runs"]
    place = run if other in ("partition", "status") else run["provenance"]
    place[other] = {"numerics": NUMERICS - 1, "revision": 1}.get(other, "another")
    path.write_text(json.dumps(whole))
    assert planned() == "planned"


def test_collecting_drops_what_the_experiment_no_longer_names(grid: Path, tmp_path: Path, fedapa: Call) -> None:
    assert fedapa("sweep", grid, "--out", tmp_path / "out", "--only", "few/*").code == 0
    assert len(collect(tmp_path / "out", grid, tmp_path / "kept")) == 3
    grid.write_text(grid.read_text().replace('"fedavg", ', ""))
    assert {one["label"] for one in collect(tmp_path / "out", grid, tmp_path / "kept")} == {"fedapa", "local"}


def test_collected_failures_are_kept_with_their_reason(grid: Path, tmp_path: Path, fedapa: Call) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    assert fedapa("sweep", grid, "--out", out, "--only", "few/*").code == 0
    with closing(sqlite3.connect(out / "few" / "local-seed0" / "run.db")) as db, db:
        db.execute("UPDATE meta SET value = 'failed' WHERE key = 'status'")
        db.execute("UPDATE meta SET value = 'diverged' WHERE key = 'reason'")
    assert len(collect(out, grid, kept)) == 2
    (lost,) = json.loads((kept / "grid.json").read_text())["failed"]
    assert (lost["label"], lost["reason"]) == ("local", "diverged")
