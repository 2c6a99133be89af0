"""What a site can do alone, and gains that are told against it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command import Call
from fedapa.config.load import load
from fedapa.data.federated import ClientData, Split
from fedapa.data.tables import Table
from fedapa.errors import RunError
from fedapa.site.alone import NETWORK, WEIGHTS, alone
from fedapa.site.card_details import by_subgroup, calibration
from fedapa.site.measures import ACCURACY, RECALL, at_threshold, chosen_threshold, decided, measures_of, threshold_of
from fedapa.site.model_card import in_words
from fedapa.site.silo_scores import ALONE, PLAIN, TUNED, Scored, doubts, overall, table
from fedapa.training.objective import Classification
from hospitals import CONFIG


def write_linear(folder: Path, rows: int = 90) -> Path:
    """Two sites whose outcome is a line in ten columns: plain logistic regression has no better rival."""
    names, weights = [f"x{k}" for k in range(10)], np.linspace(-2, 2, 10)
    for seed, name in enumerate(("north", "south")):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(rows, 10))
        y = x @ weights + 0.3 * rng.normal(size=rows) > 0
        lines = [",".join([*(f"{v:.3f}" for v in row), "ill" if c else "fine"]) for row, c in zip(x, y, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([",".join([*names, "outcome"]), *lines]))
    text = CONFIG.replace('drop = ["patient"]\n', "").replace("lr = 0.05", "lr = 0.0005")
    (folder / "silo.toml").write_text(text)
    return folder / "silo.toml"


def test_a_badly_trained_local_is_no_rival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a rate of 0.0005 Local has learned nothing in 3 rounds; the site alone has logistic regression."""
    monkeypatch.chdir(tmp_path)
    found = alone(load(str(write_linear(tmp_path))), 0)
    assert [one.site for one in found] == ["north", "south"]
    for one in found:
        assert one.best[0].kind == "logistic regression"
        assert one.best[0].held > one.network[0].held
        assert one.network[0].kind == NETWORK
        assert one.network[0].settings["lr"] == pytest.approx(0.0015)  # three times the rate, as long as is tried
        assert one.plain[1].shape[1] == 2


def test_class_weights_are_chosen_on_held_out_rows_where_a_class_is_rare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(str(write_linear(tmp_path)))
    rare = load(str(tmp_path / "silo.toml"), changes=["objective.score=AUC"])
    fixed = load(str(tmp_path / "silo.toml"), changes=["objective.score=AUC", "objective.class_weights=none"])
    assert all("class_weights" not in one.network[0].settings for one in (*alone(config, 0), *alone(fixed, 0)))
    free = alone(rare, 0)
    for one, other in zip(free, alone(fixed, 0), strict=True):
        weighted = "class_weights" in one.network[0].settings
        assert (one.network[0].held > other.network[0].held) == weighted
    wanted = [{"site": "a", "network": {"settings": {"lr": 1, "epochs": 1, **WEIGHTS}}}]
    assert "--set objective.class_weights=balanced" in next(doubts([], wanted))


@pytest.mark.parametrize("steep", ["while tried", "on all rows"])
def test_rates_that_diverge_are_no_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steep: str) -> None:
    """A site alone is a federation of one: where it diverges, nobody is left, and the run ends with an error."""
    import fedapa.site.alone as module

    monkeypatch.chdir(tmp_path)
    config, real = load(str(write_linear(tmp_path))), module.simulate

    def diverging(method: object, task: Any, data: Any, *words: object, **more: object) -> object:
        if task.training.lr > 0.001 and (steep == "while tried" or len(data.clients) == 1):
            raise RunError("every upload was refused", "lower the learning rate")
        return real(method, task, data, *words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "simulate", diverging)
    for one in alone(config, 0):
        assert one.network[0].settings["lr"] == pytest.approx(0.0005)
        assert np.isfinite(one.network[1]).all()


def test_choices_do_not_see_test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedapa.site.alone as module

    monkeypatch.chdir(tmp_path)
    config, real = load(str(write_linear(tmp_path))), module.load_data

    def scrambled(*words: object) -> object:
        from dataclasses import replace

        data = real(*words)  # type: ignore[arg-type]
        clients = [replace(c, test=c.test._replace(x=-c.test.x, y=1 - c.test.y)) for c in data.clients]
        return replace(data, clients=tuple(clients))

    before = [[choice for choice, _, _ in one.found] for one in alone(config, 0)]
    monkeypatch.setattr(module, "load_data", scrambled)
    assert [[choice for choice, _, _ in one.found] for one in alone(config, 0)] == before


def test_silo_tells_gains_against_the_better_of_both(fedapa: Call, tmp_path: Path) -> None:
    write_linear(tmp_path)
    answer = fedapa("silo", "run", "silo.toml", "--out", "o", "--seeds", "1", "--deliver-anyway")
    assert answer.code == 0, answer.err
    assert "vs alone" in answer.out
    assert re.search(r"^│ alone .* – +│$", answer.out, re.M)  # nobody gains over itself
    assert "fedapa beside the better of tuned Local and a plain model, accuracy %: -" in answer.out
    assert "held-out rows ask for more training" in answer.out
    found = json.loads((tmp_path / "o" / "silo.json").read_text())
    assert found["gain over"] == ALONE
    assert {row["method"] for row in found["sites"]} == {"local", "fedapa", TUNED, PLAIN, ALONE}
    assert {one["kind"] for one in found["alone"]} == {"logistic regression"}
    card = (tmp_path / "o" / "sites" / "north" / "site-model" / "MODEL_CARD.md").read_text()
    assert "| alone, plain model |" in card
    assert "by joining over the better of the two tuned ways alone: -" in card
    for symbol in ("θ", "A_i", "φ"):
        assert symbol not in card


def scored(method: str, seed: int, value: float, rows: int = 40, site: str = "a") -> Scored:
    return Scored(method, seed, site, rows, 0.25, {"accuracy": value, "auc": value})


def test_gains_are_over_the_best_alone_where_it_was_tried() -> None:
    runs = [scored(m, s, v) for s in range(3) for m, v in (("local", 0.5), ("x", 0.7), (ALONE, 0.8 + 0.01 * s))]
    row = next(row for row in table(runs) if row["method"] == "x")
    assert row["accuracy gain"].mean == pytest.approx(-0.11)
    whole = next(row for row in overall(runs) if row["method"] == "x")
    assert (whole["gain"], whole["lose"], whole["unclear"]) == (0, 1, 0)
    without = table([s for s in runs if s.method != ALONE])
    assert next(row for row in without if row["method"] == "x")["accuracy gain"].mean == pytest.approx(0.2)


def test_tiny_sites_have_no_interval_and_a_warning() -> None:
    runs = [scored("x", s, 1.0 - 0.1 * s, rows=3, site="small") for s in range(4)]
    (row,) = table(runs)
    assert (row["accuracy"].low, row["auc"].low) == (None, None)
    assert next(doubts(runs)).startswith("'small': fewer than 10 train rows or 5 test rows; no interval")
    assert not list(doubts([scored("x", 0, 0.5)]))


def test_splits_with_the_same_test_rows_have_the_interval_of_those_rows() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    p = np.clip(0.5 + 0.3 * (y - 0.5) + rng.normal(0, 0.2, 60), 0, 1)
    both = np.column_stack([1 - p, p])
    value = ACCURACY.of(y, both)
    runs = [Scored("x", s, "a", 60, 0.25, {"accuracy": value, "auc": 0.8}, {}, (y, both)) for s in range(5)]
    (row,) = table(runs)
    assert row["accuracy"].low < row["accuracy"].mean - 0.05  # five equal splits alone would show no spread


def test_thresholds_and_recall_by_hand() -> None:
    y, p = np.array([0, 0, 0, 0, 1, 1]), np.array([0.01, 0.02, 0.03, 0.2, 0.1, 0.3])
    both = np.column_stack([1 - p, p])
    assert threshold_of(y, both) == pytest.approx((0.1 + 0.03) / 2)  # finds both, flags one of four
    assert threshold_of(np.array([1, 0]), both[:2]) == pytest.approx(0.005)  # all rows are flagged
    assert decided(both, 0.1).tolist() == [0, 0, 0, 1, 1, 1]
    assert decided(both, None).tolist() == [0] * 6
    (recall,) = at_threshold([RECALL], 0.1)
    assert (recall.of(y, both), RECALL.of(y, both)) == (1.0, 0.0)
    names = [m.name for m in measures_of(Classification(score="AUC"))]
    assert names == ["auc", "average precision", "recall", "brier", "accuracy"]
    assert [m.name for m in measures_of(Classification())] == ["accuracy", "auc"]


def test_a_threshold_is_chosen_on_held_out_rows_where_there_are_some() -> None:
    train = Split(torch.tensor([[0.9], [0.8]]), torch.tensor([0, 1]))
    held = Split(torch.tensor([[0.2], [0.4], [0.1]]), torch.tensor([0, 1, 0]))
    measures = measures_of(Classification(score="AUC"))

    def predict(x: torch.Tensor):
        return np.column_stack([1 - x.numpy()[:, 0], x.numpy()[:, 0]]).astype(np.float64)

    found = chosen_threshold(measures, ClientData("a", train, train, held), predict)
    assert (found.value, found.chosen_on) == (pytest.approx(0.3), "3 held-out rows")
    assert chosen_threshold(measures, ClientData("a", train, train), predict).chosen_on == "2 train rows"
    assert chosen_threshold(measures_of(Classification()), ClientData("a", train, train), predict) is None


def test_calibration_and_subgroups() -> None:
    y = np.array([0, 1] * 30)
    both = np.column_stack([np.full(60, 0.4), np.full(60, 0.6)])
    assert calibration(y, both, "ill").count("| 12 | 0.600 | 0.500 |") == 5
    cells = np.array(["f", "m"] * 30, dtype=object)
    said = by_subgroup("sex", Table(Path("a.csv"), {"sex": cells}, np.arange(60)), y, both, ACCURACY)
    assert "| f | 30 | 0.0 (0.0 to 11.6) |" in said
    assert "| m | 30 | 100.0 (88.4 to 100.0) |" in said


def test_symbols_in_words() -> None:
    assert in_words("θ, n") == "the parameters of the feature extractor, the number of train rows"
    assert in_words("generated ω") == "generated all parameters of the model"
    assert in_words("tuned model") == "tuned model"
