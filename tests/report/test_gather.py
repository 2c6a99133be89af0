"""What a report reads out of run folders, and what it says about those that it cannot read."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapa.analysis import run_results
from fedapa.analysis.run_reader import Gathered, gather
from fedapa.errors import InputError
from fedapa.methods.catalogue import make as make_method
from fedapa.report import figures
from fedapa.rounds.round_plan import Plan
from fedapa.store.run_settings import settings_of, settings_to_json
from made_runs import Make, change

HALF, MORE = [[2, 4, 6], [4, 5, 6]], [[3, 4, 5], [5, 5, 4]]


def look(run: Path) -> Gathered:
    return gather(run.parent)


def store(run: Path, key: str, text: str) -> None:
    with closing(sqlite3.connect(run / "run.db")) as db, db:
        db.execute("INSERT INTO meta VALUES (?, ?)", (key, text))


def test_numbers_of_a_run(make: Make) -> None:
    found = look(make("a", "fedapa", HALF, weights=True))
    (scenario,) = found.scenarios
    assert scenario.title == "CIFAR-10 · Dirichlet 0.1 · 3 clients"
    (run,) = scenario.runs
    assert run.curve.rounds.tolist() == [1, 2]
    assert run.curve.pooled == pytest.approx([40, 50])
    assert run.curves["before"].pooled == pytest.approx([30, 40])
    # 4 of the 5 seconds of a round are the clients'; they trained 4.5 of the 6 seconds that they worked.
    assert run.spent == pytest.approx((3.0, 1.0, 1.0))
    assert run.mib == 2 * 3 * 1024 / 2**20
    assert [t for t, _ in run.matrices] == [1, 2]
    assert run.matrices[1][1][0] == pytest.approx([0.9, 0.1, 0.1])
    assert found.troubles == []


def test_runs_of_different_numerics_versions_are_named_and_not_paired(make: Make) -> None:
    local = make("l", "local", HALF)
    (same,) = look(make("a", "fedapa", MORE)).scenarios
    assert same.notes == ()
    change(local, "INSERT INTO meta VALUES ('numerics', '2')")
    (mixed,) = look(local).scenarios
    assert any("(version 1: fedapa; version 2: local)" in note for note in mixed.notes)
    rows = {row.method: row for row in mixed.rows}
    assert rows["fedapa"].gain is None
    assert same.rows[-1].gain is not None


def test_gains_over_local_by_hand(make: Make) -> None:
    make("l", "local", HALF)
    (scenario,) = look(make("a", "fedapa", MORE)).scenarios
    ((_, gains),) = figures.gains_of(scenario, "fedapa")
    assert gains == pytest.approx([10, 0, -20])


def test_gains_in_the_figures_are_of_the_same_round(make: Make) -> None:
    make("local-seed0", "local", [[5, 5, 5], [9, 9, 9]])
    run = make("fedapa-seed0", "fedapa", [[6, 5, 3]], status="running", rounds=2)
    ((_, gains),) = figures.gains_of(look(run.parent).scenarios[0], "fedapa")
    assert gains == pytest.approx([10, 0, -20])


def test_clients_without_test_samples_neither_gain_nor_lose(make: Make) -> None:
    make("l", "local", HALF)
    run = make("a", "fedapa", MORE)
    change(run, "UPDATE client_score SET sum = 0, count = 0 WHERE client = 1 AND phase = 'after'")
    ((_, gains),) = figures.gains_of(look(run).scenarios[0], "fedapa")
    assert np.isnan(gains).tolist() == [False, True, False]


def test_runs_are_grouped_by_what_was_learned_not_by_how(make: Make) -> None:
    make("x/a", "fedapa", HALF, alpha=0.1)
    make("y/a", "fedapa", HALF, alpha=0.5)
    other = make("x/b", "local", HALF, seed=1)
    (other / "config.toml").write_text((other / "config.toml").read_text() + "workers = 3\n")
    found = gather(other.parents[1])
    assert [s.title for s in found.scenarios] == [f"CIFAR-10 · Dirichlet {a} · 3 clients" for a in (0.1, 0.5)]
    assert [len(s.runs) for s in found.scenarios] == [2, 1]


def test_scenarios_of_one_title_say_what_differs(make: Make) -> None:
    make("a", "fedapa", HALF)
    run = make("b", "fedapa", HALF)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("lr = 0.01", "lr = 0.05"))
    assert [s.title.split(" · ")[-1] for s in look(run).scenarios] == ["lr 0.01", "lr 0.05"]


def test_one_name_with_other_hyper_parameters_is_another_method(make: Make) -> None:
    make("a", "fedapa", HALF, method="FedAPA(eta=0.01, mu=0.5)")
    make("c", "fedapa", HALF, method="FedAPA(eta=0.01, mu=0.5)", seed=1)
    (scenario,) = look(make("b", "fedapa", MORE, method="FedAPA(eta=0.01, mu=0.3)")).scenarios
    assert [(row.method, row.seeds) for row in scenario.rows] == [("fedapa (mu=0.5)", 2), ("fedapa (mu=0.3)", 1)]


def test_runs_that_store_json_and_older_ones_are_one_method(make: Make) -> None:
    for name, mu, seed in (("new", 0.5, 0), ("other", 0.3, 0)):
        run = make(name, "fedapa", HALF, seed=seed, method="said in other words")
        store(run, "settings", settings_to_json(method=make_method("fedapa", mu=mu)))
    older = make("older", "fedapa", HALF, seed=1, method=repr(make_method("fedapa", mu=0.5)))
    (scenario,) = look(older).scenarios
    assert [(row.method, row.seeds) for row in scenario.rows] == [("fedapa (mu=0.5)", 2), ("fedapa (mu=0.3)", 1)]


def test_wrapped_methods_are_told_apart_by_what_is_inside_them() -> None:
    def settings(description: str) -> dict[str, Any]:
        return settings_of({"method": description}, "method")

    wrapped = "Quantised(inner=FedAPA(eta=0.01, sign='descend'), bits=8)"
    assert settings(wrapped) == {"eta": 0.01, "sign": "descend", "bits": 8}
    assert settings("FedAPA(eta=open('x'))") == {}
    assert settings("FedAPA(eta=") == {}


@pytest.mark.parametrize("name", ["fedapa", "fedapa+quantised", "fedapa-exact", "pfedhn"])
def test_settings_as_json_say_what_the_description_of_older_runs_says(name: str) -> None:
    method, plan = make_method(name), Plan(seed=3, participation=(0.5, 0.75))
    told = {"method": repr(method), "plan": repr(plan)}
    stored = {"settings": settings_to_json(method=method, plan=plan)}
    for part in told:
        assert settings_of(stored, part) == settings_of(told, part) != {}
    assert settings_of(stored, "plan")["participation"] == [0.5, 0.75]


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_settings_that_are_no_json_table_are_none(text: str) -> None:
    assert settings_of({"settings": text, "method": "FedAPA(mu=0.5)"}, "method") == {}


def test_the_config_that_a_run_was_started_with_counts_not_the_file_beside_it(make: Make) -> None:
    make("a", "fedapa", HALF)
    run = make("b", "local", HALF)
    store(run, "experiment", json.dumps(tomllib.loads((run / "config.toml").read_text())))
    (run / "config.toml").write_text("garbage")
    (scenario,) = look(run).scenarios
    assert scenario.title == "CIFAR-10 · Dirichlet 0.1 · 3 clients"
    assert len(scenario.runs) == 2


def test_runs_on_own_sites_know_how_far_their_test_rows_overlap(make: Make) -> None:
    runs = make("a", "fedapa", HALF), make("b", "local", HALF), make("c", "fedavg", HALF)
    store(runs[0], "experiment", '{"sites": {}}')
    with open(runs[1] / "config.toml", "a", encoding="utf-8") as file:  # as an older run has it
        file.write("[sites]\n")
    found = [run_results.read(run) for run in runs]
    assert [run.overlap for run in found if run] == [10 / 100, 10 / 100, 0]


def test_runs_with_malicious_clients_are_a_scenario_of_their_own_and_those_have_no_gain(make: Make) -> None:
    make("l", "local", HALF)
    make("a", "fedapa", MORE)
    for name, label, right in (("m", "local", HALF), ("b", "fedapa", MORE)):
        run = make(name, label, right)
        text = (run / "config.toml").read_text() + '[attack]\nkind = "scaled"\nclients = [0]\nfactor = -2.0\n'
        (run / "config.toml").write_text(text)
        change(run, "INSERT INTO meta VALUES ('attack', '{\"clients\": [0]}')")
    clean, attacked = sorted(look(run).scenarios, key=lambda scenario: scenario.title)
    assert attacked.title == "CIFAR-10 · Dirichlet 0.1 · 3 clients · 1 malicious (scaled -2)"
    assert clean.title == "CIFAR-10 · Dirichlet 0.1 · 3 clients"
    ((_, gains),) = figures.gains_of(attacked, "fedapa")
    assert gains[1:] == pytest.approx([0, -20])
    assert np.isnan(gains[0])


def test_what_cannot_be_read_is_named(make: Make) -> None:
    top = make("a", "local", HALF).parent
    for name, content in {
        "garbage": b"garbage" * 99,
        "empty": b"",
        "holes": b"SQLite format 3\0" + bytes(5000),
    }.items():
        (top / name).mkdir()
        (top / name / "run.db").write_bytes(content)
    change(make("odd", "fedapa", HALF), "UPDATE summary SET pooled = 'much'")
    change(
        make("failed", "fedapa", HALF, status="failed"),
        "DELETE FROM summary",
        "INSERT INTO meta VALUES ('reason', 'NaN')",
    )
    found = gather(top)
    assert [len(s.runs) for s in found.scenarios] == [1]
    states = {trouble.folder: trouble.status for trouble in found.troubles}
    assert states == dict.fromkeys(("garbage", "holes", "odd"), "unreadable") | {"empty": "planned", "failed": "failed"}
    assert next(trouble for trouble in found.troubles if trouble.folder == "failed").reason == "NaN"


def test_a_run_without_config_and_versions_still_counts(make: Make) -> None:
    run = make("a", "fedapa", HALF)
    (run / "config.toml").unlink()
    (scenario,) = look(run).scenarios
    assert scenario.title == "CIFAR-10 · 3 clients"


def test_accuracies_that_are_not_finite_are_left_out(make: Make) -> None:
    run = make("a", "fedapa", [[1, 1], [5, 5], [2, 2]])
    change(run, "UPDATE summary SET pooled = 9e999 WHERE round = 0")
    (scenario,) = look(run).scenarios
    assert scenario.rows[0].after.best == 50
    assert scenario.runs[0].curve.pooled[1:] == pytest.approx([50, 20])
    assert np.isnan(scenario.runs[0].curve.pooled[0])
    assert "not finite" in scenario.notes[0]


def test_a_running_run_is_shown_as_far_as_it_is(make: Make) -> None:
    (scenario,) = look(make("a", "fedapa", HALF, status="running", rounds=50)).scenarios
    assert "a (2/50)" in scenario.notes[0]


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_without_runs_is_a_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        gather(tmp_path / name)


def test_a_name_of_the_configs_own_says_which_method_it_is(make: Make) -> None:
    run = make("a", "small-step", HALF)
    with (run / "config.toml").open("a") as config:
        config.write('[method.small-step]\nbase = "fedapa"\neta = 0.001\n[method.small-step.training]\nlr = 0.1\n')
    (scenario,) = look(run).scenarios
    assert scenario.notes == ("small-step is FedAPA with eta=0.001, training.lr=0.1.",)


def test_a_run_that_failed_says_why_and_one_that_goes_on_does_not(make: Make) -> None:
    failed = make("a", "fedapa", HALF, status="failed", rounds=3)
    change(failed, "INSERT INTO meta VALUES ('reason', 'training diverged')")
    make("b", "fedavg", HALF, status="running", rounds=3)
    (scenario,) = look(failed).scenarios
    assert scenario.notes == (
        "a (2/3) failed: training diverged.",
        "Not finished: b (2/3).",
        "Such runs do not count beside finished ones of the same method.",
    )


def test_no_point_is_cut_off_and_ticks_are_never_alone() -> None:
    from fedapa.core.scores import ACCURACY

    low, high = figures._room(np.array([49.2, 76.0, 86.2, 87.1]), ACCURACY)
    assert low < 49.2
    assert high > 87.1
    assert figures._ticks(32.5, 141.0) == [50.0, 100.0]
    assert figures._ticks(0.5, 2000.0) == [1.0, 10.0, 100.0, 1000.0]
