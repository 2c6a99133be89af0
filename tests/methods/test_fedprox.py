"""FedProx against plain autograd, its limit FedAvg, and its bytes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import count_bytes, equal
from fedapa.data.federated import Split
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.fedprox import FedProx, pull
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Batch, Task, proximal, task_loss

torch.set_num_threads(1)


def test_two_clients_of_three_match_plain_gradient_steps_and_their_weighted_mean():
    task, data, method = make_task(lr=0.1, epochs=3), make_data(), FedProx(mu=0.7)
    server, client = method.init(task, 1)
    start, found = server["omega"], []
    for i in (0, 2):
        w, v = start.clone(), torch.zeros_like(start)
        for _ in range(3):
            leaf = w.clone().requires_grad_()
            loss = F.cross_entropy(net(leaf, data[i].x), data[i].y) + 0.35 * (leaf - start).square().sum()
            v = 0.9 * v + torch.autograd.grad(loss, leaf)[0]
            w = w - 0.1 * v
        found.append(w)
    replies = [visit(method, task, client, server, i, data) for i in (0, 2)]
    for reply, w in zip(replies, found, strict=True):
        torch.testing.assert_close(omega(reply[1]), w, atol=1e-6, rtol=1e-5)
    new = method.absorb(task, server, [0, 2], [r[2] for r in replies], [r[3] for r in replies])
    torch.testing.assert_close(new["omega"], (12 * found[0] + 5 * found[1]) / 17, atol=1e-6, rtol=1e-5)


def test_the_pull_has_a_gradient():
    task, data = make_task(), make_data()
    theta, phi = task.init(0)
    given = pull(task, task.join(theta, phi), 2.0)
    far = {"theta": theta + 0.1, "phi": phi}
    step = {"theta": theta + 0.1 + 1e-2, "phi": phi}
    batch = Batch(data[0].x, data[0].y)
    slope = (proximal(task, step, batch, given) - task_loss(task, step, batch, {})) - (
        proximal(task, far, batch, given) - task_loss(task, far, batch, {})
    )
    expected = task.P * (0.11**2 - 0.1**2)  # rho / 2 = 1
    assert abs(slope.item() - expected) < 1e-2 * expected


def test_without_a_pull_it_is_fedavg_bit_for_bit():
    task, data = make_task(batch=4, drop_last=False), make_data()
    ups = []
    for method in (FedProx(mu=0.0), FedAvg()):
        server, client = method.init(task, 3)
        ups.append(visit(method, task, client, server, 1, data)[3])
    assert equal(*ups)


def test_a_strong_pull_keeps_clients_nearer():
    task, data = make_task(epochs=20), make_data()
    gaps = []
    for mu in (0.0, 1.0, 5.0):
        server, client = FedProx(mu=mu).init(task, 0)
        gaps.append((visit(FedProx(mu=mu), task, client, server, 0, data)[3]["omega"] - server["omega"]).norm())
    assert gaps[0] > gaps[1] > gaps[2] > 0


def test_bytes_of_lenet5_on_cifar10():
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50), Training(epochs=1))
    data = [Split(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))]
    server, client = FedProx().init(task, 0)
    _, _, down, up = visit(FedProx(), task, client, server, 0, data)
    assert count_bytes(down) == 4 * 62_006
    assert count_bytes(up) == 4 * 62_006 + 4


def test_the_model_in_use():
    assert FedProx().evaluated == "before"
    assert FedProx(fine_tune=True).evaluated == "after"
