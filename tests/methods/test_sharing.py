"""What methods with several models have in common, and that BatchNorm's statistics travel without being measured."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net
from torch import nn

from fedapa.methods.catalogue import make
from fedapa.methods.sharing import candidates, losses_of, sample_losses, starts, trainable
from fedapa.training.local import Local
from fedapa.training.settings import Training
from fedapa.training.split_model import SplitModel
from fedapa.training.task import Task

torch.set_num_threads(1)
NAMES = ("pfedgraph", "cfl", "ifca", "fedfomo", "fedem")
WEIGHTS, STATISTICS = 4 * 5 + 5 + 10, 10  # a linear layer and BatchNorm's scale and shift; its means and variances


def with_statistics() -> Task:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))

    return Task(SplitModel(build, torch.zeros(2, 4), "3"), 3, torch.tensor([12, 7, 5]), Training(batch=4, epochs=2))


def test_losses_of_many_models_on_every_sample():
    task, data = make_task(), make_data()[0]
    models = starts(task, 3, 4)
    found = losses_of(task, models, Local(task, 0, 0, 0, data))
    for k in range(4):
        whole = torch.cat([models["theta"][k], models["phi"][k]])
        expected = F.cross_entropy(net(whole, data.x), data.y, reduction="none")
        torch.testing.assert_close(found[:, k], expected)
    logits = torch.randn(5, 3)
    torch.testing.assert_close(
        sample_losses(task, logits, torch.arange(5) % 3).mean(), F.cross_entropy(logits, torch.arange(5) % 3)
    )


def test_private_heads_go_with_every_candidate():
    task = make_task()
    client, omegas = {"phi": torch.ones(task.Q)}, torch.randn(2, task.P)
    found = candidates(task, client, omegas, "extractor")
    assert torch.equal(found["theta"], omegas)
    assert torch.equal(found["phi"], torch.ones(2, task.Q))


def test_statistics_are_no_weights():
    task = with_statistics()
    assert trainable(task, "extractor") == [slice(0, WEIGHTS)]
    assert trainable(task, "model") == [slice(0, WEIGHTS), slice(WEIGHTS + STATISTICS, WEIGHTS + STATISTICS + 18)]


@pytest.mark.parametrize("shared", ["model", "extractor"])
@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_learnt_and_travel(name, shared):
    task, data, method = with_statistics(), make_data(), make(name, shared=shared)
    server, client = method.init(task, 0)
    states = [client] * 3
    for t in range(2):
        downs = [method.send(task, server, i) for i in range(3)]
        visits = []
        for i, down in enumerate(downs):
            local = Local(task, i, t, 0, data[i])
            visits.append(method.train(task, method.receive(task, states[i], down, local), down, local))
        server = method.absorb(task, server, range(3), downs, [up for _, up in visits])
        states = [state for state, _ in visits]
    moved = server["omega"][..., WEIGHTS : WEIGHTS + STATISTICS] - client["theta"][..., WEIGHTS:]
    assert moved.abs().amax(-1).max() > 1e-3
    assert torch.isfinite(method.predict(task, states[0], data[0].x)).all()


@pytest.mark.parametrize("name", ["pfedgraph", "cfl"])
def test_statistics_are_not_measured(name):
    task, method = with_statistics(), make(name)
    server, _ = method.init(task, 0)
    random = torch.Generator().manual_seed(2)
    ups = [
        {"omega": server["omega"][0] + torch.randn(63, generator=random), "n": torch.tensor([5.0])} for _ in range(3)
    ]
    plain = method.absorb(task, server, range(3), [], ups)["gram"]
    for up in ups:
        up["omega"] = up["omega"].clone()
        up["omega"][WEIGHTS : WEIGHTS + STATISTICS] += 100.0
    torch.testing.assert_close(method.absorb(task, server, range(3), [], ups)["gram"], plain)
