"""What compare reads out of run folders."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from toy import Toy, play, toy_data

from fedapa.analysis import comparison, pairing, result_sets, run_results, standings
from fedapa.analysis.method_rows import MethodRow
from fedapa.analysis.run_results import Phase, RunResult
from fedapa.core.scores import RMSE
from fedapa.core.summaries import Summary
from fedapa.errors import InputError
from fedapa.rounds.round_plan import Plan

ABOUT = {"label": "toy", "seed": "0", "rounds": "7", "evaluated": "after", "partition": "p"}
PLACE = "round=1 AND phase='after' AND data='test' AND score='accuracy'"


def make(path: Path, **about: str) -> Path:
    path.mkdir(parents=True)
    play(Toy(), toy_data(), Plan(7, (1.0, 1.0)), folder=path, meta=ABOUT | about)
    return path


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        for statement in statements:
            db.execute(statement)


def test_last_best_and_tail_by_hand(tmp_path: Path) -> None:
    run = run_results.read(make(tmp_path / "a"))
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
    rows = [f"INSERT INTO summary VALUES ({t}, 'after', 'validation', 'accuracy', {v}, 0, 0, 0, 0)"
            for t, v in enumerate([1, 9, 3, 9, 2, 2, 2])]  # fmt: skip
    change(path, *rows)
    run = run_results.read(path)
    assert run is not None
    with closing(sqlite3.connect(path / "run.db")) as db:
        wanted = db.execute(f"SELECT pooled FROM summary WHERE {PLACE}").fetchone()
    assert run.after.selected == wanted[0]  # the first of equals
    assert run.after.held == pytest.approx((3 + 9 + 2 + 2 + 2) / 5)
    assert run.before.held is None


def test_gains_are_counted_against_local_of_the_same_seed_and_partition(tmp_path: Path) -> None:
    local = make(tmp_path / "local", label="local")
    make(tmp_path / "toy")
    make(tmp_path / "elsewhere", label="other", partition="q")
    change(local, "UPDATE client_score SET sum = 0 WHERE client = 0 AND phase = 'after' AND score = 'accuracy'",
           "UPDATE client_score SET sum = 10 WHERE client = 1 AND phase = 'after' AND score = 'accuracy'")  # fmt: skip
    rows = {row.method: row for row in comparison.table(result_sets.load(tmp_path))}
    assert rows["toy"].gain.clients == (1, 2, 1)
    assert (rows["local"].gain, rows["local"].gain_note) == (None, "")  # nobody gains over itself
    assert rows["other"].gain is None


def test_client_gains_by_hand(tmp_path: Path) -> None:
    local = make(tmp_path / "local", label="local")
    make(tmp_path / "toy")
    change(local, "UPDATE client_score SET sum = 0 WHERE client = 0 AND phase = 'after' AND score = 'accuracy'")
    rows = pairing.client_gains(result_sets.load(tmp_path))
    # Client 0 has 3 of its 10 right in the last round; alone it now has none.
    first = rows[0].test_samples
    assert [row.client for row in rows] == [0, 1, 2, 3]
    assert rows[0].gain == pytest.approx(100 * 3 / first)
    assert [row.gain for row in rows[1:]] == [0, 0, 0]
    assert pairing.client_gains(result_sets.load(tmp_path), "nobody") == []


def test_gains_against_another_method(tmp_path: Path) -> None:
    other = make(tmp_path / "other", label="other")
    make(tmp_path / "toy")
    change(other, "UPDATE client_score SET sum = 0 WHERE client = 0 AND phase = 'after' AND score = 'accuracy'")
    rows = {row.method: row for row in comparison.table(result_sets.load(tmp_path), "other")}
    assert rows["toy"].gain.clients == (1, 3, 0)


def test_scenarios_are_kept_apart_and_ranked(tmp_path: Path) -> None:
    for scenario, better in (("a", "x"), ("b", "x"), ("c", "y")):
        for label in "xyz":
            path = make(tmp_path / scenario / label, label=label)
            value = {better: 90, "z": 10}.get(label, 50)
            change(path, f"UPDATE summary SET pooled = {value} WHERE round = 6 AND score = 'accuracy'")
    rows = comparison.table(result_sets.load(tmp_path))
    assert [(row.scenario, row.method) for row in rows] == [(s, m) for s in "abc" for m in "xyz"]
    found = standings.ranks(rows)
    assert found is not None
    assert found.mean_rank == pytest.approx({"x": 4 / 3, "y": 5 / 3, "z": 3})
    # Friedman by hand: 12 / (3 * 3 * 4) * (4^2 + 5^2 + 9^2) - 3 * 3 * 4 = 14 / 3 on two degrees of freedom.
    assert found.p == pytest.approx(2.718281828459045 ** (-14 / 6))
    assert standings.ranks([row for row in rows if row.scenario == "a"]) is None


def test_a_file_of_results_says_what_the_folder_says(tmp_path: Path) -> None:
    make(tmp_path / "toy")
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"runs": result_sets.as_dicts(result_sets.load(tmp_path))}, default=str))
    assert comparison.table(result_sets.survey(path).runs) == comparison.table(result_sets.load(tmp_path))
    path.write_text("[]")
    with pytest.raises(InputError, match="not a file of results"):
        result_sets.load(path)


def test_an_unreadable_run_is_left_out_and_named(tmp_path: Path) -> None:
    make(tmp_path / "toy")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.db").write_text("no database")
    found = result_sets.survey(tmp_path)
    assert [run.folder.name for run in found.runs] == ["toy"]
    assert [path.name for path in found.unreadable] == ["broken"]


def test_spread_over_seeds(tmp_path: Path) -> None:
    one, two = make(tmp_path / "1"), make(tmp_path / "2", seed="1", partition="q")
    change(one, "UPDATE summary SET pooled = 50 WHERE round = 6 AND score = 'accuracy'")
    change(two, "UPDATE summary SET pooled = 60 WHERE round = 6 AND score = 'accuracy'")
    (row,) = comparison.table(result_sets.load(tmp_path))
    assert (row.seeds, row.allocations) == (2, 2)
    assert row.after.last == 55
    assert row.after.sd == pytest.approx(50**0.5)
    assert (row.after.low, row.after.high) == (None, None)  # three are needed


def test_runs_on_one_allocation_count_once(tmp_path: Path) -> None:
    """Seeds 0 and 1 train twice on allocation p (mean 55), seed 2 on q (75): two allocations with a mean of 65."""
    for seed, (partition, value) in enumerate((("p", 50), ("p", 60), ("q", 75))):
        path = make(tmp_path / str(seed), seed=str(seed), partition=partition)
        change(path, f"UPDATE summary SET pooled = {value} WHERE round = 6 AND score = 'accuracy'")
    (row,) = comparison.table(result_sets.load(tmp_path))
    assert (row.seeds, row.allocations, row.after.last) == (3, 2, 65)
    assert row.after.sd == pytest.approx(200**0.5)


def test_seeds_with_and_without_validation_data_can_be_compared(tmp_path: Path) -> None:
    make(tmp_path / "2", seed="1")
    change(make(tmp_path / "1"), "INSERT INTO summary VALUES (0, 'after', 'validation', 'accuracy', 1, 0, 0, 0, 0)")
    (row,) = comparison.table(result_sets.load(tmp_path))
    assert row.after.selected is None


def made_up(label: str, clients: Sequence[float], allocation: int = 0, scenario: str = "", **more: Any) -> RunResult:
    """A finished run whose clients have so many of 100 right."""
    mean = float(np.mean(clients))
    phase = Phase(mean, mean, 1, mean, None, Summary(mean, mean, 0.0, min(clients), min(clients)), (mean,))
    counts = np.array([[value, 100] for value in clients], dtype=np.int64)
    partition = more.pop("partition", f"p{allocation}")
    values = (Path("x"), scenario, label, allocation, "finished", 5, 5, "after", phase, phase, 1.0, 1.0, counts)
    return replace(RunResult(*values, partition), **more)


def row_of(rows: list[MethodRow], label: str) -> MethodRow:
    return next(row for row in rows if row.method == label)


def test_gains_are_tested_over_allocations_not_over_clients() -> None:
    """Every client of an allocation gains the same: +3, -1 and +1. Sixty clients, but three values: mean 1, sd 2."""
    gains = (3, -1, 1)
    runs = [made_up("local", [80] * 20, a) for a in range(3)]
    runs += [made_up("x", [80 + gain] * 20, a) for a, gain in enumerate(gains)]
    row = row_of(comparison.table(runs), "x")
    assert (row.gain.clients, row.gain.points, row.gain.allocations) == ((40, 0, 20), 1.0, 3)
    assert row.gain.p_unadjusted == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)
    assert row.gain.p_unadjusted > 0.4
    assert stats.wilcoxon(np.repeat(gains, 20)).pvalue < 0.01  # what was printed before
    assert row.gain.low == pytest.approx(1 - 4.302653 * 2 / 3**0.5, abs=1e-5)


def test_the_headline_is_of_the_model_that_the_method_is_evaluated_by() -> None:
    run = made_up("x", [80])
    run = replace(run, before=replace(run.before, last=70.0))
    assert (run.headline.last, replace(run, evaluated="before").headline.last) == (80.0, 70.0)
    (row,) = comparison.table([replace(run, evaluated="before")])
    assert list(row.scores.values()) == [70.0]


def test_each_allocation_counts_once_however_many_clients_it_has() -> None:
    runs = [made_up("local", [80], 0), made_up("x", [90], 0)]
    runs += [made_up("local", [80] * 9, 1), made_up("x", [80] * 9, 1)]
    assert row_of(comparison.table(runs), "x").gain.points == 5.0


@pytest.mark.parametrize("allocations", [1, 2])
def test_fewer_than_three_allocations_have_no_interval_and_no_p_and_say_so(allocations: int) -> None:
    runs = [made_up(m, [80 + a + 5 * (m == "x")] * 50, a) for m in ("local", "x") for a in range(allocations)]
    rows = comparison.table(runs)
    row = row_of(rows, "x")
    assert row.gain.clients == (50 * allocations, 0, 0)
    assert [getattr(row.gain, key) for key in ("low", "high", "p_unadjusted", "p_adjusted")] == [None] * 4
    assert row.gain_note == f"{allocations} allocation{'s' * (allocations > 1)}, 3 are needed"
    assert standings.who_wins(rows).endswith(f"Not tested: {row.gain_note}.")


def test_intervals_of_a_table_stay_within_0_and_100() -> None:
    (row,) = comparison.table([made_up("x", [value], a) for a, value in enumerate((100, 99, 96))])
    assert row.after.high == 100.0
    assert 0 < row.after.low < 98


def test_p_values_are_adjusted_by_holm_over_the_methods_of_a_scenario() -> None:
    """In scenario b there is one method, so that its p stays."""
    gains = {"x": (3, 4, 5), "y": (1, 4, 6), "z": (-1, 0, 3)}
    runs = [made_up("local", [50], a, s) for a in range(3) for s in "ab"]
    runs += [made_up(m, [50 + g], a, "a") for m, values in gains.items() for a, g in enumerate(values)]
    runs += [made_up("x", [50 + g], a, "b") for a, g in enumerate(gains["x"])]
    rows = comparison.table(runs)
    p = {m: float(stats.ttest_1samp(values, 0).pvalue) for m, values in gains.items()}
    found = {(row.scenario, row.method): row.gain.p_adjusted for row in rows if row.gain}
    assert found["a", "x"] == pytest.approx(3 * p["x"])
    assert found["a", "y"] == pytest.approx(2 * p["y"])
    assert found["b", "x"] == pytest.approx(p["x"])


def test_who_wins_says_who_is_not_distinguishable() -> None:
    """x is ahead of y by 1, -1 and 3 points, and of z by 40, 41 and 40, each times two rivals."""
    accuracies = {"x": (80, 82, 84), "y": (79, 83, 81), "z": (40, 41, 44)}
    rows = comparison.table([made_up(m, [v], a) for m, values in accuracies.items() for a, v in enumerate(values)])
    told = {row.method: row.standing.verdict for row in rows}
    assert told == {"x": "best", "y": "not distinguishable", "z": "behind"}
    assert row_of(rows, "z").standing.p == pytest.approx(2 * stats.ttest_1samp((40, 41, 40), 0).pvalue)
    assert standings.who_wins(rows) == "Highest: x with 82.00 %. Not distinguishable from it: y. Behind it: z."


def test_who_is_highest_is_judged_on_the_allocations_that_all_have() -> None:
    """Local was also run on the easy allocation 3, which the others do not have."""
    runs = [made_up("local", [value], a) for a, value in enumerate((70, 71, 72, 99))]
    runs += [made_up("x", [value], a) for a, value in enumerate((73, 75, 74))]
    assert row_of(comparison.table(runs), "local").after.last > row_of(comparison.table(runs), "x").after.last
    assert row_of(comparison.table(runs), "x").standing.verdict == "best"


def test_who_wins_is_wrong_in_five_of_a_hundred_tables_at_most() -> None:
    """Six methods without a difference: all must be called level with the highest in 95 of 100 tables."""
    random = np.random.default_rng(0)
    (any_row,) = comparison.table([made_up("x", [80])])
    wrong = 0
    for _ in range(200):
        values = random.normal(80, 1, (6, 4)) + random.normal(0, 3, 4)
        rows = [replace(any_row, allocations=4, scores={str(k): v for k, v in enumerate(row)}) for row in values]
        wrong += standings.standings(rows)[0].verdict == "behind"  # the first, who is as good as any
    assert wrong <= 10


def test_splits_of_the_same_rows_are_not_independent_studies() -> None:
    """Three test rows to one train row: the variance of the mean gain is s^2 (1/3 + 3), not s^2 / 3."""
    runs = [made_up("local", [80], a, overlap=3.0) for a in range(3)]
    runs += [made_up("x", [80 + gain], a, overlap=3.0) for a, gain in enumerate((3, 4, 5))]
    assert row_of(comparison.table(runs), "x").gain.p_unadjusted == pytest.approx(
        2 * stats.t.sf(4 / (1 / 3 + 3) ** 0.5, 2)
    )


def test_ranks_are_over_equally_many_allocations() -> None:
    """y leads on the first allocation of b, and only by x's bad second and third it would lead in the mean of a."""
    values = {("a", "x"): (90, 10, 10), ("a", "y"): (50, 50, 50), ("b", "x"): (40,), ("b", "y"): (60,)}
    runs = [made_up(m, [v], a, s) for (s, m), found in values.items() for a, v in enumerate(found)]
    found = standings.ranks(comparison.table(runs))
    assert found is not None
    assert (found.mean_rank, found.allocations) == ({"x": 1.5, "y": 1.5}, 1)
    runs.append(made_up("z", [99], 5, "a"))
    runs.append(made_up("z", [99], 5, "b"))
    assert standings.ranks(comparison.table(runs)) is None  # no allocation that all have


# --- at the same round ---------------------------------------------------------------------------


def stop(path: Path, done: int) -> None:
    """As if the run was still going after so many rounds."""
    tables = ("round", "summary", "client_round", "client_score", "watched", "event")
    change(path, *(f"DELETE FROM {table} WHERE round >= {done}" for table in tables))
    change(path, "UPDATE meta SET value = 'running' WHERE key = 'status'")


def test_an_unfinished_run_is_compared_at_the_last_round_of_both(tmp_path: Path) -> None:
    """The same method twice, stopped after 6 of 7 rounds: equal, though it has less right than the other's last."""
    make(tmp_path / "local", label="local")
    stop(make(tmp_path / "toy"), 6)
    runs = result_sets.load(tmp_path)
    row = row_of(comparison.table(runs), "toy")
    assert (row.gain.clients, row.gain.points, row.gain.round) == ((0, 4, 0), 0.0, 6)
    assert (row.rounds, row.round, row.standing.verdict) == ("6/7", 6, "not compared: at round 6")
    assert row_of(comparison.table(runs), "local").round == 7
    assert row_of(comparison.table(runs, "toy"), "local").gain.clients == (0, 4, 0)
    assert {found.gain for found in pairing.client_gains(runs)} == {0.0}
    assert {found.round for found in pairing.client_gains(runs)} == {6}


def test_runs_of_a_file_at_different_rounds_are_not_compared(tmp_path: Path) -> None:
    """A file of results holds the last round alone."""
    make(tmp_path / "local", label="local")
    stop(make(tmp_path / "toy"), 6)
    rows = json.loads(json.dumps(result_sets.as_dicts(result_sets.load(tmp_path)), default=str))
    row = row_of(comparison.table(result_sets.from_dicts(rows)), "toy")
    assert (row.gain, row.as_dict()["gain_points"], row.gain_note) == (None, None, "not compared: rounds differ")
    assert pairing.client_gains(result_sets.from_dicts(rows)) == []


def test_unfinished_runs_do_not_count_beside_finished_ones(tmp_path: Path) -> None:
    make(tmp_path / "toy-0")
    stop(make(tmp_path / "toy-1", seed="1", partition="q"), 2)
    runs = result_sets.load(tmp_path)
    (row,) = comparison.table(runs)
    assert (row.seeds, row.round, row.unfinished) == (1, 7, 1)
    assert row.after.last == pytest.approx(100 * 5 / 31)
    assert standings.left_out(runs, [row]) == ["toy seed 1 (2/7)"]


def test_runs_under_way_are_shown_at_the_round_that_all_have(tmp_path: Path) -> None:
    """Right in round 3: 11 of 31, in round 5: 3 of 31."""
    for seed, done in enumerate((5, 3)):
        stop(make(tmp_path / str(seed), seed=str(seed), partition=f"p{seed}"), done)
    (row,) = comparison.table(result_sets.load(tmp_path))
    assert (row.round, row.after.last) == (3, pytest.approx(100 * 11 / 31))


def test_methods_at_different_rounds_are_not_ranked(tmp_path: Path) -> None:
    for scenario in "ab":
        for label in "xyz":
            make(tmp_path / scenario / label, label=label)
    stop(tmp_path / "b" / "z", 4)
    found = standings.ranks(comparison.table(result_sets.load(tmp_path)))
    assert found is not None
    assert set(found.mean_rank) == {"x", "y"}


def test_the_cost_of_an_attack_is_measured_at_the_same_round(tmp_path: Path) -> None:
    make(tmp_path / "none" / "toy")
    attack = json.dumps({"kind": "scaled", "clients": [0], "factor": -5.0})
    stop(make(tmp_path / "scaled" / "toy", attack=attack), 3)
    rows = {row.scenario: row for row in comparison.table(result_sets.load(tmp_path), "toy")}
    assert rows["scaled"].attacked.points == 0.0


def test_rivals_are_found_by_allocation_whatever_the_seed_of_their_training() -> None:
    runs = [made_up("local", [70, 70], 0, seed=5), made_up("x", [72, 71], 0, seed=9)]
    assert row_of(comparison.table(runs), "x").gain.clients == (2, 0, 0)
    runs.append(made_up("local", [80, 80], 0, seed=9))
    assert row_of(comparison.table(runs), "x").gain.clients == (0, 0, 2)  # of the same seed, where there is one


def test_less_of_an_error_is_a_gain() -> None:
    """Squares of 100 samples add up to 25 alone and to 9 together: RMSE 0.5 and 0.3."""
    runs = [made_up("local", [25], score=RMSE), made_up("x", [9], score=RMSE)]
    gain = row_of(comparison.table(runs), "x").gain
    assert gain is not None
    assert (gain.clients, gain.points) == ((1, 0, 0), pytest.approx(0.2))


def test_folders_without_results(tmp_path: Path) -> None:
    (tmp_path / "planned").mkdir()
    (tmp_path / "planned" / "config.toml").touch()
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "run.db").touch()
    with pytest.raises(InputError, match="no run with results"):
        result_sets.load(tmp_path)


def test_honest_clients_are_counted_apart_and_against_the_run_without_an_attack(tmp_path: Path) -> None:
    """Right in the last round: 3 of 10, 0 of 10, 2 of 10 and 0 of 1; client 0 is malicious in the second run."""
    clean = make(tmp_path / "none" / "toy")
    attack = json.dumps({"kind": "scaled", "clients": [0], "factor": -5.0})
    attacked, _ = (make(tmp_path / "scaled" / label, label=label, attack=attack) for label in ("toy", "other"))
    make(tmp_path / "short" / "toy", rounds="3")  # another number of rounds: not to be compared with
    change(clean, "UPDATE client_score SET sum = 5 WHERE client = 1 AND phase = 'after' AND score = 'accuracy'")
    change(attacked, "UPDATE client_score SET sum = 10 WHERE client = 0 AND phase = 'after' AND score = 'accuracy'")
    found = comparison.table(result_sets.load(tmp_path), "toy")
    rows = {row.scenario: row for row in found if row.method == "toy"}
    assert (rows["scaled"].attacked.attackers, rows["none"].attacked) == (1, None)
    assert rows["scaled"].attacked.honest == pytest.approx((0 + 20 + 0) / 3)
    assert rows["scaled"].attacked.points == pytest.approx((0 - 50) / 3)
    assert rows["scaled"].attacked.weight is None  # the toy has no A
    assert rows["none"].as_dict()["honest"] is None
    # Against the toy of its own scenario, without the malicious client.
    assert row_of(found, "other").gain.clients == (0, 3, 0)


def test_the_weight_on_malicious_clients_by_hand(tmp_path: Path) -> None:
    path = make(tmp_path / "a", attack=json.dumps({"kind": "noise", "clients": [1, 3], "factor": 1.0}))
    first = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], np.float32)
    second = np.array([[0.5, 0.1, 0.1, 0.3], [9, 9, 9, 9], [0.2, 0, 0.8, 0], [9, 9, 9, 9]], np.float32)
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        db.execute("UPDATE meta SET value = 'A' WHERE key = 'weights'")  # as of a method that declares them
        for t, A in enumerate((first, second)):
            db.execute("INSERT INTO watched VALUES (?, 'A', '[4, 4]', ?)", (t, A.tobytes()))
    run = run_results.read(path)
    assert run is not None
    assert run.attackers == (1, 3)
    assert run.attacker_weight == (0.0, pytest.approx((0.4 + 0.0) / 2))
    again = result_sets.from_dicts(json.loads(json.dumps(result_sets.as_dicts([run]), default=str)))[0]
    assert (again.attackers, again.attacker_weight) == (run.attackers, run.attacker_weight)
