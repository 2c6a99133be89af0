"""Regression and objectives of one's own, from a loss by hand to the command line."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import fedapa as fa
from command import Call
from fedapa.core.scores import ACCURACY, R2, RMSE, Score, scores_from_json, scores_to_json
from fedapa.data.federated import target_scale, target_sums
from fedapa.errors import InputError
from fedapa.site.measures import measures_of
from fedapa.store import run_db
from fedapa.training.objective import Classification, Regression, make_objective
from fedapa.verify import LAWS
from fedapa.verify.case import Case

OWN = Path(__file__).parents[2] / "examples" / "poisson.py"
METHODS = ("local", "fedavg", "fedper", "fedapa", "fedapa-exact")
OUT, Y = torch.tensor([[1.0], [3.0], [0.0]]), torch.tensor([1.0, 1.0, 4.0])  # errors 0, 2 and -4


@pytest.mark.parametrize(
    ("loss", "wanted"), [("squared", [0, 4, 16]), ("absolute", [0, 2, 4]), ("huber", [0, 1.5, 3.5])]
)
def test_losses_by_hand(loss: str, wanted: list[float]) -> None:
    """Huber with delta 1: |e| - 1/2 beyond 1."""
    assert Regression(loss=loss).losses(OUT, Y).tolist() == wanted  # type: ignore[arg-type]
    assert float(Regression(loss=loss).mean_loss(OUT, Y)) == pytest.approx(sum(wanted) / 3)  # type: ignore[arg-type]


def test_the_primary_score_of_numbers_can_be_chosen() -> None:
    for name, first in (("RMSE", "RMSE"), ("MAE", "MAE"), ("R2", "R²")):
        objective = make_objective("regression", score=name).fitted(10.0, 2.0)
        assert (objective.primary.name, len(objective.scores)) == (first, 4)
        assert measures_of(objective, 0)[0].name == first
        assert repr(objective) == repr(Regression().fitted(10.0, 2.0))  # runs of before go on; scores are compared too
    with pytest.raises(InputError, match="score"):
        make_objective("regression", score="AUC")


def test_scores_by_hand() -> None:
    """Squared errors 0, 4 and 16; the mean of y is 2, so that its squares sum to 1 + 1 + 4."""
    found = Regression().measure(OUT, Y)
    values = {score.name: score.value(*found[score.name]) for score in Regression.scores}
    assert values == {
        "RMSE": pytest.approx((20 / 3) ** 0.5), "MAE": pytest.approx(2), "R²": pytest.approx(1 - 20 / 6),
        "loss": pytest.approx(20 / 3),
    }  # fmt: skip


def test_scores_are_in_the_unit_of_the_target() -> None:
    """A target of mean 10 and deviation 2: outputs 0 and 1 say 10 and 12."""
    objective = Regression().fitted(10.0, 2.0)
    outputs, y = torch.tensor([[0.0], [1.0]]), torch.tensor([10.0, 16.0])
    assert objective.predictions(outputs)[:, 0].tolist() == [10, 12]
    assert objective.measure(outputs, y)["MAE"] == (4.0, 2)
    assert objective.losses(outputs, y).tolist() == [0, 4]  # (1 - 3)^2, in deviations
    assert objective.outputs_of(objective.predictions(outputs)).tolist() == outputs.tolist()


def test_a_score_knows_its_direction() -> None:
    assert (ACCURACY.sign, RMSE.sign) == (1, -1)
    assert (ACCURACY.best([1.0, math.nan, 3.0]), RMSE.best([2.0, math.nan, 3.0])) == (2, 0)
    assert (ACCURACY.text(83.256), RMSE.text(0.25), RMSE.text(None)) == ("83.26 %", "0.250", "–")
    assert math.isnan(R2.value(1.0, 0.0))  # targets that do not differ


def test_scores_survive_json_without_infinities() -> None:
    text = json.dumps(scores_to_json((ACCURACY, RMSE, R2)))
    assert "Infinity" not in text
    assert scores_from_json(json.loads(text)) == (ACCURACY, RMSE, R2)


def test_targets_are_scaled_by_the_sums_of_all_sites() -> None:
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([9.0])]
    mean, std = target_scale([target_sums(y) for y in parts])
    assert (mean, std) == (pytest.approx(4.0), pytest.approx(float(np.std([1, 2, 9]))))
    assert target_scale([target_sums(torch.full((3,), 7.1))])[1] == 1.0


def test_the_loss_is_recorded_beside_the_accuracy() -> None:
    logits, y = torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    found = Classification().measure(logits, y)
    assert found == {"accuracy": (1, 2), "loss": (pytest.approx(2 * math.log(2)), 2)}


# ------------------------------------------------------------------------------------------------------ from Python


def numbers(clients: int = 4, seed: int = 0) -> fa.Federated:
    """Two groups of clients with a slope each, targets around 50."""
    random = np.random.default_rng(seed)
    slopes = random.normal(size=(2, 5))
    found = []
    for i in range(clients):
        x = random.normal(size=(90, 5)).astype(np.float32)
        y = (50 + 10 * (x @ slopes[i % 2] + 0.1 * random.normal(size=90))).astype(np.float32)
        found.append((x[:60], y[:60], x[60:], y[60:]))
    return fa.from_arrays(found)


@pytest.mark.parametrize("name", METHODS)
def test_fit_learns_numbers(name: str) -> None:
    data = numbers()
    assert (data.classes, data.target[0] == pytest.approx(50, abs=10)) == (0, True)
    result = fa.fit(name, data, "mlp", rounds=10, lr=0.05, batch=16, epochs=2)
    first, last = (result.curve("after")[k].pooled for k in (0, -1))
    spread = float(torch.cat([client.test.y for client in data.clients]).std())
    assert last < first
    assert last < (0.5 if name != "fedavg" else 1.0) * spread  # one model for two groups cannot do much
    assert result.curve("after", score="R²")[-1].pooled > (0.7 if name != "fedavg" else 0)
    with pytest.raises(InputError, match="score is 'accuracy'"):
        result.curve(score="accuracy")


def test_classes_and_numbers_are_told_apart() -> None:
    with pytest.raises(InputError, match="labels of arrays are numbers, not classes"):
        fa.fit("local", numbers(), "mlp", rounds=1, objective="classification")
    with pytest.raises(InputError, match="FedProto needs classes"):
        fa.fit("fedproto", numbers(), "mlp", rounds=1)
    digits = fa.load("digits", "iid", clients=2)
    assert fa.fit("local", digits, "mlp", rounds=1, objective="regression").task.objective.primary == RMSE


def test_an_objective_has_settings_in_their_range() -> None:
    with pytest.raises(InputError, match=r"Regression.delta is -1"):
        make_objective("regression", delta=-1.0)
    with pytest.raises(InputError, match="objective regression has no setting 'gamma'"):
        make_objective("regression", gamma=1.0)
    with pytest.raises(InputError, match="unknown objective 'regresion'"):
        make_objective("regresion")
    with pytest.raises(InputError, match="cannot be imported"):
        make_objective("nowhere.py:Poisson")
    with pytest.raises(InputError, match="has no 'Binomial'"):
        make_objective(f"{OWN}:Binomial")


# -------------------------------------------------------------------------------------------------- one's own objective


def test_one_s_own_objective_is_short() -> None:
    assert len(OWN.read_text().splitlines()) < 40


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", METHODS)
def test_laws_with_one_s_own_objective(name: str, law: str) -> None:
    LAWS[law](Case(fa.make(name), objective=make_objective(f"{OWN}:Poisson")))


# ------------------------------------------------------------------------------------------------ from the command line


def write_sites(folder: Path, counts: bool = False) -> Path:
    """Three sites with a table each: two columns, and a number or a count to predict."""
    random = np.random.default_rng(3)
    for k, name in enumerate(("north", "south", "west")):
        x = random.normal(size=(80, 2))
        y = x[:, 0] * (k + 1) + x[:, 1]
        y = random.poisson(np.exp(0.5 * y.clip(-3, 3))) if counts else 100 + 5 * y
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["a", "b", "y"], *zip(*x.T.round(4), y.round(3), strict=True)])
    config = folder / "sites.toml"
    config.write_text(
        'methods = ["local", "fedavg", "fedapa"]\nseeds = [0, 1, 2]\n'
        '[sites]\nfiles = ["north.csv", "south.csv", "west.csv"]\nlabel = "y"\n'
        '[objective]\nname = "regression"\n[model]\nname = "mlp"\n'
        "[training]\nbatch = 16\nlr = 0.03\n[run]\nrounds = 8\nparticipation = 1.0\n"
    )
    return config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_sites(tmp_path)


def test_run_compare_report(config: Path, fedapa: Call) -> None:
    answer = fedapa("run", config, "--out", "out")
    assert answer.code == 0, answer.err
    assert "after RMSE" in answer.out
    assert "Lowest RMSE:" in answer.out
    assert "%" not in answer.out.replace("95 %", "")
    rows = json.loads(fedapa("compare", "out", "--format", "json").out)["methods"]
    assert {row["score"]["name"] for row in rows} == {"RMSE"}
    best = next(row for row in rows if row["standing"] == "best")
    assert all(best["after_last"] <= row["after_last"] for row in rows)
    alone = next(row for row in rows if row["method"] == "local")
    for row in rows:
        if row["gain_points"] is not None:
            assert (row["gain_points"] > 0) == (row["gain"][0] > row["gain"][2]) or row["gain"][0] == row["gain"][2]
    assert alone["worst_client"] >= alone["after_last"]  # of an error, the worst is the largest
    assert fedapa("report", "out", "--out", "report.html").code == 0
    page = Path("report.html").read_text()
    assert "test RMSE" in page
    assert "accuracy" not in page.lower().replace("accuracy weighs", "")
    with run_db.reading(Path("out/local-seed0/run.db")) as db:
        assert [score.name for score in run_db.scores_of(db)] == ["RMSE", "MAE", "R²", "loss"]
        assert run_db.curve(db, "after", score="R²")[-1][1].pooled > 0.5


def test_sites_get_models_of_numbers(config: Path, fedapa: Call) -> None:
    answer = fedapa("silo", "run", config, "--out", "out", "--deliver", "fedapa")
    assert answer.code == 0, answer.err
    assert "RMSE" in answer.out
    card = Path("out/sites/north/site-model/MODEL_CARD.md").read_text()
    assert "Predicts `y` (a number)" in card
    assert "Gain in RMSE by joining over the better of the two tuned ways alone (above 0: less of it)" in card
    held, said = Path("out/sites/north/held-out.csv"), Path("out/sites/north/predictions.csv")
    answer = fedapa("predict", "out/sites/north/site-model", held)
    again = [row["y"] for row in csv.DictReader(answer.out.splitlines())]
    first = [row["y"] for row in csv.DictReader(said.read_text().splitlines())]
    truth = [float(row["y"]) for row in csv.DictReader(held.read_text().splitlines())]
    assert again == first
    assert np.corrcoef(truth, [float(value) for value in first])[0, 1] > 0.8
    dry = fedapa("site", "dry-run", config, "--site", "north")
    assert "sum of squares of the target" in dry.out
    assert "RMSE" in dry.out


def test_one_s_own_objective_from_the_command_line(tmp_path: Path, fedapa: Call) -> None:
    config = write_sites(tmp_path, counts=True)
    answer = fedapa("run", config, "--set", f"objective.name={OWN}:Poisson", "--seeds", "1", "--out", "out")
    assert answer.code == 0, answer.err
    assert "after deviance" in answer.out
    answer = fedapa("resume", "out")
    assert answer.code == 0, answer.err
    answer = fedapa("verify", "fedper", "--objective", f"{OWN}:Poisson")
    assert answer.code == 0, answer.err


def test_a_number_to_predict_is_noticed(config: Path, fedapa: Call) -> None:
    text = config.read_text().replace('[objective]\nname = "regression"\n', "")
    config.write_text(text)
    answer = fedapa("run", config)
    assert answer.code == 2
    assert 'objective.name = "regression"' in answer.err


def test_an_objective_that_is_none(config: Path, fedapa: Call) -> None:
    answer = fedapa("run", config, "--set", "objective.name=regresion")
    assert (answer.code, "--set objective.name=regresion: unknown objective" in answer.err) == (2, True)
    answer = fedapa("run", config, "--set", "objective.loss=quadratic")
    assert (answer.code, "Regression.loss is 'quadratic'" in answer.err) == (2, True)


def test_a_score_of_one_s_own_needs_no_code_to_be_read() -> None:
    (found,) = scores_from_json(scores_to_json((Score("deviance", better="lower", low=0.0),)))
    assert (found.sign, found.high) == (-1, math.inf)


# --- another primary score -----------------------------------------------------------------------


def test_the_primary_score_of_classes_can_be_chosen() -> None:
    from fedapa.training.objective import Classification

    assert repr(Classification()) == "Classification()"  # runs that began before go on
    assert [score.name for score in Classification().scores] == ["accuracy", "loss"]
    judged = Classification(score="AUC")
    assert [score.name for score in judged.scores] == ["AUC", "accuracy", "loss"]
    assert judged.primary.name == "AUC"
    outputs, y = torch.tensor([[0.0, -2.0], [0.0, -1.0], [0.0, -0.5], [0.0, -3.0]]), torch.tensor([0, 1, 1, 0])
    found = judged.measure(outputs, y)
    assert found["AUC"] == (4.0, 4)  # all rows ranked right, and none of class 1 found
    assert found["accuracy"] == (2, 4)
    assert judged.measure(outputs, torch.zeros(4, dtype=torch.int64))["AUC"] == (0.0, 0.0)  # one class: no AUC
    p = torch.softmax(outputs.double(), 1)[:, 1]
    brier = float((p - y.double()).square().mean())
    assert Classification(score="Brier").measure(outputs, y)["Brier"] == (pytest.approx(4 * brier), 4)
    with pytest.raises(InputError, match="score"):
        Classification(score="recall")  # type: ignore[arg-type]


def test_auc_is_the_headline_of_run_and_compare(tmp_path: Path, fedapa: Call) -> None:
    from hospitals import write_hospitals

    write_hospitals(tmp_path)
    words = ("run", "silo.toml", "--out", "o", "--set", "objective.score=AUC", "--seeds", "1")
    assert fedapa(*words).code == 0
    shown = fedapa("compare", "o")
    assert "after AUC" in shown.out
    row = json.loads(fedapa("compare", "o", "--format", "json").out)["methods"][0]
    assert row["score"]["name"] == "AUC"
    assert 0 < row["after_last"] <= 1
