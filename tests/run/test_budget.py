"""Disk and memory of long runs with many clients: what `fedapa plan` tells, and that a run keeps to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedapa.bench import flat
from fedapa.bench.flat import BUDGETS, Budget, Watch, tables
from fedapa.methods.catalogue import make
from fedapa.rounds import round_log
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import make_task, simulate
from fedapa.store import checkpoint
from fedapa.sweep import estimate
from fedapa.training.settings import Training

LIBRARIES = 400e6  # bytes of Python and torch
TENTH = (0.1, 0.1)


@pytest.mark.parametrize("name", ["fedapa", "fedavg", "fedper"])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_long_runs_of_many_clients_are_within_the_budget(name: str, budget: Budget) -> None:
    data = tables(30)
    task = make_task(data, "mlp", rounds=budget.rounds, engine="torch")
    many = replace(task, sizes=torch.full((budget.clients,), 50), names=())
    found = estimate.sizes(make(name), many, data.clients[0].train.x[0])
    assert estimate.disk(found, many, Plan(budget.rounds, TENTH), True) < budget.disk * 1e6
    assert budget.memory is None or estimate.memory(found, many, 2) + LIBRARIES < budget.memory * 1e6


@pytest.mark.parametrize(("name", "share"), [("fedapa", 0.1), ("fedper", 0.1), ("fedapa", 1.0)])
def test_a_run_takes_what_was_told_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, share: float
) -> None:
    """And no less than a third of it, beside the log of run.db; small states are made to count as large ones."""
    monkeypatch.setattr(checkpoint, "LEAST", 1000)
    monkeypatch.setattr(estimate, "LEAST", 1000)
    monkeypatch.setattr(flat, "LOOK", 0.002)
    for module in (round_log, estimate):
        monkeypatch.setattr(module, "WATCHED_BYTES", 40_000)
    data, method, plan = tables(40), make(name), Plan(12, (share, share))
    task = make_task(data, "mlp", Training(epochs=1, batch=8, lr=0.1), rounds=plan.rounds, engine="torch")
    with Watch(tmp_path) as watch:
        simulate(method, task, data, plan, tmp_path, workers=1)
    told = estimate.disk(estimate.sizes(method, task, data.clients[0].train.x[0]), task, plan, False)
    assert watch.most <= told
    assert watch.most >= (told - estimate.LOG) / 3
