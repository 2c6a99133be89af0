"""From files to a model in use: inspect, dry run, silo run, predict, export."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from command import Call
from fedapa.analysis.personalized_model import last_checkpoint
from fedapa.config.experiment import assemble, read_config
from fedapa.config.load import load
from fedapa.data.federated import ClientData, Split
from fedapa.data.schema import Schema
from fedapa.errors import InputError
from fedapa.federation import manifest
from fedapa.methods.method import Method
from fedapa.site import dry_run, model_card, silo_scores
from fedapa.site.export_models import flaw_of
from fedapa.site.model_card import Facts
from fedapa.site.onnx_export import write_onnx
from fedapa.site.silo_scores import CLASSES, Scored, doubts, readable, table
from fedapa.site.site_model import read_model
from fedapa.training.task import Task
from hospitals import write_hospital, write_hospitals


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished silo run for all tests that only read it."""
    import sys

    from fedapa.cli import main

    folder = tmp_path_factory.mktemp("silo")
    config, before = write_hospitals(folder), sys.argv
    sys.argv = ["fedapa", "silo", "run", str(config), "--out", str(folder / "out")]
    try:
        main()
    finally:
        sys.argv = before
    return folder


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_silo_scores_every_site_method_and_split(done: Path) -> None:
    found = json.loads((done / "out" / "silo.json").read_text())
    assert [(row["site"], row["method"], row["splits"]) for row in found["sites"]] == [
        (site, method, 2)
        for site in ("north", "south")
        for method in ("local", "fedapa", "local, tuned", "plain model", "alone")
    ]
    assert len(found["runs"]) == 20
    assert json.loads((done / "out" / "schema.json").read_text())["columns"][0]["mean"] is None  # layout alone
    north = found["sites"][1]
    assert 0.6 < north["auc"]["mean"] <= 1.0
    assert north["auc"]["low"] is None  # three splits are needed
    assert 0 < north["accuracy"]["low"] < north["accuracy"]["mean"] < north["accuracy"]["high"] <= 1  # of its rows


def test_the_delivered_model_is_the_one_in_use(done: Path) -> None:
    run = done / "out" / "fedapa-seed0"
    method, task, data, plan = assemble(read_config(run))
    record = last_checkpoint(run, plan.rounds).records[1]
    model = read_model(done / "out" / "sites" / "south" / "site-model")
    assert {k: v.tolist() for k, v in model.state.items()} == {k: v.tolist() for k, v in record.state.items()}
    with torch.no_grad():
        logits = method.predict(task, record.state, data.clients[1].test.x)
    p, _, _ = model.predict(done / "out" / "sites" / "south" / "held-out.csv")
    np.testing.assert_allclose(p, torch.softmax(logits, 1).numpy(), atol=1e-5)


def test_predictions_of_held_out_rows(done: Path, fedapa: Call) -> None:
    site = done / "out" / "sites" / "north"
    answer = fedapa("predict", site / "site-model", site / "held-out.csv")
    assert answer.code == 0
    mine, theirs = rows_of(answer.out), rows_of((site / "predictions.csv").read_text())
    assert [row["p(ill)"] for row in mine] == [row["p(ill)"] for row in theirs]
    truth = [row["outcome"] for row in rows_of((site / "held-out.csv").read_text())]
    assert np.mean([row["outcome"] == was for row, was in zip(mine, truth, strict=True)]) > 0.6
    structured = json.loads(fedapa("predict", site / "site-model", site / "held-out.csv", "--format", "json").out)
    assert set(structured[0]["probabilities"]) == {"fine", "ill"}


def test_new_rows_need_no_label_and_may_be_strange(done: Path, fedapa: Call, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("ward,marker,age\nA,2.5,\nC,-1,40\n")
    model = done / "out" / "sites" / "north" / "site-model"
    answer = fedapa("predict", model, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert answer.code == 0
    assert "'C' was never seen in training" in answer.err
    likely = [float(row["p(ill)"]) for row in rows_of((tmp_path / "p.csv").read_text())]
    assert likely[0] > likely[1]


def test_the_card_tells_all(done: Path) -> None:
    card = (done / "out" / "sites" / "north" / "site-model" / "MODEL_CARD.md").read_text()
    for words in (
        "Predicts `outcome` (fine, ill)", "Trained by FedAPA in 3 rounds with south", "| alone (local) |",
        "| with the federation (fedapa) |", "Mean over 2 splits; the interval of the accuracy is the exact one",
        "of the mixture is this site's own",
        "The splits are too few or too alike to tell whether joining helped", "95 % intervals: exact for the accuracy",
        "Left the site in every round: the parameters of the feature extractor", "a simulation on one machine",
        "Stayed: the rows and the last layer (head)", "age: number, mean",
    ):  # fmt: skip
        assert words in card


def test_a_card_of_many_sites_names_the_first_and_the_heaviest() -> None:
    sites = [f"school {k}" for k in range(65)]
    weights = {name: 0.001 * k for k, name in enumerate(sites)}
    facts = Facts("school 0", "fedapa", "FedAPA", "", "", 1, [9], [9], {}, weights, sites)
    purpose, mixed = model_card._purpose(facts, Schema((), "score", {})), model_card._weights(facts)
    assert "school 12 and 52 more;" in purpose
    assert mixed.count("| school") == 12
    assert "| school 64 | 0.064 |" in mixed
    assert "The 52 others have 0.052 or less each." in mixed


def test_a_card_lists_weights_that_differ_by_more_than_chance() -> None:
    """Two sites that swap their weights from split to split say nothing; one that is always heavier does."""
    by_split = {
        "me": [0.4] * 4,
        "a|b": [0.3, 0.29, 0.31, 0.3],
        "c": [0.1, 0.2, 0.11, 0.19],
        "d": [0.2, 0.12, 0.18, 0.11],
    }
    weights = {name: shares[0] for name, shares in by_split.items()}
    facts = Facts("me", "fedapa", "FedAPA", "", "", 1, [90], [30], {}, weights, list(weights))
    told = model_card._weights(facts._replace(by_split=by_split))
    assert "Over 4 splits, these weights differ from an even 20.0% by more than chance" in told
    assert told.count("\n|") == 3  # the head and one site
    assert "| a\\|b | 0.300 |" in told
    alike = {**by_split, "a|b": by_split["c"][::-1]}
    assert "no other site's weight differs" in model_card._weights(facts._replace(by_split=alike))
    assert model_card._weights(facts).count("\n|") == 5  # of one run, nobody knows chance: all, and what they are not


def test_sites_that_learned_their_rows_by_heart_are_named() -> None:
    def local(site: str, name: str) -> Scored:
        return Scored("local", 0, site, 40, 0.25, {name: 0.6}, {name: 0.95})

    two = list(silo_scores.doubts([local("a", "auc"), local("b", "auc")]))
    assert [note.partition(":")[0] for note in two] == [
        f"{site} alone has AUC 0.95 on its train rows and 0.60 on its test rows" for site in "ab"
    ]
    longer = [{"site": "a", "network": {"settings": {"lr": 0.1, "epochs": 40}}}]
    notes = list(silo_scores.doubts([local("a", "auc"), local("b", "auc")], longer, trained=1.0))
    assert ["held-out rows ask for more training" in note for note in notes] == [True, False]
    assert notes[1].startswith("b alone has AUC")  # nobody is told to train both longer and shorter
    (many,) = silo_scores.doubts([local(f"s{k}", "R²") for k in range(20)])
    assert many.startswith("'s0', 's1'")
    assert "and 12 more alone do better on their train rows (s0: R² 0.95" in many


def test_intervals_of_a_site_are_made_once_for_the_numbers_and_once_for_its_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    of = silo_scores._spread
    monkeypatch.setattr(silo_scores, "_spread", lambda measure, mine: made.append(1) or of(measure, mine))
    values = {measure.name: 0.5 for measure in CLASSES}
    names = [f"s{k}" for k in range(20)]
    scored = [Scored("local", k, name, 40, 0.25, values) for k in range(3) for name in names]
    silo_scores.as_dict(scored)
    assert len(made) == len(names) * len(CLASSES)
    made.clear()
    model_card._scores(Facts("s0", "local", "Local", "", "", 1, [9], [9], {}, {}, names), scored)
    assert len(made) == len(CLASSES)


def test_there_is_no_pickle(done: Path) -> None:
    files = sorted(path.name for path in (done / "out" / "sites" / "north" / "site-model").iterdir())
    assert files == ["MODEL_CARD.html", "MODEL_CARD.md", "model.json", "model.safetensors", "preprocessing.json"]


def test_export_by_name_and_number(done: Path, fedapa: Call, tmp_path: Path) -> None:
    run = done / "out" / "fedapa-seed0"
    assert fedapa("export", run, "--client", "south", "--out", tmp_path / "a").code == 0
    assert fedapa("export", run, "--client", "1", "--out", tmp_path / "b").code == 0
    delivered = done / "out" / "sites" / "south"
    for name in ("model.safetensors", "preprocessing.json"):
        same = {(folder / "site-model" / name).read_bytes() for folder in (tmp_path / "a", tmp_path / "b", delivered)}
        assert len(same) == 1
    wrong = fedapa("export", run, "--client", "west")
    assert (wrong.code, wrong.err.splitlines()[1]) == (2, "hint: clients: north, south")


def test_onnx_says_of_raw_rows_what_predict_says(done: Path, fedapa: Call, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is an extra")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs what was written")
    assert fedapa("export", done / "out" / "fedapa-seed0", "--client", "0", "--out", tmp_path, "--onnx").code == 0
    (tmp_path / "new.csv").write_text("age,marker,ward\n40,2.5,A\n,-1,B\n71.25,0.125,C\n33,,\n")
    p, _, _ = read_model(tmp_path / "site-model").predict(tmp_path / "new.csv")
    session = runtime.InferenceSession(str(tmp_path / "site-model" / "model.onnx"))
    assert [one.name for one in session.get_inputs()] == ["age", "marker", "ward"]
    nan = float("nan")
    rows = {
        "age": np.array([[40.0], [nan], [71.25], [33.0]]),
        "marker": np.array([[2.5], [-1.0], [0.125], [nan]]),
        "ward": np.array([["A"], ["B"], ["C"], [""]], dtype=object),
    }
    found, said = session.run(None, rows)
    np.testing.assert_allclose(found, p, atol=1e-6)
    assert said.tolist() == [("fine", "ill")[k] for k in p.argmax(1)]
    about = session.get_modelmeta().custom_metadata_map
    assert (json.loads(about["classes"]), "threshold" in about) == (["fine", "ill"], False)
    cut = float(np.sort(p[:, 1])[-2:].mean())  # between the two highest: one row is above it
    kept = json.loads((tmp_path / "site-model" / "model.json").read_text()) | {"threshold": cut}
    (tmp_path / "site-model" / "model.json").write_text(json.dumps(kept))
    session = runtime.InferenceSession(str(write_onnx(tmp_path / "site-model")))
    said = session.run(None, rows)[1].tolist()
    assert said == [("fine", "ill")[int(one >= cut)] for one in p[:, 1]]
    assert said.count("ill") == 1
    assert float(session.get_modelmeta().custom_metadata_map["threshold"]) == cut
    answer = fedapa("predict", tmp_path, tmp_path / "new.csv", "--format", "json")
    assert [row["class"] for row in json.loads(answer.out)] == said
    assert f"counts as ill from a probability of {cut:.3g} on (the threshold of this model)" in answer.err
    other = fedapa("predict", tmp_path, tmp_path / "new.csv", "--threshold", "0")
    assert [line.split(",")[1] for line in other.out.splitlines()[1:]] == ["ill"] * 4


def test_a_site_model_that_was_changed(done: Path, fedapa: Call, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "site-model"
    shutil.copytree(done / "out" / "sites" / "north" / "site-model", copy)
    shutil.copy(done / "out" / "sites" / "south" / "site-model" / "model.safetensors", copy)
    held = done / "out" / "sites" / "north" / "held-out.csv"
    answer = fedapa("predict", copy, held)
    assert (answer.code, "is not the file that was written here" in answer.err) == (2, True)
    (copy / "model.json").unlink()
    assert "model.json does not exist" in fedapa("predict", copy, held).err
    assert "gone.csv does not exist" in fedapa("predict", done / "out", "gone.csv").err


def test_gains_are_paired_by_split() -> None:
    scored = [Scored(m, s, "a", 10, 0.25, {"accuracy": a, "auc": None}) for m, s, a in (
        ("local", 0, 0.5), ("local", 1, 0.9), ("x", 0, 0.6), ("x", 1, 1.0),
    )]  # fmt: skip
    row = table(scored)[1]
    assert row["accuracy gain"].mean == pytest.approx(0.1)
    assert row["accuracy gain"].sd == pytest.approx(0.0, abs=1e-9)
    assert row["accuracy gain"].low is None  # two splits
    low, high = stats.binomtest(8, 10).proportion_ci(0.95, method="exact")
    assert (row["accuracy"].low, row["accuracy"].high) == (pytest.approx(low), pytest.approx(high))
    assert row["auc"] is None


def intervals(rows: int, *right: int) -> tuple[str, str]:
    """A site's accuracy and AUC over splits with so many right answers, as they are printed."""
    shares = [{"accuracy": n / rows, "auc": n / rows} for n in right]
    (row,) = table([Scored("x", s, "a", rows, 0.25, share) for s, share in enumerate(shares)])
    return readable(row["accuracy"], 100, 1), readable(row["auc"])


def test_a_site_without_errors_has_an_exact_interval() -> None:
    assert intervals(69, 69, 69, 69) == ("100.0 (94.8 to 100.0)", "1.000")
    assert intervals(69, 69)[0] == "100.0 (94.8 to 100.0)"
    assert intervals(12, 0, 0, 0)[0] == "0.0 (0.0 to 26.5)"


def test_a_few_errors_in_many_splits_are_judged_by_the_rows() -> None:
    """Student's interval of ten splits, one of them with one error, would be 99.2 to 100."""
    assert intervals(69, *[69] * 9, 68)[0] == "99.9 (94.8 to 100.0)"


def test_a_site_with_one_test_row_has_no_interval() -> None:
    assert intervals(1, 1, 0, 1)[0] == "66.7"
    assert intervals(1, 1)[0] == "100.0"


def test_many_errors_are_judged_over_the_splits_and_within_0_and_100() -> None:
    """Accuracies 0.5, 0.9, 0.6: mean 0.667, sd 0.208, half width 4.303 * 0.208 * (1/3 + 1/3)^0.5 = 0.731."""
    assert intervals(20, 10, 18, 12)[0] == "66.7 (0.0 to 100.0)"
    assert intervals(100, 50, 52, 54)[0] == "52.0 (45.0 to 59.0)"


def test_a_site_that_learned_its_rows_by_heart_is_named() -> None:
    def scored(site: str, train: float | None, test: float | None) -> Scored:
        return Scored("local", 0, site, 10, 0.25, {"accuracy": 0.5, "auc": test}, {"auc": train})

    found = list(doubts([scored("a", 0.99, 0.7), scored("b", 0.8, 0.75), scored("c", None, 0.5)]))
    assert [line.split(":")[0] for line in found] == [
        "a alone has AUC 0.99 on its train rows and 0.70 on its test rows"
    ]


# --- dry run -------------------------------------------------------------------------------------


def test_dry_run_lists_what_would_leave(fedapa: Call, tmp_path: Path) -> None:
    config = write_hospitals(tmp_path)
    answer = fedapa("site", "dry-run", config, "--site", "south")
    assert answer.code == 0, answer.err
    agreed = manifest.read(tmp_path / "wire.json")
    inputs = 5  # age, age missing, marker, two wards
    theta = inputs * 64 + 64 + 64 * 64 + 64
    assert agreed["up"] == [[{"name": "theta", "shape": [theta], "dtype": "float32", "bytes": 4 * theta}]]
    assert "the server; others get mixtures of it" in answer.out
    assert "alone, 33 train and 11 test rows: accuracy" in answer.out
    manifest.check(agreed, "fedapa", {"theta": torch.zeros(theta)})
    several = fedapa("site", "dry-run", config)
    assert (several.code, "--site one of 'north', 'south'" in several.err) == (2, True)
    nothing = fedapa("site", "dry-run", config, "--site", "south", "--method", "local")
    assert "nothing leaves with local" in nothing.out


def test_dry_run_alone_trains_as_local_does(fedapa: Call, tmp_path: Path) -> None:
    words = ("site", "dry-run", write_hospitals(tmp_path), "--site", "north", "--format", "json")
    plain, other, same = (
        json.loads(fedapa(*words, *change).out)["alone"]
        for change in ((), ("--set", "method.local.training.lr=1e-6"), ("--set", "method.fedapa.training.lr=1e-6"))
    )
    assert other != plain == same


def test_dry_run_has_the_task_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedPHP counts with the share of sites per round; the native engine knows no tables, and says so."""
    source, seen, messages = str(write_hospitals(tmp_path)), [], dry_run._messages

    def spy(method: Method, task: Task, *rest: Any) -> Any:
        seen.append(task.participation)
        return messages(method, task, *rest)

    monkeypatch.setattr(dry_run, "_messages", spy)
    dry_run.dry_run(load(source, ["run.participation=0.5", "run.rounds=1"]), "fedphp", "north")
    assert seen == [0.5]
    with pytest.raises(InputError, match="native"):
        dry_run.dry_run(load(source, ["run.engine=native"]), "fedphp", "north")


def test_dry_run_of_an_agreed_scaling_names_the_sums(fedapa: Call, tmp_path: Path) -> None:
    config = write_hospitals(tmp_path)
    words = ("site", "dry-run", config, "--site", "north", "--set", "sites.scaling=federated", "--format", "json")
    found = json.loads(fedapa(*words).out)
    assert "count, sum and sum of squares of 2 numeric columns over the train rows" in found["wire"]["once"]
    assert 0 <= found["alone"]["auc"]["low"] <= found["alone"]["auc"]["mean"] <= found["alone"]["auc"]["high"] <= 1


# --- inspect -------------------------------------------------------------------------------------


def test_inspect_writes_a_config_that_runs(fedapa: Call, tmp_path: Path) -> None:
    write_hospitals(tmp_path)
    answer = fedapa("data", "inspect", "north.csv", "south.csv", "--label", "outcome")
    assert answer.code == 0, answer.err
    assert "column 'patient' identifies a row or a person" in answer.out
    assert "next: fedapa silo run site.toml" in answer.err
    again = fedapa("data", "inspect", "north.csv", "--label", "outcome")
    assert (again.code, "--force" in again.err) == (2, True)
    changes = ("--set", "run.rounds=10", "--seeds", "1", "--method", "fedavg")
    ran = fedapa("silo", "run", "site.toml", "--out", "out", *changes)
    assert ran.code == 0, ran.err
    assert (tmp_path / "out" / "sites" / "north" / "site-model" / "MODEL_CARD.md").is_file()


def test_a_model_that_predicts_one_class_is_not_delivered_unasked(fedapa: Call, tmp_path: Path) -> None:
    """After one round of FedAvg, everybody is fine."""
    write_hospitals(tmp_path)
    words = ("--set", "run.rounds=1", "--seeds", "1", "--method", "fedavg", "--out", "out")
    ran = fedapa("silo", "run", "silo.toml", *words)
    assert ran.code == 0, ran.err
    said = "the model of north is not delivered: it predicts 'fine' for all 60 own rows (train and test)"
    assert said in ran.err
    assert "--deliver-anyway" in ran.err
    card = tmp_path / "out" / "sites" / "north" / "site-model" / "MODEL_CARD.md"
    assert not card.exists()
    assert json.loads(fedapa("silo", "run", "silo.toml", *words, "--format", "json").out)["not delivered"].keys() == {
        "north",
        "south",
    }
    alone = fedapa("export", "out/fedavg-seed0", "--client", "north")
    assert (alone.code, said in alone.err) == (2, True)
    assert fedapa("silo", "run", "silo.toml", *words, "--deliver-anyway").code == 0
    assert "**Of no use as it is: it predicts 'fine' for all 60 own rows" in card.read_text()
    assert fedapa("export", "out/fedavg-seed0", "--client", "north", "--deliver-anyway").code == 0


def rows_with(y: list[int]) -> ClientData:
    half = len(y) // 2
    parts = [Split(torch.zeros(len(part), 1), torch.tensor(part)) for part in (y[:half], y[half:])]
    return ClientData("here", *parts)


def flaw(y: list[int], p: list[float]) -> str | None:
    """Of a model that gives the second class these probabilities."""
    found = np.array([[1 - value, value] for value in p])
    return flaw_of(rows_with(y), found[: len(y) // 2], found[len(y) // 2 :], ["fine", "ill"])


def test_which_models_are_of_no_use() -> None:
    y = [0, 0, 0, 1] * 10
    assert flaw([0] * 40, [0.1] * 40) is None  # one class is all there is
    assert "predicts 'fine' for all 40" in str(flaw(y, [0.1] * 40))
    ranked = [0.1, 0.1, 0.1, 0.4] * 10
    assert "predicts 'fine' for all 40 own rows (train and test); 'fine', the most frequent class, is 75.0%" in str(
        flaw(y, ranked)
    )
    assert "AUC 1.00" in str(flaw(y, ranked))  # whoever uses its probabilities can have it, and asks for it
    assert flaw(y, [0.1, 0.1, 0.6, 0.6] * 10) is None  # right on 75 %, as good as 'fine' for all, and ranks well
    assert "is right on 37.5% of 40" in str(flaw(y, [0.6, 0.1, 0.6, 0.6] * 5 + [0.6, 0.6, 0.1, 0.1] * 5))
    assert flaw(y, [0.1, 0.1, 0.1, 0.9] * 10) is None


def test_inspect_one_site(fedapa: Call, tmp_path: Path) -> None:
    write_hospital(tmp_path / "north.csv", 60, 1)
    found = json.loads(fedapa("data", "inspect", "north.csv", "--label", "outcome", "--format", "json").out)
    assert [row["column"] for row in found["columns"]["north"]] == ["patient", "age", "marker", "ward"]
    assert found["inputs"] == ["age", "age missing", "marker", "ward=A", "ward=B"]
    assert found["sites"][0]["rows"] == 60
    assert 'drop = ["patient"]' in (tmp_path / "site.toml").read_text()


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ("label", "silo run silo.toml --set sites.label=outcom", "there is no label column 'outcom'"),
        ("label", "data inspect north.csv --label outcom --force", "there is no label column 'outcom'"),
        ("text", "silo run silo.toml", "site south, column 'marker': text 'high' in line 46 of south.csv"),
        ("class", "silo run silo.toml", "site south has no row of class 'ill'"),
        ("column", "silo run silo.toml", "site south has no column 'ward'"),
        ("empty", "silo run silo.toml", "south.csv is an empty file"),
        ("empty", "data inspect south.csv --label outcome --force", "south.csv is an empty file"),
        ("huge", "silo run silo.toml", "line 46: a byte 0"),
        ("encoding", "silo run silo.toml", "line 46: byte 0xfc is not utf-8 text"),
        ("gone", "silo run silo.toml", "south.csv does not exist"),
        ("none", "silo run silo.toml --deliver fedper", "--deliver fedper: not one of the methods"),
        ("none", "silo run silo.toml --set sites.lable=x", "unknown key sites.lable"),
        ("none", "silo run silo.toml --set data.clients=3", "[data] and [sites] exclude each other"),
        ("none", "silo run demo", "has no section [sites]"),
        ("none", "site dry-run silo.toml --site west", "there is no site 'west'"),
        ("none", "silo run silo.toml --set sites.split=time", "split is 'time'"),
        ("none", "data inspect north.csv north.csv --label outcome --force", "two files have the same name"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(fedapa: Call, tmp_path: Path, change: str, words: str, said: str) -> None:
    write_hospitals(tmp_path)
    south = tmp_path / "south.csv"
    lines = south.read_text().splitlines()
    damage: dict[str, bytes | None] = {
        "text": "\n".join([*lines, "P9,50,high,A,ill"]).encode(),
        "class": "\n".join(line for line in lines if not line.endswith("ill")).encode(),
        "column": "\n".join(",".join(v for k, v in enumerate(line.split(",")) if k != 3) for line in lines).encode(),
        "empty": b"",
        "encoding": "\n".join([*lines, "P9,50,1,Ü,ill"]).lower().encode("latin-1"),
    }
    if change == "huge":
        with open(south, "r+b") as file:
            file.truncate(2 * 2**30)
    elif change == "gone":
        south.unlink()
    elif change in damage:
        south.write_bytes(damage[change] or b"")
    answer = fedapa(*words.split())
    assert answer.code == 2, answer.err
    assert answer.out == ""
    assert said in answer.err
    assert [line.split(":")[0] for line in answer.err.splitlines() if not line.startswith(" ")] == ["error", "hint"]


def test_sites_of_a_config_are_beside_it(fedapa: Call, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "down"
    folder.mkdir(parents=True)
    write_hospitals(folder)
    assert fedapa("plan", "deep/down/silo.toml", "--no-timing").code == 0


def test_an_edited_wire_json(fedapa: Call, tmp_path: Path) -> None:
    config = write_hospitals(tmp_path)
    words = ("site", "dry-run", config, "--site", "south", "--set", "run.rounds=1")
    assert fedapa(*words).code == 0
    first = (tmp_path / "wire.json").read_text()
    assert fedapa(*words).code == 0  # untouched: written again
    assert (tmp_path / "wire.json").read_text() == first
    (tmp_path / "wire.json").write_text(first.replace('"float32"', '"float64"'))
    answer = fedapa(*words)
    assert (answer.code, answer.out) == (2, "")
    assert "wire.json was edited after it was written" in answer.err


# --- images --------------------------------------------------------------------------------------


def write_photos(folder: Path, seed: int) -> None:
    """Dark and bright squares."""
    rng = np.random.default_rng(seed)
    for kind, level in (("bright", 200), ("dark", 60)):
        (folder / kind).mkdir(parents=True)
        for k in range(12):
            pixels = np.clip(rng.normal(level, 30, (6, 6)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{k}.png")


def test_images_from_folders_to_predictions(fedapa: Call, tmp_path: Path) -> None:
    for k, site in enumerate(("north", "south")):
        write_photos(tmp_path / site, k)
    assert fedapa("data", "inspect", "north", "south").code == 0
    ran = fedapa("silo", "run", "site.toml", "--out", "out", "--seeds", "1", "--method", "fedapa")
    assert ran.code == 0, ran.err
    answer = fedapa("predict", "out/sites/north/site-model", "north/bright")
    found = rows_of(answer.out)
    assert len(found) == 12
    assert sum(row["label"] == "bright" for row in found) >= 11
    Image.new("L", (9, 9)).save(tmp_path / "south" / "dark" / "odd.png")
    sizes = fedapa("silo", "run", "site.toml", "--seeds", "1", "--set", "sites.test=0.3")
    assert (sizes.code, "odd.png has 9x9 pixels, 0.png has 6x6" in sizes.err) == (2, True)
    (tmp_path / "south" / "dark" / "odd.png").write_bytes(b"no image")
    broken = fedapa("silo", "run", "site.toml", "--seeds", "1", "--set", "sites.test=0.3")
    assert (broken.code, "odd.png is not a readable image" in broken.err) == (2, True)
    assert len(broken.err.splitlines()) == 2


def test_export_of_a_run_on_a_shipped_data_set(fedapa: Call, small: Path, tmp_path: Path) -> None:
    assert fedapa("run", small, "--method", "fedavg", "--set", "run.rounds=1", "--out", "runs/x").code == 0
    answer = fedapa("export", "runs/x/fedavg-seed0", "--client", "2")
    assert answer.code == 0, answer.err
    from fedapa.config.experiment import assemble as put_together

    x = put_together(read_config(tmp_path / "runs/x/fedavg-seed0")).data.clients[2].test.x.numpy()
    np.savez(tmp_path / "new.npz", x=x)
    found = rows_of(fedapa("predict", "runs/x/fedavg-seed0/clients/2/site-model", "new.npz").out)
    assert len(found) == len(x)
    assert set(found[0]) == {"sample", "class", *(f"p({k})" for k in range(10))}


# --- a client that comes later -------------------------------------------------------------------


def test_onboarding_leaves_the_others_alone(done: Path, fedapa: Call, tmp_path: Path) -> None:
    run = done / "out" / "fedapa-seed0"
    write_hospital(tmp_path / "west.csv", 40, 3)
    before = (run / "run.db").read_bytes()
    answer = fedapa("onboard", run, "west.csv", "--rounds", "2", "--out", "joined", "--format", "json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert list(found["models"]) == ["alone", "mean model", "onboarded"]
    assert list(found["weights"]) == ["north", "south", "west"]
    assert sum(found["weights"].values()) == pytest.approx(1.0, abs=1e-4)
    assert (run / "run.db").read_bytes() == before
    from fedapa.store import checkpoint

    old = last_checkpoint(run, 3)
    new = checkpoint.newest(tmp_path / "joined" / "checkpoints")
    assert new is not None
    assert torch.equal(new.state.server["theta"][:2], old.state.server["theta"])
    assert torch.equal(new.state.server["A"][:2, :2], old.state.server["A"])
    assert [torch.equal(new.records[i].state["phi"], old.records[i].state["phi"]) for i in (0, 1)] == [True, True]
    assert fedapa("predict", "joined/site-model", "west.csv").code == 0
    assert found["verdict"]["use"] in ("alone", "joined")
    assert "verdict" in (tmp_path / "joined" / "site-model" / "MODEL_CARD.md").read_text().lower()
    assert fedapa("predict", "joined/alone-model", "west.csv").code == 0
    again = fedapa("onboard", run, "west.csv", "--name", "north")
    assert (again.code, "there is a client called 'north' already" in again.err) == (2, True)
    assert "west.csv does not exist" not in again.err
    assert fedapa("onboard", run, "gone.csv").code == 2


@pytest.mark.parametrize("name", ["../../../evil", "..", ".", "a/b", "a\\b", "/etc", "evil\nname", "", "-rf", "x" * 64])
def test_a_newcomer_cannot_be_named_out_of_its_folder(name: str) -> None:
    from fedapa.site.onboarding import check_client_name

    with pytest.raises(InputError, match="cannot name a client"):
        check_client_name(name)


def test_an_evil_newcomer_is_refused_by_the_command(done: Path, fedapa: Call, tmp_path: Path) -> None:
    write_hospital(tmp_path / "west.csv", 40, 3)
    answer = fedapa("onboard", done / "out" / "fedapa-seed0", "west.csv", "--name", "../../../evil")
    assert (answer.code, "cannot name a client" in answer.err) == (2, True)
    assert not (done / "out" / "fedapa-seed0" / "joined").exists()


def test_names_of_clients_lead_nowhere_else() -> None:
    from fedapa.site.export_models import folder_names

    assert folder_names(["../../evil", "north", "a/b", "..", "."]) == ["-..-evil", "north", "a-b", "site-3", "site-4"]


def test_predictions_hold_no_formulas() -> None:
    from fedapa.data.schema import Schema
    from fedapa.site.export_models import prediction_text

    names = ["=cmd|' /C calc'!A0", "-1", "+x", "@sum(a)", "\tx"]
    classes = {"=1+1": ("=1+1",), "-2": ("-2",)}
    rows = list(
        csv.reader(io.StringIO(prediction_text(names, Schema((), "=label", classes), np.eye(2)[[0, 1, 0, 1, 0]])))
    )
    assert rows[0][:2] == ["line", "'=label"]
    assert [row[0] for row in rows[1:]] == ["'=cmd|' /C calc'!A0", "-1", "'+x", "'@sum(a)", "'\tx"]  # -1 is a number
    assert [row[1] for row in rows[1:3]] == ["'=1+1", "-2"]
    numbers = prediction_text(["2"], Schema((), "y", {}), np.array([[-0.5]]))
    assert numbers == "line,y\n2,-0.5\n"


def test_the_verdict_names_the_better_model() -> None:
    from fedapa.site.measures import ACCURACY, AUC
    from fedapa.site.verdict import judge

    y = np.array([0, 1] * 20)
    flip = np.arange(40) % 9 == 0  # a few errors: without any, redrawn rows do not differ
    right, wrong = np.eye(2)[np.where(flip, 1 - y, y)], np.eye(2)[np.where(flip, y, 1 - y)]
    unsure = np.full((40, 2), 0.5)
    worse = judge([ACCURACY, AUC], y, right, wrong, "onboarded")
    assert (worse.use, worse.measure) == ("alone", ACCURACY)  # the primary score
    assert judge([AUC, ACCURACY], y, right, wrong, "onboarded").measure == AUC
    assert "the model trained alone is better: use that one" in worse.text
    better = judge([ACCURACY, AUC], y, wrong, right, "onboarded")
    assert (better.use, "is better than the model trained alone" in better.text) == ("joined", True)
    equal = judge([ACCURACY, AUC], y, unsure, unsure, "onboarded")
    assert (equal.use, "no gain is shown" in equal.text) == ("alone", True)
    one = judge([AUC, ACCURACY], y[1:2], right[1:2], wrong[1:2], "onboarded")
    assert (one.use, one.gain.low, one.measure) == ("alone", None, ACCURACY)  # a single row has no AUC
    assert worse.gain.low is not None
    assert worse.gain.low < worse.gain.mean < (worse.gain.high or 0) < 0
    some = right.copy()
    some[1] = [0.6, 0.4]
    ahead = judge([ACCURACY], y, some, right, "onboarded")
    assert (ahead.use, "by less than chance" in ahead.text) == ("joined", True)  # one row more is no proof


def test_a_report_of_own_data_has_a_title_and_names(done: Path) -> None:
    from fedapa.analysis.run_reader import class_names, gather

    (scenario,) = gather(done / "out").scenarios
    assert scenario.title == "own data: outcome · 2 clients"
    assert class_names(scenario.first) == ["fine", "ill"]
    beside = ["beside the better of tuned Local and a plain model" in note for note in scenario.notes]
    assert any(beside)
    assert beside == sorted(beside, reverse=True)  # before doubts
