"""FedPer against plain autograd, its private head, and its bytes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import count_bytes, equal
from fedapa.data.federated import Split
from fedapa.methods.fedper import FedPer
from fedapa.methods.local_only import LocalOnly
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Task

torch.set_num_threads(1)


def test_one_round_by_hand_with_an_absent_client():
    task, data, method = make_task(lr=0.1, epochs=2), make_data(), FedPer()
    server, client = method.init(task, 1)
    replies = [visit(method, task, client, server, i, data) for i in (0, 1)]
    found = []
    for i in (0, 1):
        w, v = omega(client), 0.0
        for _ in range(2):
            leaf = w.clone().requires_grad_()
            v = 0.9 * v + torch.autograd.grad(F.cross_entropy(net(leaf, data[i].x), data[i].y), leaf)[0]
            w = w - 0.1 * v
        found.append(w)
        torch.testing.assert_close(omega(replies[i][1]), w, atol=1e-6, rtol=1e-5)
    new = method.absorb(task, server, [0, 1], [r[2] for r in replies], [r[3] for r in replies])
    expected = (12 * found[0] + 7 * found[1])[: task.P] / 19
    torch.testing.assert_close(new["theta"], expected, atol=1e-6, rtol=1e-5)


def test_the_head_stays_and_the_extractor_is_replaced():
    task, data, method = make_task(), make_data(), FedPer()
    server, client = method.init(task, 1)
    _, trained, down, up = visit(method, task, client, server, 0, data)
    server = method.absorb(task, server, [0], [down], [up])
    server = {"theta": server["theta"] + 1}
    shown, *_ = visit(method, task, trained, server, 0, data, t=1)
    assert torch.equal(shown["phi"], trained["phi"])
    assert not torch.equal(trained["phi"], client["phi"])
    assert torch.equal(shown["theta"], server["theta"])
    assert set(up) == {"theta", "n"}


def test_a_single_client_trains_as_if_alone():
    task, data = make_task(batch=4), make_data()
    server, client = FedPer().init(task, 2)
    alone, state = LocalOnly().init(task, 2)[1], client
    for t in range(3):
        _, state, down, up = visit(FedPer(), task, state, server, 0, data, t)
        server = FedPer().absorb(task, server, [0], [down], [up])
        _, alone, _, _ = visit(LocalOnly(), task, alone, {}, 0, data, t)
    assert equal(state, alone)


def test_bytes_of_lenet5_on_cifar10():
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50), Training(epochs=1))
    data = [Split(torch.zeros(1, 3, 32, 32), torch.tensor([3]))]
    server, client = FedPer().init(task, 0)
    _, trained, down, up = visit(FedPer(), task, client, server, 0, data)
    assert count_bytes(down) == 4 * 61_156
    assert count_bytes(up) == 4 * 61_156 + 4
    assert torch.isfinite(omega(trained)).all()
