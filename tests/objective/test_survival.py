"""Times until an event: Cox's partial likelihood, concordance, and the way from a file to a model that tells risks."""

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
from fedapa.core import survival
from fedapa.core.survival import concordance
from fedapa.site.cox_model import CoxRegression
from fedapa.training.objective import Survival, make_objective
from fedapa.verify import LAWS
from fedapa.verify.case import Case

METHODS = ("local", "fedavg", "fedapa", "fedapa-exact", "ifca")


def signed_times(count: int, seed: int = 0) -> np.ndarray:
    """Whole numbers, so that some are equal; about every third is censored."""
    rng = np.random.default_rng(seed)
    return np.ceil(rng.exponential(5, count)) * np.where(rng.random(count) < 0.65, 1.0, -1.0)


def test_losses_by_hand() -> None:
    """Three rows: events at 1 and 2, censored at 3. The loss of an event is over those still at risk."""
    outputs, y, e = torch.tensor([[2.0], [1.0], [0.0]]), torch.tensor([1.0, 2.0, -3.0]), math.e
    wanted = [math.log(e**2 + e + 1) - 2, math.log(e + 1) - 1, 0.0]
    np.testing.assert_allclose(Survival().losses(outputs, y).numpy(), wanted, rtol=1e-5)
    found = make_objective("survival").measure(outputs, y)
    assert found["concordance"] == (3.0, 3)
    assert found["loss"][0] == pytest.approx(sum(wanted))
    assert Survival().measure(-outputs, y)["concordance"] == (0.0, 3)
    assert Survival().measure(outputs, torch.tensor([1.0, -0.5, -3.0]))["concordance"] == (1.0, 1)  # 0.5 is censored
    assert Survival().measure(outputs, -y.abs())["concordance"] == (0.0, 0)  # nothing happened: nothing to tell


def test_losses_and_concordance_are_their_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    y, risk = signed_times(60), np.random.default_rng(1).normal(size=60).round(1)
    monkeypatch.setattr(survival, "BLOCK", 7)
    time, wanted, right, pairs = np.abs(y), np.zeros(60), 0.0, 0
    for i in np.flatnonzero(y > 0):
        wanted[i] = np.log(np.exp(risk[time >= time[i]]).sum()) - risk[i]
        for j in range(60):
            if time[j] > time[i] or (time[j] == time[i] and y[j] < 0):
                pairs += 1
                right += 0.5 * (int(risk[i] > risk[j]) + int(risk[i] >= risk[j]))
    found = Survival().losses(torch.from_numpy(risk)[:, None], torch.from_numpy(y))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    assert concordance(y, risk) == (right, pairs)


def test_slopes_once_and_twice() -> None:
    """Second ones are asked for by methods that differentiate through a step."""
    y, start = torch.from_numpy(signed_times(12)), torch.randn(12, 1, dtype=torch.float64, requires_grad=True)

    def total(outputs: torch.Tensor) -> torch.Tensor:
        return Survival().losses(outputs, y).sum()

    assert torch.autograd.gradcheck(total, start)
    assert torch.autograd.gradgradcheck(total, start)


def test_far_apart_risks_stay_finite() -> None:
    outputs = torch.tensor([[-500.0], [500.0], [0.0]], requires_grad=True)
    found = Survival().losses(outputs, torch.tensor([3.0, 1.0, 2.0])).sum()
    (slope,) = torch.autograd.grad(found, outputs)
    assert found.isfinite()
    assert slope.isfinite().all()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", METHODS)
def test_laws(name: str, law: str) -> None:
    """Among them: clients that are trained together have the risk sets that each has alone."""
    LAWS[law](Case(fa.make(name), objective=Survival()))


def test_a_plain_model_finds_what_times_were_made_of() -> None:
    """Exponential times with the log risks 1, -1 and 0 of three columns; a penalty pulls them to 0."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(4000, 3))
    time, end = rng.exponential(np.exp(-(x @ [1.0, -1.0, 0.0]))), rng.exponential(2.0, 4000)
    y = np.where(time < end, time, -end)
    found = CoxRegression(1e-3).fit(x, y)
    np.testing.assert_allclose(found.coefficients, [1, -1, 0], atol=0.06)
    assert np.abs(CoxRegression(1e3).fit(x, y).coefficients).max() < 0.7
    right, pairs = concordance(y, found.predict(x))
    assert right / pairs > 0.75


def write_clinics(folder: Path) -> None:
    for seed, name in enumerate(("north", "south")):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(90, 2)).round(3)
        time, end = rng.exponential(np.exp(-1.5 * x[:, 0])), rng.exponential(2.0, 90)
        days, died = (100 * np.minimum(time, end)).round() + 1, np.where(time < end, "yes", "no")
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            rows = zip(x[:, 0], x[:, 1], days.astype(int), died, strict=True)
            csv.writer(file).writerows([["marker", "other", "days", "died"], *rows])


def inspected(fedapa: Call, *words: object) -> object:
    return fedapa("data", "inspect", *words, "--label", "days", "--event", "died", "--force")


def test_from_a_file_to_risks(tmp_path: Path, fedapa: Call) -> None:
    write_clinics(tmp_path)
    answer = inspected(fedapa, "north.csv", "south.csv")
    assert answer.code == 0, answer.err
    assert "'days' is a time until 'died'" in answer.out
    assert "events" in answer.out
    words = ("--seeds", 1, "--method", "fedavg", "--set", "run.rounds=5", "--format", "json")
    ran = fedapa("silo", "run", "site.toml", "--out", "o", *words)
    assert ran.code == 0, ran.err
    silo = json.loads(Path("o/silo.json").read_text())
    assert silo["primary"] == "concordance"
    scores = {row["method"]: row["concordance"]["mean"] for row in silo["overall"]}
    assert scores["plain model"] > 0.7
    assert scores["fedavg"] > 0.6
    told = fedapa("predict", "o/sites/north/site-model", "north.csv")
    header, *rows = csv.reader(told.out.splitlines())
    assert header == ["line", "log risk of died"]
    with open("north.csv", newline="", encoding="utf-8") as file:
        marker = [float(row["marker"]) for row in csv.DictReader(file)]
    assert np.corrcoef(marker, [float(value) for _, value in rows])[0, 1] > 0.7
    card = Path("o/sites/north/site-model/MODEL_CARD.md").read_text()
    assert "Predicts `log risk of died`" in card
    assert "concordance" in card


def test_sites_agree_on_the_event(tmp_path: Path, fedapa: Call) -> None:
    """A site that takes every time for an event is turned away before it trains."""
    write_clinics(tmp_path)
    for name in ("north", "south"):
        assert inspected(fedapa, f"{name}.csv", "--out", f"{name}.toml").code == 0
        assert fedapa("site", "schema", f"{name}.toml", "--out", f"{name}.json").code == 0
    made = fedapa("coordinator", "new-config", "north.json", "south.json", "--method", "fedapa")
    assert made.code == 0, made.err
    assert 'name = "survival"' in Path("federation.toml").read_text()
    dry = fedapa("site", "dry-run", "north.toml", "--run", "federation.toml")
    assert dry.code == 0, dry.err
    plain = fedapa(
        "data", "inspect", "south.csv", "--label", "days", "--drop", "died", "--out", "south.toml", "--force"
    )
    assert plain.code == 0, plain.err
    refused = fedapa("site", "dry-run", "south.toml", "--run", "federation.toml")
    assert refused.code == 2
    assert "the label is 'days' here and 'log risk of died' there" in refused.err


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [(3, "maybe", "'maybe' under 'died' (line 4 of north.csv) is neither yes nor no"), (2, "-5", "'-5' (line 4 of")],
)
def test_what_is_no_time_or_no_event(column: int, value: str, said: str, tmp_path: Path, fedapa: Call) -> None:
    write_clinics(tmp_path)
    lines = [line.split(",") for line in Path("north.csv").read_text().splitlines()]
    lines[3][column] = value
    Path("north.csv").write_text("\n".join(map(",".join, lines)))
    answer = inspected(fedapa, "north.csv", "south.csv")
    assert (answer.code, said in answer.err) == (2, True), answer.err
    assert "hint: write " in answer.err
