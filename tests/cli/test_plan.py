"""fedapa plan: exact bytes without large tensors, time within a limit, for large models and many clients."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedapa as fa
from command import Call
from fedapa.data.federated import Federated
from fedapa.methods.catalogue import METHODS, make
from fedapa.simulation import make_task
from fedapa.sweep import estimate

MIB = 2**20


@pytest.fixture(scope="module")
def thirty() -> Federated:
    return fa.load("digits", "iid", clients=30, min_train=1, min_test=0)


@pytest.mark.parametrize("name", METHODS)
def test_bytes_of_more_clients_and_of_a_larger_model_are_extrapolated_exactly(
    name: str, thirty: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty clients by eight to twenty-four, and a model by two tiny ones, beside what is really sent."""
    task = make_task(thirty, "mlp", rounds=3, engine="torch")
    method, sample = make(name), thirty.clients[0].train.x[0]
    real = estimate._counted(method, task, sample)
    steps = 0.02 if name.startswith("pfedhn") else 1e-6  # the size of its embeddings is rounded
    assert [*estimate.sizes(method, task, sample)] == pytest.approx([*real], rel=steps)
    monkeypatch.setattr(estimate, "SMALL", 1)
    close = 0.1 if name.startswith("pfedla") else steps  # its hypernetworks also grow with the number of layers
    assert [*estimate.sizes(method, task, sample)] == pytest.approx([*real], rel=close)


def test_a_million_clients_and_a_hundred_million_parameters_are_only_counted(
    monkeypatch: pytest.MonkeyPatch, thirty: Federated
) -> None:
    """FedAPA's server would hold 400 TB here; the largest tensor that is made holds a few kilobytes."""
    largest = _watch_allocations(monkeypatch)
    task = make_task(thirty, "mlp", rounds=3, engine="torch")
    many = replace(task, sizes=torch.full((10**6,), 50), names=())
    monkeypatch.setattr(type(task), "P", property(lambda self: 10**8 if self.model is task.model else _P(self)))
    began = time.perf_counter()
    found = estimate.sizes(make("fedapa"), many, thirty.clients[0].train.x[0])
    assert time.perf_counter() - began < 10
    assert found.down == pytest.approx(4e8)
    assert found.server == pytest.approx(4 * 10**14 + 4 * 10**12, rel=0.01)  # theta [M, P] and A [M, M]
    assert max(largest) < MIB


def _P(task: fa.Task) -> int:
    return task.model.theta_size


def _watch_allocations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every tree that is counted, which are all states and messages."""
    seen = [0]
    usual = estimate.count_bytes
    monkeypatch.setattr(estimate, "count_bytes", lambda tree: seen.append(usual(tree)) or usual(tree))
    return seen


class Slow(nn.Module):
    """A model whose batches take a tenth of a second each."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        return self.head(torch.relu(self.body(x.flatten(1))))


def test_time_is_kept_to_its_budget_and_counts_all_batches(thirty: Federated) -> None:
    one = fa.load("digits", "iid", clients=2)  # 719 samples each: 120 batches of 12 in two epochs
    task = make_task(one, Slow, fa.Training(batch=12, epochs=2, lr=0.01), 50, engine="torch")
    began = time.perf_counter()
    found = estimate.seconds(fa.FedAvg(), task, one, 1.0)
    assert time.perf_counter() - began < 4
    batches = 2 * -(-len(one.clients[0].train.y) // 12)
    assert found.training == pytest.approx(0.1 * batches, rel=0.3)


def test_a_round_is_its_clients_over_its_workers() -> None:
    from fedapa.rounds.round_plan import Plan

    found = estimate.Seconds(training=2.0, other=1.0, server=0.5, rows=100)
    assert estimate.per_round(found, 1000, 10, Plan(5, (1.0, 1.0)), 1) == pytest.approx(10 * 3.0 + 0.5)
    assert estimate.per_round(found, 1000, 10, Plan(5, (1.0, 1.0)), 5) == pytest.approx(10 * 3.0 / 5 + 0.5)
    half = Plan(5, (0.5, 0.5), evaluate_every=2)
    assert estimate.per_round(found, 1000, 10, half, 1) == pytest.approx(10 * (1.0 + 0.5) + 0.5)


def test_the_limit_is_for_all_methods_together(fedapa: Call, small: Path, tmp_path: Path) -> None:
    words = ("--set", "data.clients=4", "--method", "local,fedavg,pfedme", "--format", "json")
    rows = json.loads(fedapa("plan", small, *words, "--limit", "0.000001").out)["methods"]
    local, fedavg, pfedme = (row["s/round"] for row in rows)
    assert fedavg == pytest.approx(local, abs=0.011)  # guessed from Local's, by what the methods say of themselves
    assert pfedme == pytest.approx(5 * local, abs=0.06)


def test_relative_costs_follow_settings() -> None:
    assert make("fedem", components=6).relative_cost == 2 * make("fedem", components=3).relative_cost
    assert make("fedphp+ema").relative_cost == make("fedphp").relative_cost == 1.3
    assert make("local").relative_cost == 1.0


def test_a_sweep_is_checked_before_it_is_listed(fedapa: Call, small: Path, tmp_path: Path) -> None:
    assert fedapa("sweep", small, "--dry-run").code == 0
    for change, said in (
        ("data.source=cifar10", "no data files found"),
        ("model.name=lenet5", "needs square images"),
        ("data.min_train=10000", "train samples"),
        ("model.name=nowhere.py:net", "cannot be imported"),
    ):
        answer = fedapa("sweep", small, "--dry-run", "--set", change, "--data-dir", tmp_path)
        assert answer.code == 2, change
        assert said in answer.err


def test_cp_writes_to_standard_output(fedapa: Call) -> None:
    fedapa("cp", "demo", "file.toml")
    answer = fedapa("cp", "demo", "-")
    assert answer.out.splitlines()[2:] == Path("file.toml").read_text().splitlines()[2:]
    assert not Path("-").exists()


def test_a_log_without_a_terminal_has_lines_with_the_time_left(
    fedapa: Call, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedapa.cli import progress_lines

    assert "left" not in fedapa("run", small, "--method", "local", "--out", "quick").err  # not worth a line
    monkeypatch.setattr(progress_lines, "FIRST", 0.0)
    monkeypatch.setattr(progress_lines, "EVERY", 0.0)
    err = fedapa("run", small, "--method", "fedavg", "--out", "out").err
    lines = [line for line in err.splitlines() if "fedavg-seed0" in line]
    assert "fedavg-seed0 3/3" in lines[-1]
    assert any("left" in line and "all runs" in line for line in lines)
    assert " %" in lines[-1]
