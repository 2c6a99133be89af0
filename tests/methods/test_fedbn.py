"""FedBN on a model with BatchNorm: what stays, what travels, two rounds beside FedAvg; and without BatchNorm."""

from __future__ import annotations

import pytest
import torch
from three_clients import SIZES, make_data, make_task, omega, visit
from torch import nn

from fedapa.core.tree import count_bytes
from fedapa.methods.catalogue import make
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.fedbn import FedBN, of_batch_norm
from fedapa.rounds.expected_uploads import Expected
from fedapa.simulation import doubts
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Task

torch.set_num_threads(1)


def block() -> nn.Module:
    """BatchNorm inside a Sequential, where no name tells it."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
    return nn.Sequential(inner, nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))


def normed(buffers: str = "shared", **training: float) -> Task:
    model = build_model(block(), (4,), 3, head="3", buffers=buffers)
    return Task(model, 3, torch.tensor(SIZES), Training(**training), rounds=10)


@pytest.mark.parametrize("buffers", ["shared", "private"])
def test_scale_shift_and_statistics_are_found_by_the_kind_of_the_layer(buffers: str) -> None:
    task = normed(buffers)
    mask = of_batch_norm(task.model)
    assert len(mask) == task.P + task.Q
    assert mask.sum() == 4 * 6  # scale, shift, mean, variance; LayerNorm is another kind
    slots = {s.name: (s.start, s.stop) for s in task.model.theta_slots}
    start, stop = slots["extractor.0.1.weight"]
    assert mask[start:stop].all()
    assert not mask[: slots["extractor.0.1.weight"][0]].any()


@pytest.mark.parametrize("buffers", ["shared", "private"])
def test_what_stays_and_what_travels(buffers: str) -> None:
    task, data, method = normed(buffers, lr=0.1), make_data(), FedBN()
    own = of_batch_norm(task.model)
    server, state = method.init(task, 0)
    _, trained, down, up = visit(method, task, state, server, 0, data)
    assert count_bytes(down) == 4 * (task.P + task.Q - 24) == count_bytes(up) - 4
    assert (omega(trained)[own] - omega(state)[own]).abs().max() > 1e-3
    assert torch.equal(up["omega"], omega(trained)[~own])
    arrived = {"omega": server["omega"] + 1}
    shown = visit(method, task, trained, arrived, 0, data, 1)[0]
    assert torch.equal(omega(shown)[own], omega(trained)[own])
    assert torch.equal(omega(shown)[~own], arrived["omega"])


def test_a_round_is_fedavgs_where_layers_are_shared_and_its_own_where_not() -> None:
    task, data = normed(lr=0.1), make_data()
    own, rounds = of_batch_norm(task.model), []
    for method in (FedBN(), FedAvg()):
        server, state = method.init(task, 0)
        seen = [visit(method, task, state, server, i, data) for i in (0, 2)]
        server = method.absorb(task, server, [0, 2], [s[2] for s in seen], [s[3] for s in seen])
        rounds.append((server["omega"], [visit(method, task, s[1], server, 0, data, 1)[0] for s in seen]))
    (ours, shown), (theirs, alike) = rounds
    torch.testing.assert_close(ours, theirs[~own], atol=1e-6, rtol=1e-5)
    assert (omega(shown[0])[own] - omega(shown[1])[own]).abs().max() > 1e-3
    assert torch.equal(omega(alike[0]), omega(alike[1]))


def test_without_batch_norm_it_is_fedavg_and_says_so() -> None:
    task, sample = make_task(), make_data()[0].x[0]
    for name in ("fedbn", "fedbn+ema"):
        assert ["no BatchNorm layer" in line for line in doubts(make(name), task, sample)] == [True]
        assert doubts(make(name), normed(), sample) == []
    assert doubts(make("fedavg"), task, sample) == []


NAMES = [
    "fedrep",
    "pfedme",
    "perfedavg",
    "apfl",
    "scaffold",
    "fedrod",
    "lg-fedavg",
    "knnper",
    "fedbabu",
    "fedbn",
    "moon",
]


@pytest.mark.parametrize("name", NAMES)
def test_models_with_batch_norm_can_be_planned_and_trained(name: str) -> None:
    """A dry visit of a method that always trains some steps met BatchNorm with one sample."""
    task, data, method = normed(batch=4), make_data(), make(name)
    exchanges = Expected(method, task, data[0].x[0]).exchanges(2)
    server, state = method.init(task, 0)
    _, trained, down, up = visit(method, task, state, server, 0, data)
    assert [count_bytes(tree) for tree in exchanges[-1]] == [count_bytes(down), count_bytes(up)]
    assert all(torch.isfinite(leaf).all() for leaf in trained.values())
