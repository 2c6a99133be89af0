"""Experiments load, say how they are run, and their results belong to them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapa.analysis import result_sets
from fedapa.analysis.run_results import Phase, RunResult
from fedapa.config.grid import load_scenarios
from fedapa.core.scores import ACCURACY
from fedapa.core.summaries import Summary
from fedapa.store.provenance import Provenance
from fedapa.tune.tuning import TrialRow
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


def test_the_results_pages_and_the_readme_are_current() -> None:
    maker = load_maker("make_results")
    for name, text in maker.pages().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"{name}: run python docs/make_results.py"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == maker.with_table(readme), "README.md: run python docs/make_results.py"
    assert "| local |" in readme


def made_up(scenario: str, label: str, test: float, held: float | None = None, **more: Any) -> RunResult:
    """A run of two clients whose last round is ``test`` percent right."""
    phase = Phase(test, test, 1, test, None, Summary(test, test, 0.0, test, test), (test,), held)
    counts = np.array([[test, 100], [test, 100]], dtype=np.int64)
    partition = f"p{more.get('seed', 7)}"
    values = (Path("x"), scenario, label, 7, "finished", 20, 20, "after", phase, phase, 1.0, 1.0, counts)
    return replace(RunResult(*values, partition), **more)


def stored(runs: list[RunResult]) -> Any:
    """The runs as a file of results has them."""
    return json.loads(json.dumps(result_sets.as_dicts(runs), default=str))


def section(monkeypatch: pytest.MonkeyPatch, maker: str, experiment: str, runs: list[RunResult]) -> str:
    """A part of the results page, as it would be with these runs."""
    page = load_maker("make_results")
    rows = stored(runs)
    monkeypatch.setattr(page, "_kept", lambda path: rows if path.stem == experiment else [])
    return "\n".join(getattr(page, maker)(FOLDER / f"{experiment}.toml"))


def test_the_rule_is_chosen_by_held_out_data_whatever_the_test_data_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """By test accuracy exact-noise would win; fedper is no rule; exact-blocks was run in one column alone."""
    accuracies = {"fedapa-exact": (60, 80.0, 70.0), "exact-fixed": (50, 78.0, 76.0), "exact-noise": (99, 70.0, 70.0)}
    accuracies["fedper"] = (50, 99.0, 99.0)
    runs = [
        made_up(f"rules-{name}", label, test, held)
        for label, (test, *helds) in accuracies.items()
        for name, held in zip(("dirichlet", "pathological"), helds, strict=True)
    ]
    runs.append(made_up("rules-dirichlet", "exact-blocks", 50, 99.0))
    told = section(monkeypatch, "_rules", "beyond-rules", runs)
    assert "choose **exact-fixed**, the model after local training; the default is fedapa-exact" in told
    assert "| exact-fixed | 78.00 / 78.00 | 76.00 / 76.00 | 77.00 / 77.00 |" in told
    assert "exact-blocks" in told.split("Without a run in every column: ")[1]
    assert "99" not in told.split("| exact-noise |")[1].split("\n")[0]  # no test accuracy anywhere
    for config in load_scenarios(str(FOLDER / "beyond-rules.toml")).values():
        assert (config.data.validation, config.seeds) == (0.1, [7])


def test_held_out_data_also_say_when_the_model_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """exact-fixed is best after local training (82), fedapa-exact as it arrives (83)."""
    runs = [
        made_up(f"rules-{name}", label, 50, after, before=made_up("", "", 50, before).before)
        for name in ("dirichlet", "pathological")
        for label, before, after in (("fedapa-exact", 83.0, 70.0), ("exact-fixed", 60.0, 82.0))
    ]
    told = section(monkeypatch, "_rules", "beyond-rules", runs)
    assert "choose **fedapa-exact**, the model as it arrives; the default" in told
    steady = [made_up(f"rules-{name}", "exact-steadier", 50, 90.0) for name in ("dirichlet", "pathological")]
    steady_told = section(monkeypatch, "_rules", "beyond-rules", runs + steady)
    assert "choose **exact-steadier**, the running mean of a client's models; the default" in steady_told
    assert "| fedapa-exact | 83.00 / 70.00 | 83.00 / 70.00 | 83.00 / 70.00 |" in told


def test_distances_from_the_paper_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAPA's paper prints 85.85 for itself and 82.53 for FedALA, and nothing for local training."""
    column, far = "cifar10-dirichlet-20", made_up("", "", 81).before
    runs = [made_up(column, "fedapa", 80, after=far), made_up(column, "fedala", 82), made_up(column, "local", 82)]
    told = section(monkeypatch, "_table1", "table1", runs).split("Beside the printed numbers")[1]
    lines = [line for line in told.splitlines() if line.startswith("| fed") or line.startswith("| local")]
    assert lines == ["| fedala | -0.5 |", "| fedapa | -4.8 (-5.8) |"]


def test_what_dbe_does_without_its_pull_is_told_where_both_were_run(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = "cifar100-dirichlet-20", "cifar10-pathological-20"
    runs = [made_up(columns[0], "dbe", 40), made_up(columns[0], "dbe-without-pull", 60), made_up(columns[1], "dbe", 70)]
    page = load_maker("make_results")
    monkeypatch.setattr(page, "_kept", lambda path: stored(runs))
    told = page._dbe(FOLDER / "dbe-gap.toml")
    assert "CIFAR-100, Dirichlet 0.01, 20 clients 60.0 instead of 40.0" in told
    assert "70" not in told
    monkeypatch.setattr(page, "_kept", lambda path: [])
    assert "not tried yet" in page._dbe(FOLDER / "dbe-gap.toml")


def test_which_self_weight_is_best_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper prints 85.85 for FedAPA and 84.41 for a self-weight of 0."""
    page = load_maker("make_results")
    (config,) = load_scenarios(str(FOLDER / "table4.toml")).values()

    def told(**best: int) -> str:
        runs = [made_up("cifar10-dirichlet-20", name, best.get(name, 80)) for name in config.methods]
        monkeypatch.setattr(page, "_kept", lambda path: stored(runs))
        return str(page._self_weight(FOLDER / "table4.toml"))

    assert "fedapa is best, 1.44 points ahead of mu-0; here mu-0 is highest, +3.00" in told(**{"mu-0": 83})
    assert told(fedapa=90) == "fedapa is highest in Table 4, here and in the paper."
    monkeypatch.setattr(page, "_kept", lambda path: [])
    assert page._self_weight(FOLDER / "table4.toml") == "Table 4 is not complete yet."


def test_a_running_mean_is_held_against_the_trained_model_by_hand() -> None:
    page, runs = load_maker("make_results"), []
    for seed, (trained, mean) in enumerate([(80, 82), (81, 84), (83, 85)]):
        arrives = made_up("s", "fedavg", 40).before
        runs.append(
            made_up("s", "fedavg", trained, seed=seed, evaluated="before", before=arrives, partition=f"p{seed}")
        )
        runs.append(made_up("s", "fedavg+ema", mean, seed=seed, partition=f"p{seed}"))
    runs.append(made_up("s", "fedavg+ema", 10, seed=3, partition="p3"))  # nothing to hold it against
    answer = page._answers(page.QUESTIONS["running mean, common recipe"], ["fedavg", "local"], runs)
    assert answer.keys() == {"fedavg"}
    assert answer["fedavg"].points == pytest.approx(7 / 3)
    assert answer["fedavg"].p == pytest.approx(0.0198, abs=1e-4)  # t = 7 on 2 degrees of freedom
    told, empty = page._told_recipes(["fedavg"], runs)
    assert empty == ""
    assert told.startswith("- Running mean, common recipe: 1 of 1 methods rise, by +2.33 points on average")
    assert told.endswith("told from chance: fedavg +2.33.")


def test_the_authors_recipe_of_fedapa_is_the_reference() -> None:
    page = load_maker("make_results")
    assert page._variant("fedapa", "@authors+ema") == "fedapa-reference+ema"
    assert page._variant("fedapa", "+ema") == "fedapa+ema"
    assert page._variant("fedper", "@authors") == "fedper@authors"


def test_a_variant_that_always_failed_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {
        "scenario": "cifar10-dirichlet-20",
        "label": "without-all-three",
        "seed": 0,
        "rounds_done": 19,
        "best": 63.2,
    }
    page = load_maker("make_results")
    monkeypatch.setattr(page, "_failed", lambda path: [{**lost, "reason": "A is not finite"}])
    told = page._failure(FOLDER / "table3.toml", "cifar10-dirichlet-20", "without-all-three", 59.71)
    assert told.endswith("after 19 rounds, best 63.20, A is not finite. The paper prints 59.71.")
    assert page._failure(FOLDER / "table3.toml", "cifar10-dirichlet-20", "fedapa", None) == "fedapa: not run yet."


def test_the_goal_of_fedapa_exact_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Level is enough without groups; with groups one point ahead is not. exact-steadier is no rival of its own."""
    accuracies = {"fedapa": (70, 79), "fedpac": (80, 75), "fedapa-exact": (80, 80), "exact-steadier": (79, 99)}
    columns = "cifar10-dirichlet-20", "cifar10-pathological-20"
    arrived = made_up("", "", 98).before  # better, but not what any of them is evaluated by
    runs = [
        made_up(name, m, both[k], before=arrived) for m, both in accuracies.items() for k, name in enumerate(columns)
    ]
    told = section(monkeypatch, "_beyond", "beyond", runs)
    level, ahead, behind, far = (line for line in told.splitlines() if line.startswith("- "))
    few = "not tested (1 allocation, 3 are needed)"
    assert "1 allocation: 80.00, highest of the others fedpac with 80.00; per client +0.00" in level
    assert level.endswith("0/2/0: by the means, goal met; equal.")
    assert "80.00, highest of the others fedapa with 79.00; per client +1.00" in ahead
    assert ahead.endswith(f"2/0/0: by the means, goal **not met**; {few}.")
    assert behind.startswith("- exact-steadier, CIFAR-10, Dirichlet")
    assert behind.endswith(f"0/0/2: by the means, goal **not met**; {few}.")
    assert far.endswith(f"per client +20.00 2/0/0: by the means, goal met; {few}.")
    steady = [line.split(" | ")[-2:] for line in told.splitlines() if line.startswith("| exact-steadier")]
    assert steady == [["+1.00 2/0/0", "– |"], ["-19.00 0/0/2", "– |"]]
    assert told.count("1 allocation: no intervals, no tests.") == 2


def test_gaps_of_fedapa_exact_are_tested_over_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """+1, +2 and +3 over FedAPA (t = 3.46), +10, +11 and +10 over Local (t = 31): p 0.074 once and 0.001 twice."""
    gaps = {"fedapa": (1, 2, 3), "local": (10, 11, 10), "fedapa-exact": (0, 0, 0)}
    column = "cifar10-dirichlet-20"
    runs = [made_up(column, m, 80 - gap, seed=a) for m, values in gaps.items() for a, gap in enumerate(values)]
    told = section(monkeypatch, "_beyond", "beyond", runs)
    cells = {line.split(" | ")[0]: line.split(" | ")[-2] for line in told.splitlines() if line.startswith("| ")}
    assert cells["| fedapa"] == "+2.00 [-0.48, +4.48] (p 0.074) 6/0/0"
    assert cells["| local"] == "+10.33 [+8.90, +11.77] (p 0.002) 6/0/0"
    assert "highest of the others fedapa with 78.00" in told
    assert "goal met; not distinguishable." in told


def test_methods_are_compared_on_the_allocations_that_both_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedPAC was not run on the hard allocation 1, where FedAPA-exact has 60: no rival, but its gap is shown."""
    column = "cifar10-dirichlet-20"
    runs = [
        *(made_up(column, "fedapa-exact", value, seed=seed) for seed, value in enumerate((80, 60))),
        *(made_up(column, "fedapa", value, seed=seed) for seed, value in enumerate((79, 59))),
        made_up(column, "fedpac", 78, seed=0),
    ]
    told = section(monkeypatch, "_beyond", "beyond", runs)
    assert "2 allocations: 70.00, highest of the others fedapa with 69.00; per client +1.00" in told
    assert "- exact-steadier, CIFAR-10, Dirichlet 0.1, 20 clients: not run yet." in told
    (cells,) = [line.split(" | ") for line in told.splitlines() if line.startswith("| fedpac")]
    assert (cells[1], cells[-2]) == ("1", "+2.00 2/0/0")


def test_the_sides_of_a_null_pair_share_their_allocations_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_maker("null_calibration", "experiments")
    seen: list[RunResult] = []
    tested = script._tested
    monkeypatch.setattr(script, "_tested", lambda runs, method: seen.extend(runs) or tested(runs, method))
    found = script.play_pair(2, "fedavg", allocations=3, rounds=1, clients=3, alpha=5.0)
    assert all(0 < p <= 1 for p in found)
    assert len({run.seed for run in seen}) == 6  # every run trains by a seed of its own
    first, second = ({run.partition for run in seen if run.label == label} for label in ("fedavg", "again"))
    assert first == second
    assert len(first) == 3


def test_malicious_clients_in_the_results_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 1 is malicious: client 0 had 80 right and has 50; its mixture gives 0.3, then 0.1, then nothing to it."""
    course = tuple([0.3] * 5 + [0.1] * 5 + [0.0] * 10)
    attacked = made_up("poisoned-scaled-1", "fedapa-exact", 50, attackers=(1,), attacker_weight=course)
    told = section(monkeypatch, "_poisoned", "poisoned", [made_up("poisoned-none", "fedapa-exact", 80), attacked])
    cells = [line.split(" | ") for line in told.splitlines() if line.startswith("| fedapa-exact")]
    assert [cell for cell in cells[0][1:] if cell.strip(" |") != "–"] == ["80.00", "-30.00"]
    assert [cell for cell in cells[1][1:] if cell.strip(" |") != "–"] == ["30.0 → 10.0 → 0.0"]
    assert "5 for 1, 10 for 2, 20 for 4" in told


def test_rows_of_older_numbers_are_marked_and_not_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local and FedPer were run again under version 2, FedAPA was not: nothing is said about it against Local."""
    old, new = Provenance(numerics=1), Provenance(numerics=2)
    column = "cifar10-dirichlet-20"
    runs = [
        made_up(column, "local", 80, provenance=new),
        made_up(column, "fedper", 82, provenance=new),
        made_up(column, "fedapa", 83, provenance=old),
    ]
    told = section(monkeypatch, "_table1", "table1", runs)
    cells = {
        line.split(" | ")[0]: line.split(" | ") for line in told.splitlines() if "82.00" in line or "83.00" in line
    }
    assert cells["| fedper"][-2].startswith("+2.00")
    assert cells["| fedapa †"][-2] == "–"
    page = load_maker("make_results")
    assert "1 version 1, 2 version 2" in page._numerics(stored(runs))
    assert "dagger" in page._numerics(stored(runs))
    assert "†" not in section(monkeypatch, "_table1", "table1", [replace(run, provenance=old) for run in runs])
    assert "dagger" not in page._numerics(stored(runs[:2]))


def test_ranks_and_goals_are_taken_within_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Provenance(numerics=1), Provenance(numerics=2)
    columns = load_scenarios(str(FOLDER / "table1.toml"))
    runs = [
        made_up(name, label, 80, provenance=old)
        for name in list(columns)[:3]
        for label in columns[name].methods
        if len(columns[name].methods) > 10
    ]
    assert "Over the 3 columns" in section(monkeypatch, "_table1", "table1", runs)
    runs[0] = replace(runs[0], provenance=new)
    assert "Over the 2 columns" in section(monkeypatch, "_table1", "table1", runs)
    column = "cifar10-dirichlet-20"
    goal = [made_up(column, "fedapa-exact", 80, provenance=new), made_up(column, "fedpac", 99, provenance=old)]
    told = section(monkeypatch, "_beyond", "beyond", [*goal, made_up(column, "fedapa", 79, provenance=new)])
    assert "highest of the others fedapa with 79.00" in told
    assert "| fedpac † |" in told


def test_the_leaderboard_is_what_its_command_makes() -> None:
    maker = load_maker("make_leaderboard")
    assert maker.page(maker.rows_of(FOLDER / "results")) == (ROOT / "docs" / "leaderboard.md").read_text(
        encoding="utf-8"
    )


def test_stored_runs_as_tables_by_hand(tmp_path: Path) -> None:
    """Two clients, 60 of 100 right each; the curve has one value before training and one after it."""
    tables = load_maker("tables", "experiments")
    run = made_up("column", "fedapa", 60, evaluated_rounds=(20,), attackers=(1,))
    rows = [{**row, "environment": {"date": "2026-11-18"}} for row in stored([run])]
    (tmp_path / "mine.json").write_text(json.dumps({"runs": rows}))
    ((key, found, date),) = tables.stored(tmp_path)
    assert key == {"experiment": "mine", "scenario": "column", "method": "fedapa", "seed": 7}
    line = tables.run_row(key, found, date)
    assert set(line) == set(tables.RUNS)
    assert (line["after_last"], line["clients"], line["malicious"], line["date"]) == (60, 2, 1, "2026-11-18")
    assert [(r["rounds_done"], r["phase"], r["value"]) for r in tables.round_rows(key, found)] == [
        (19, "before", 60), (20, "after", 60)
    ]  # fmt: skip
    assert [(r["client"], r["sum"], r["count"], r["malicious"]) for r in tables.client_rows(key, found)] == [
        (0, 60, 100, 0), (1, 60, 100, 1)
    ]  # fmt: skip


def test_rounds_of_both_phases() -> None:
    """Two rounds: before is scored with 0, 1 and 2 rounds done, after with 1 and 2."""
    tables, run = load_maker("tables", "experiments"), made_up("", "fedavg", 60, rounds_done=2)
    before, after = replace(run, evaluated="before", evaluated_rounds=(0, 1, 2)), replace(run, evaluated_rounds=(1, 2))
    assert [tables.rounds_done(one, "before") for one in (before, after)] == [[0, 1, 2], [0, 1, 2]]
    assert [tables.rounds_done(one, "after")[:2] for one in (before, after)] == [[1, 2], [1, 2]]
    assert tables.rounds_done(run, "after") == [1, 2]  # a run that did not record it


def test_the_tables_hold_every_stored_run(tmp_path: Path) -> None:
    tables = load_maker("tables", "experiments")
    kept = sum(len(json.loads(p.read_text(encoding="utf-8")).get("runs", [])) for p in FOLDER.glob("results/*.json"))
    written = tables.main(tmp_path)
    assert written["runs.csv"] == kept
    assert len((tmp_path / "clients.csv").read_text().splitlines()) == written["clients.csv"] + 1


def test_what_was_tuned_becomes_an_experiment(tmp_path: Path) -> None:
    """Two settings by hand; a method keeps what groups.toml says of it, and its running mean has the same settings."""
    maker = load_maker("tune_groups", "experiments")
    config = load_scenarios(str(maker.GROUPS))["uneven"]
    plan = maker.plan_of(config)
    assert {"oracle", "ifca", "ifca-e", "fedapa-exact"} <= set(plan.methods)
    assert not {"ifca-true", "exact-ema"} & set(plan.methods)
    assert (plan.seeds, plan.validation) == ([100, 101], 0.2)
    settings = {"training.lr": 0.02, "clusters": 5}
    rows = [TrialRow(n, 1, settings, 50.0, {}, 1.0, "finished", "", ACCURACY) for n in ("ifca", "ifca-e")]
    (tmp_path / "made.toml").write_text(maker.experiment({"uneven": maker.chosen(plan, rows)}))
    ((name, made),) = load_scenarios(str(tmp_path / "made.toml")).items()
    assert (name, made.data, made.run, made.seeds) == ("uneven", config.data, config.run, config.seeds)
    assert made.methods == ["fedapa-exact", "ifca-tuned", "ifca-tuned-ema", "ifca-e-tuned", "ifca-e-tuned-ema"]
    tuned = {"shared": "extractor", "clusters": 5, "training": {"lr": 0.02}}
    assert made.method["ifca-e-tuned"] == {"base": "ifca", **tuned}
    assert made.method["ifca-e-tuned-ema"] == {"base": "ifca+ema", **tuned}
