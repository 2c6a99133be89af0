"""FedGH: the server's head against torch.optim.SGD, what moves, what stays, and its bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from few_classes import SIZES, lenet_task, make_data, make_task, play, visit
from torch import nn

from fedapa.core.tree import count_bytes, equal
from fedapa.data.federated import Split
from fedapa.methods.fedgh import FedGH
from fedapa.training.local import Local
from fedapa.training.model import build_model
from fedapa.training.task import Task

torch.set_num_threads(1)


def made_up(seed, counts):
    random = torch.Generator().manual_seed(seed)
    return {"means": torch.randn(3, 64, generator=random), "counts": torch.tensor(counts)}


@pytest.mark.parametrize("settings", [{}, {"server_lr": 1.0, "server_batch": 10}, {"server_epochs": 3}])
def test_server_steps_equal_torch_sgd(settings):
    task, method = make_task(), FedGH(**settings)
    server, _ = method.init(task, 0)
    ups = [made_up(0, [3.0, 0.0, 1.0]), made_up(1, [0.0, 9.0, 0.0])]
    new = method.absorb(task, server, [0, 2], [], ups)

    head = nn.Linear(64, 3)
    head.weight.data, head.bias.data = server["phi"][:192].view(3, 64).clone(), server["phi"][192:].clone()
    optimiser = torch.optim.SGD(head.parameters(), lr=method.server_lr)
    pairs = [(ups[0]["means"][0], 0), (ups[0]["means"][2], 2), (ups[1]["means"][1], 1)]
    for _ in range(method.server_epochs):
        for batch in [pairs] if method.server_batch > 1 else [[pair] for pair in pairs]:
            optimiser.zero_grad()
            z, y = torch.stack([z for z, _ in batch]), torch.tensor([y for _, y in batch])
            F.cross_entropy(head(z), y).backward()
            optimiser.step()
    assert torch.allclose(new["phi"], torch.cat([head.weight.data.flatten(), head.bias.data]), atol=1e-5)
    assert not torch.allclose(new["phi"], server["phi"], atol=1e-4)


def test_the_head_learns_the_prototypes():
    task, method = make_task(), FedGH(server_lr=0.5, server_epochs=50)
    server, _ = method.init(task, 0)
    up = made_up(2, [1.0, 1.0, 1.0])
    new = method.absorb(task, server, [1], [], [up])
    losses = [F.cross_entropy(task.logits(s, up["means"]), torch.arange(3)).item() for s in (server, new)]
    assert losses[1] < 0.1 < losses[0]


def test_absent_classes_and_arrival_order_change_nothing():
    task, method = make_task(), FedGH()
    server, _ = method.init(task, 0)
    ups = [made_up(0, [1.0, 0.0, 1.0]), made_up(1, [1.0, 1.0, 0.0])]
    one = method.absorb(task, server, [0, 2], [], ups)
    assert equal(one, method.absorb(task, server, [2, 0], [], ups[::-1]))
    loud = {**ups[0], "means": ups[0]["means"].index_fill(0, torch.tensor([1]), 1e6)}
    assert equal(one, method.absorb(task, server, [0, 2], [], [loud, ups[1]]))


def test_the_head_is_replaced_and_the_extractor_stays():
    task, method = make_task(), FedGH()
    server, client = method.init(task, 0)
    client, down, up = visit(method, task, server, client, 1)
    server = method.absorb(task, server, [1], [down], [up])
    shown = method.receive(task, client, method.send(task, server, 1), Local(task, 1, 1, 0, make_data()[1]))
    assert torch.equal(shown["phi"], server["phi"])
    assert torch.equal(shown["theta"], client["theta"])
    assert not torch.equal(client["theta"], task.init(0)[0])
    assert not torch.equal(client["phi"], shown["phi"])


def test_uploads_are_exact_means_of_the_trained_features():
    task, method, data = make_task(), FedGH(), make_data()[1]
    server, client = method.init(task, 0)
    trained, _, up = visit(method, task, server, client, 1)
    z = task.features(trained, data.x)
    assert torch.allclose(up["means"][1], z[data.y == 1].mean(0), atol=1e-6)
    assert up["means"][2].abs().max() == 0
    assert up["counts"].tolist() == [4, 3, 0]


def test_private_statistics_stay_on_the_client():
    net = nn.Sequential()
    for name, layer in (("fc", nn.Linear(4, 6)), ("norm", nn.BatchNorm1d(6)), ("head", nn.Linear(6, 3))):
        net.add_module(name, layer)
    task = Task(build_model(net, (4,), 3, buffers="private"), 3, torch.tensor(SIZES))
    method = FedGH()
    server, client = method.init(task, 0)
    trained, down, up = visit(method, task, server, client, 0)
    server = method.absorb(task, server, [0], [down], [up])
    shown = method.receive(task, trained, method.send(task, server, 0), Local(task, 0, 1, 0, make_data()[0]))
    assert len(down["phi"]) == 21 < len(trained["phi"]) == 33
    assert torch.equal(shown["phi"][21:], trained["phi"][21:])
    assert not torch.equal(trained["phi"][21:], client["phi"][21:])


def test_one_sample_clients_stay_finite():
    task, method = make_task(), FedGH()
    server, client = method.init(task, 0)
    server_state = play(method, task, server, client, [2])
    trained, _, up = visit(method, task, server_state, client, 0, data=Split(torch.ones(1, 4), torch.tensor([2])))
    assert all(torch.isfinite(leaf).all() for leaf in (*trained.values(), *up.values(), *server_state.values()))


def test_bytes():
    task, method = lenet_task(), FedGH()
    server, client = method.init(task, 0)
    data = Split(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    _, down, up = visit(method, task, server, client, 0, data=data)
    assert count_bytes(down) == 4 * 850
    assert count_bytes(up) == 4 * 840 + 4 * 10  # dense class means and their counts
