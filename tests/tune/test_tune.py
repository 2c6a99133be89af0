"""`fedapa tune`: chosen on held-out data alone, killed and resumed, the same budget for all, a file that runs."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import time
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command import SMALL, Call, started, wait_for
from fedapa.analysis import run_results
from fedapa.config.load import check, load, settings_of, training_of
from fedapa.core.scores import ACCURACY
from fedapa.data.federated import ClientData, Federated, Split
from fedapa.errors import InputError, RunError
from fedapa.store import run_folder
from fedapa.sweep import pool
from fedapa.tune.trials import NAME, Plan, Trial, make_plan, save, stored
from fedapa.tune.tuning import TABLE, TUNED, TrialRow, best, rows, tune
from hospitals import write_hospitals

METHODS = "local,ditto"
FEW = ("--trials", 4, "--rounds", 2)


def plan_of(small: Path, **changes: Any) -> Plan:
    words = {"trials": 4, "search": "random", "seed": 0, "rounds": 2, **changes}
    return make_plan(load(str(small), ["methods=['local', 'ditto']"]), {}, **words)


def settings(found: list[TrialRow]) -> list[tuple[str, int, dict[str, Any]]]:
    return [(row.method, row.trial, row.settings) for row in found]


def chosen(found: list[TrialRow]) -> dict[str, int]:
    return {name: row.trial for name, row in best(found).items()}


# ------------------------------------------------------------------------------------------- what is chosen, by what


def scrambled(data: Federated) -> Federated:
    """The same federation with nonsense for test labels."""
    noise = torch.Generator().manual_seed(1)

    def spoilt(client: ClientData) -> ClientData:
        y = torch.randint(0, data.classes, client.test.y.shape, generator=noise)
        return replace(client, test=Split(client.test.x, y))

    return replace(data, clients=tuple(map(spoilt, data.clients)))


def test_test_labels_change_no_choice(small: Path, tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedapa.config import experiment

    plan = plan_of(small, trials=6)
    _, honest = tune(plan, tmp_path / "honest", 1)
    true_data = experiment.load_data
    monkeypatch.setattr(experiment, "load_data", lambda config, seed: scrambled(true_data(config, seed)))
    _, spoilt = tune(plan, tmp_path / "spoilt", 1)
    assert [(row.held, row.settings) for row in honest] == [(row.held, row.settings) for row in spoilt]
    assert (tmp_path / "honest" / TUNED).read_bytes() == (tmp_path / "spoilt" / TUNED).read_bytes()
    on_test = [
        [
            run_results.read(tmp_path / name / trial).headline.last
            for trial in ("local/trial000-seed0", "local/trial002-seed0")
        ]  # type: ignore[union-attr]
        for name in ("honest", "spoilt")
    ]
    assert on_test[0] != on_test[1]  # the labels were scrambled indeed


def test_scores_are_those_of_held_out_data_and_no_others_are_shown(small: Path, here: None, fedapa: Call) -> None:
    answer = fedapa("tune", small, "--method", METHODS, *FEW, "--out", "out", "--format", "json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)["trials"]
    for row in found:
        run = run_results.read(Path("out") / row["method"] / f"trial{row['trial']:03d}-seed0")
        assert run is not None
        assert row["held"] == row["allocations"]["0"] == run.headline.held
        assert set(row) == {"method", "trial", "settings", "held", "allocations", "seconds", "state", "reason", "score"}
    config = tomllib.loads(Path("out/local/trial001-seed0/config.toml").read_text())
    assert config["data"]["validation"] == 0.2
    assert "holds no train data out; trials hold out 20% of every train set" in answer.err


def test_a_share_of_the_configs_own_is_kept_and_so_are_its_rounds(small: Path, here: None, fedapa: Call) -> None:
    answer = fedapa("tune", small, "--method", "local", *FEW, "--out", "out", "--set", "data.validation=0.3")
    assert answer.code == 0
    assert "hold out" not in answer.err
    assert tomllib.loads(Path("out/local/trial000-seed0/config.toml").read_text())["data"]["validation"] == 0.3
    tuned = load("out/tuned.toml")
    assert (tuned.data.validation, tuned.run.rounds) == (0.3, 3)


def test_the_default_is_trial_0_and_wins_ties(small: Path, here: None, tmp_path: Path) -> None:
    _, found = tune(plan_of(small), tmp_path / "out", 1)
    assert [row.settings for row in found if row.trial == 0] == [{}, {}]
    for name, row in best(found).items():
        assert row.held == max(one.held for one in found if one.method == name)
        assert row.held >= next(one.held for one in found if one.method == name and one.trial == 0)
    same = [
        TrialRow("local", k, {}, held, {}, 1.0, "finished", "", ACCURACY)
        for k, held in enumerate([70.0, None, 70.0, 69.0])
    ]
    assert chosen(same) == {"local": 0}


def test_every_method_has_the_same_budget_and_it_is_told(small: Path, here: None, fedapa: Call) -> None:
    answer = fedapa("tune", small, "--method", METHODS, *FEW, "--allocations", "0,3", "--out", "out", "--format", "csv")
    assert answer.code == 0, answer.err
    told = "budget of every method: 4 trials x 2 allocations x 2 rounds = 16 rounds; methods: local, ditto"
    assert told in answer.err
    for name in METHODS.split(","):
        assert len(run_folder.runs_under(Path("out") / name)) == 8
        assert {run_folder.rounds_done(run) for run in run_folder.runs_under(Path("out") / name)} == {2}
    table = list(csv.DictReader(io.StringIO(answer.out)))
    assert answer.out == Path("out", TABLE).read_text()
    assert [row["trial"] for row in table] == [*"0123", *"0123"]
    for row in table:
        assert float(row["held"]) == pytest.approx((float(row["held_0"]) + float(row["held_3"])) / 2)
    assert {row["lam"] != "" for row in table if row["method"] == "ditto" and row["trial"] != "0"} == {True}
    assert {row["lam"] for row in table if row["method"] == "local"} == {""}


def test_the_tuned_file_runs_as_it_is(small: Path, here: None, fedapa: Call) -> None:
    assert fedapa("tune", small, "--method", METHODS, *FEW, "--out", "out").code == 0
    _, found = _found(Path("out"))
    tuned = load("out/tuned.toml")
    assert tuned.methods == ["local-tuned", "ditto-tuned"]
    assert tuned.data.validation == 0
    for name, row in best(found).items():
        base, own = settings_of(tuned, f"{name}-tuned")
        training = asdict(training_of(tuned, f"{name}-tuned"))
        assert base == name
        for key, value in row.settings.items():
            assert (training[key.removeprefix("training.")] if "." in key else own[key]) == value
    for verb in ("run", "sweep"):
        assert fedapa(verb, "out/tuned.toml", "--out", f"tuned-{verb}", "--set", "run.rounds=1").code == 0
    assert (Path("tuned-run") / "ditto-tuned-seed0" / "run.db").exists()


def _found(out: Path) -> tuple[Plan, list[TrialRow]]:
    plan, trials = stored(out)
    return plan, rows(out, plan, trials)


def test_variants_of_the_config_are_tuned_from_where_they_stand(small: Path, here: None, fedapa: Call) -> None:
    small.write_text(SMALL + "[method.mine]\nbase = 'ditto'\nlam = 0.5\ntraining = { batch = 8 }\n")
    answer = fedapa("tune", small, "--method", "mine", *FEW, "--set-space", "mine.lam=off", "--out", "out")
    assert answer.code == 0, answer.err
    own = check(tomllib.loads(Path("out/mine/trial002-seed0/config.toml").read_text()))
    assert settings_of(own, "trial002") == ("ditto", {"lam": 0.5})
    assert training_of(own, "trial002").batch == 8
    assert load("out/tuned.toml").method["mine-tuned"]["base"] == "ditto"


# -------------------------------------------------------------------------------------------------- failures, resumes


def sessions(run: Path) -> int:
    text = (run / "log.txt").read_text()
    return sum(word in line for line in text.splitlines() for word in ("started:", "resumed after"))


def test_killed_and_started_again_it_loses_nothing(small: Path, tmp_path: Path, here: None, fedapa: Call) -> None:
    small.write_text(SMALL.replace("rounds = 3", 'rounds = 3\nengine = "torch"'))
    _, whole = tune(plan_of(small), tmp_path / "whole", 1)
    out, words = tmp_path / "out", ("--method", METHODS, *FEW)
    for enough, jobs in ((1, 2), (4, 1)):
        with started("tune", small, *words, "--jobs", jobs, "--out", out) as killed:
            wait_for(lambda: len(_finished(out)) >= enough, killed)  # noqa: B023
            os.kill(killed.pid, signal.SIGKILL)  # the parent alone: its workers have to notice
            killed.wait()
        deadline = time.monotonic() + 30
        while any(run_folder.in_use(run) for run in run_folder.runs_under(out) if (run / "run.db").exists()):
            assert time.monotonic() < deadline, "a worker outlived its tuning"
            time.sleep(0.01)
    before = {run: sessions(run) for run in _finished(out)}
    answer = fedapa("resume", out, "--format", "json")
    assert answer.code == 0, answer.err
    assert {run: sessions(run) for run in before} == before  # what was finished is left alone
    found = json.loads(answer.out)["trials"]
    assert [(row["held"], row["settings"]) for row in found] == [(row.held, row.settings) for row in whole]
    assert (out / TUNED).read_bytes() == (tmp_path / "whole" / TUNED).read_bytes()


def _finished(out: Path) -> list[Path]:
    return [run for run in run_folder.runs_under(out) if run_folder.status(run) == "finished"]


def test_ctrl_c_says_how_to_go_on(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with started("tune", small, "--method", "local", "--trials", 8, "--jobs", 1, "--out", out) as one:
        wait_for(lambda: len(_finished(out)) >= 1, one)
        os.killpg(one.pid, signal.SIGINT)
        _, err = one.communicate(timeout=60)
    assert one.returncode == 3
    assert err.splitlines()[-2:] == ["error: interrupted", f"hint: `fedapa resume {out}` goes on"]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of runs that fail as long as they are in the set."""
    from fedapa.config import experiment

    names: set[str] = set()
    true_execute = experiment.execute

    def execute(path: Path, *rest: Any, **more: Any) -> Any:
        if path.name in names or path.parent.name in names:
            raise RunError(f"no room for {path.name}")
        return true_execute(path, *rest, **more)

    monkeypatch.setattr(experiment, "execute", execute)
    return names


def test_a_trial_that_fails_is_kept_with_its_reason(small: Path, here: None, fedapa: Call, broken: set[str]) -> None:
    words = ("tune", small, "--method", METHODS, *FEW, "--allocations", "0,1", "--out", "out")
    broken |= {"trial002-seed1", "trial000-seed0"}
    answer = fedapa(*words, "--format", "json")
    assert answer.code == 0
    found = json.loads(answer.out)["trials"]
    failed = [(row["method"], row["trial"], row["held"], row["reason"]) for row in found if row["state"] == "failed"]
    assert failed == [
        (name, trial, None, f"no room for {run}")
        for name in ("local", "ditto")
        for trial, run in ((0, "trial000-seed0"), (2, "trial002-seed1"))
    ]
    assert "failed: ditto trial 2: no room for trial002-seed1" in answer.err
    assert set(chosen(_found(Path("out"))[1]).values()) <= {1, 3}
    broken.clear()
    answer = fedapa("resume", "out", "--format", "json")  # failed trials are tried again, nothing else
    assert answer.code == 0
    assert {row["state"] for row in json.loads(answer.out)["trials"]} == {"finished"}
    assert {sessions(run) for run in run_folder.runs_under(Path("out"))} == {1}


def test_a_method_without_a_finished_trial_is_an_error(small: Path, here: None, fedapa: Call, broken: set[str]) -> None:
    broken.add("ditto")
    answer = fedapa("tune", small, "--method", METHODS, *FEW, "--out", "out")
    assert answer.code == 1
    assert "error: no trial of ditto finished" in answer.err
    assert load("out/tuned.toml").methods == ["local-tuned"]


def test_runs_that_another_process_plays_are_told(
    small: Path, here: None, fedapa: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def execute(path: Path, *rest: Any, **more: Any) -> Any:
            raise run_folder.InUse(f"{path} is in use")

        patch.setattr("fedapa.config.experiment.execute", execute)
        answer = fedapa("tune", small, "--method", "local", *FEW, "--out", "out")
    assert answer.code == 1
    assert "4 trials are not finished: another process has their runs" in answer.err
    assert fedapa("resume", "out").code == 0


def test_sites_of_ones_own_are_tuned_too(here: None, fedapa: Call, tmp_path: Path) -> None:
    config = write_hospitals(tmp_path)
    answer = fedapa("tune", config, "--method", METHODS, "--trials", 2, "--rounds", 1, "--out", "out")
    assert answer.code == 0, answer.err
    assert load("out/local/trial000-seed0/config.toml").sites.validation == 0.2  # type: ignore[union-attr]
    assert load("out/tuned.toml").sites == load(str(config)).sites


def test_more_trials_later_but_no_other_tuning_in_the_folder(small: Path, here: None, fedapa: Call) -> None:
    words = ("tune", small, "--method", "local", "--rounds", 2, "--out", "out")
    assert fedapa(*words, "--trials", 3).code == 0
    _, few = _found(Path("out"))
    assert fedapa(*words, "--trials", 5).code == 0
    _, more = _found(Path("out"))
    assert settings(more)[:3] == settings(few)
    assert len(more) == 5
    assert {sessions(run) for run in run_folder.runs_under(Path("out"))} == {1}
    for change, said in (
        (("--seed", 1, "--trials", 5), "its seed is 0, not 1"),
        (("--trials", 4), "holds 5 trials of every method"),
        (("--trials", 5, "--set", "training.batch=8"), "its config is another"),
        (("--trials", 5, "--set-space", "training.epochs=1,2"), "its space is another"),
        (("--trials", 5, "--rounds", 3), "its rounds is 2, not 3"),
    ):
        answer = fedapa(*words, *change)
        assert answer.code == 2
        assert said in answer.err


def test_one_tuning_at_a_time_in_a_folder(small: Path, tmp_path: Path, here: None) -> None:
    (tmp_path / "out").mkdir()
    with run_folder.lock(tmp_path / "out"), pytest.raises(run_folder.InUse):
        tune(plan_of(small), tmp_path / "out", 1)


def test_a_damaged_file_of_trials_is_told(tmp_path: Path, small: Path, fedapa: Call) -> None:
    save(tmp_path, plan_of(small), [Trial("local", 0, {})], [])
    assert stored(tmp_path) == (plan_of(small), [Trial("local", 0, {})])
    (tmp_path / NAME).write_text("{")
    with pytest.raises(InputError, match="cannot read"):
        stored(tmp_path)
    assert fedapa("resume", tmp_path).code == 2


def test_trials_whose_runs_another_process_plays_are_not_chosen(small: Path, tmp_path: Path) -> None:
    plan = plan_of(small)
    found = rows(tmp_path, plan, [Trial("local", 0, {})])
    assert [(row.state, row.held) for row in found] == [("unfinished", None)]
    assert best(found) == {}


def test_optuna_killed_between_two_batches_goes_on_with_the_same_trials(
    small: Path, tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    plan = plan_of(small, trials=8, search="optuna", rounds=1)
    _, whole = tune(plan, tmp_path / "whole", 1)
    assert len(settings(whole)) == 16
    played = pool.play

    def cut(parts: list[pool.Runs], workers: int, report: Any) -> None:
        played(parts[:3], workers, report)
        raise KeyboardInterrupt

    for _ in range(3):
        monkeypatch.setattr(pool, "play", cut)
        with pytest.raises(KeyboardInterrupt):
            tune(plan, tmp_path / "out", 1)
    monkeypatch.setattr(pool, "play", played)
    _, found = tune(plan, tmp_path / "out", 1)
    assert [(row.held, *pair) for row, pair in zip(found, settings(found), strict=True)] == [
        (row.held, *pair) for row, pair in zip(whole, settings(whole), strict=True)
    ]


def test_dry_run_writes_nothing(small: Path, fedapa: Call) -> None:
    answer = fedapa("tune", small, "--method", METHODS, "--dry-run", "--out", "out", "--format", "json")
    assert [(row["method"], row["searched"]) for row in json.loads(answer.out)] == [
        ("local", "training.epochs"),
        ("local", "training.lr"),
        ("ditto", "lam"),
        ("ditto", "training.epochs"),
        ("ditto", "training.lr"),
    ]
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--allocations", "0,x"), "--allocations 0,x is not a list of seeds"),
        (("--allocations", "0,1", "--seeds", "2"), "--seeds and --allocations mean the same"),
        (("--trials", "9", "--set-space", "training.lr=off"), "3 settings to try"),
        (("--space", "nowhere.toml"), "cannot read the search space nowhere.toml"),
        (("--trials", "0"), "--trials"),
    ],
)
def test_mistakes_write_nothing(words: tuple[str, ...], said: str, small: Path, fedapa: Call) -> None:
    answer = fedapa("tune", small, "--method", "local", "--out", "out", *words)
    assert answer.code == 2
    assert said in answer.err
    assert not Path("out").exists()
