"""What compare reads out of run folders."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from toy import Toy, play, toy_data

from fedapa.errors import InputError
from fedapa.run import results
from fedapa.run.loop import Plan

ABOUT = {"label": "toy", "seed": "0", "rounds": "7", "evaluated": "after", "partition": "p"}


def make(path: Path, **about: str) -> Path:
    path.mkdir(parents=True)
    play(Toy(), toy_data(), Plan(7, (1.0, 1.0)), folder=path, meta=ABOUT | about)
    return path


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        for statement in statements:
            db.execute(statement)


def test_last_best_and_tail_by_hand(tmp_path: Path) -> None:
    run = results.read(make(tmp_path / "a"))
    assert run is not None
    # After round t client i answers class (t + i + 1) mod 5: clients 0 to 3 have so many right,
    # [2, 3, 4, 0, 1, 2, 3], [0, 0, 5, 5, 0, 0, 0], [2, 2, 2, 2, 2, 2, 2] and [0, 0, 0, 1, 0, 0, 0] of 31 in all.
    right = [4, 5, 11, 8, 3, 4, 5]
    assert run.after.last == pytest.approx(100 * right[-1] / 31)
    assert run.after.best == pytest.approx(100 * 11 / 31)
    assert run.after.best_round == 3
    assert run.after.tail == pytest.approx(100 * sum(right[-5:]) / 5 / 31)
    assert run.after.selected is None
    assert run.kib == 32 / 1024
    assert (run.rounds, run.rounds_done, run.status) == (7, 7, "finished")


def test_the_selected_round_is_the_one_with_the_best_validation_accuracy(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    rows = [f"INSERT INTO accuracy VALUES ({t}, 'after', 'validation', {v}, 0, 0, 0, 0)"
            for t, v in enumerate([1, 9, 3, 9, 2, 2, 2])]  # fmt: skip
    change(path, *rows)
    run = results.read(path)
    assert run is not None
    with closing(sqlite3.connect(path / "run.db")) as db:
        wanted = db.execute("SELECT pooled FROM accuracy WHERE round=1 AND phase='after' AND data='test'").fetchone()
    assert run.after.selected == wanted[0]  # the first of equals
    assert run.after.held == pytest.approx((3 + 9 + 2 + 2 + 2) / 5)
    assert run.before.held is None


def test_gains_are_counted_against_local_of_the_same_seed_and_partition(tmp_path: Path) -> None:
    local = make(tmp_path / "local", label="local")
    make(tmp_path / "toy")
    make(tmp_path / "elsewhere", label="other", partition="q")
    change(local, "UPDATE client_round SET after_correct = 0 WHERE client = 0",
           "UPDATE client_round SET after_correct = 10 WHERE client = 1")  # fmt: skip
    rows = {row["method"]: row for row in results.table(results.load(tmp_path))}
    assert rows["toy"]["gain"] == [1, 2, 1]
    assert rows["local"]["gain"] == [0, 4, 0]
    assert rows["other"]["gain"] is None


def test_client_gains_by_hand(tmp_path: Path) -> None:
    local = make(tmp_path / "local", label="local")
    make(tmp_path / "toy")
    change(local, "UPDATE client_round SET after_correct = 0 WHERE client = 0")
    rows = results.client_gains(results.load(tmp_path))
    # Client 0 has 3 of its 10 right in the last round; alone it now has none.
    first = rows[0]["test_samples"]
    assert [row["client"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["gain"] == pytest.approx(100 * 3 / first)
    assert [row["gain"] for row in rows[1:]] == [0, 0, 0]
    assert results.client_gains(results.load(tmp_path), "nobody") == []


def test_gains_against_another_method(tmp_path: Path) -> None:
    other = make(tmp_path / "other", label="other")
    make(tmp_path / "toy")
    change(other, "UPDATE client_round SET after_correct = 0 WHERE client = 0")
    rows = {row["method"]: row for row in results.table(results.load(tmp_path), "other")}
    assert rows["toy"]["gain"] == [1, 3, 0]


def test_scenarios_are_kept_apart_and_ranked(tmp_path: Path) -> None:
    for scenario, better in (("a", "x"), ("b", "x"), ("c", "y")):
        for label in "xyz":
            path = make(tmp_path / scenario / label, label=label)
            value = {better: 90, "z": 10}.get(label, 50)
            change(path, f"UPDATE accuracy SET pooled = {value} WHERE round = 6")
    rows = results.table(results.load(tmp_path))
    assert [(row["scenario"], row["method"]) for row in rows] == [(s, m) for s in "abc" for m in "xyz"]
    found = results.ranks(rows)
    assert found is not None
    assert found.mean_rank == pytest.approx({"x": 4 / 3, "y": 5 / 3, "z": 3})
    # Friedman by hand: 12 / (3 * 3 * 4) * (4^2 + 5^2 + 9^2) - 3 * 3 * 4 = 14 / 3 on two degrees of freedom.
    assert found.p == pytest.approx(2.718281828459045 ** (-14 / 6))
    assert results.ranks([row for row in rows if row["scenario"] == "a"]) is None


def test_a_file_of_results_says_what_the_folder_says(tmp_path: Path) -> None:
    make(tmp_path / "toy")
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"runs": results.as_dicts(results.load(tmp_path))}, default=str))
    assert results.table(results.survey(path).runs) == results.table(results.load(tmp_path))
    path.write_text("[]")
    with pytest.raises(InputError, match="not a file of results"):
        results.load(path)


def test_an_unreadable_run_is_left_out_and_named(tmp_path: Path) -> None:
    make(tmp_path / "toy")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.db").write_text("no database")
    found = results.survey(tmp_path)
    assert [run.folder.name for run in found.runs] == ["toy"]
    assert [path.name for path in found.unreadable] == ["broken"]


def test_spread_over_seeds(tmp_path: Path) -> None:
    one, two = make(tmp_path / "1"), make(tmp_path / "2", seed="1")
    change(one, "UPDATE accuracy SET pooled = 50 WHERE round = 6")
    change(two, "UPDATE accuracy SET pooled = 60 WHERE round = 6")
    (row,) = results.table(results.load(tmp_path))
    assert row["seeds"] == 2
    assert row["after_last"] == 55
    assert row["after_sd"] == pytest.approx(50**0.5)


def test_seeds_with_and_without_validation_data_can_be_compared(tmp_path: Path) -> None:
    make(tmp_path / "2", seed="1")
    change(make(tmp_path / "1"), "INSERT INTO accuracy VALUES (0, 'after', 'validation', 1, 0, 0, 0, 0)")
    (row,) = results.table(results.load(tmp_path))
    assert row["after_selected"] is None


def test_folders_without_results(tmp_path: Path) -> None:
    (tmp_path / "planned").mkdir()
    (tmp_path / "planned" / "config.toml").touch()
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "run.db").touch()
    with pytest.raises(InputError, match="no run with results"):
        results.load(tmp_path)


def test_honest_clients_are_counted_apart_and_against_the_run_without_liars(tmp_path: Path) -> None:
    """Right in the last round: 3 of 10, 0 of 10, 2 of 10 and 0 of 1; client 0 lies in the second run."""
    clean = make(tmp_path / "none" / "toy")
    lied = make(tmp_path / "scaled" / "toy", attack=json.dumps({"kind": "scaled", "clients": [0], "factor": -5.0}))
    make(tmp_path / "short" / "toy", rounds="3")  # another number of rounds: not to be compared with
    change(clean, "UPDATE client_round SET after_correct = 5 WHERE client = 1")
    change(lied, "UPDATE client_round SET after_correct = 10 WHERE client = 0")
    rows = {row["scenario"]: row for row in results.table(results.load(tmp_path), "toy")}
    assert (rows["scaled"]["attackers"], rows["none"]["attackers"]) == (1, 0)
    assert rows["scaled"]["honest"] == pytest.approx((0 + 20 + 0) / 3)
    assert rows["scaled"]["attack_points"] == pytest.approx((0 - 50) / 3)
    assert rows["scaled"]["attacker_weight"] is None  # the toy has no A
    assert rows["none"]["honest"] is None
    assert rows["scaled"]["gain"] == [0, 3, 0]  # against the toy of its own scenario, without the liar


def test_the_weight_on_liars_by_hand(tmp_path: Path) -> None:
    path = make(tmp_path / "a", attack=json.dumps({"kind": "noise", "clients": [1, 3], "factor": 1.0}))
    first = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], np.float32)
    second = np.array([[0.5, 0.1, 0.1, 0.3], [9, 9, 9, 9], [0.2, 0, 0.8, 0], [9, 9, 9, 9]], np.float32)
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        for t, A in enumerate((first, second)):
            db.execute("INSERT INTO watched VALUES (?, 'A', '[4, 4]', ?)", (t, A.tobytes()))
    run = results.read(path)
    assert run is not None
    assert run.attackers == (1, 3)
    assert run.attacker_weight == (0.0, pytest.approx((0.4 + 0.0) / 2))
    again = results.from_dicts(json.loads(json.dumps(results.as_dicts([run]), default=str)))[0]
    assert (again.attackers, again.attacker_weight) == (run.attackers, run.attacker_weight)
