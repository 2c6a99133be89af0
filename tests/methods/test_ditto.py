"""Ditto against plain autograd, its two limits (FedAvg and Local), and its bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit
from torch import Tensor

from fedapa.core.tree import count_bytes, equal
from fedapa.data.federated import Split
from fedapa.methods.ditto import Ditto
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.local_only import LocalOnly
from fedapa.training.local import Local
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Task

torch.set_num_threads(1)


def descend(w: Tensor, v: Tensor, split: Split, steps: int, lam: float = 0.0, anchor: Tensor | None = None):
    """Full-batch momentum steps of plain autograd: (weights, velocity)."""
    for _ in range(steps):
        leaf = w.clone().requires_grad_()
        loss = F.cross_entropy(net(leaf, split.x), split.y)
        if anchor is not None:
            loss = loss + lam / 2 * (leaf - anchor).square().sum()
        v = 0.9 * v + torch.autograd.grad(loss, leaf)[0]
        w = w - 0.05 * v
    return w, v


@pytest.mark.parametrize("keep", ["auto", True])
def test_two_rounds_by_hand_each_model_with_its_own_momentum(keep):
    """By default momentum stays with the personal model alone; kept for both, each has its own."""
    task, data, method = make_task(lr=0.05, epochs=2, keep_momentum=keep), make_data(), Ditto(lam=0.8)
    server, state = method.init(task, 1)
    w, personal = server["omega"], omega(state)
    w_push, personal_push, memory = torch.zeros_like(w), torch.zeros_like(w), {}
    for t in range(2):
        local = Local(task, 0, t, 0, data[0], memory)
        down = method.send(task, server, 0)
        state, up = method.train(task, method.receive(task, state, down, local), down, local)
        memory = local.memory
        personal, personal_push = descend(personal, personal_push, data[0], 2, 0.8, w)
        w, w_push = descend(w, w_push if keep is True else torch.zeros_like(w), data[0], 2)
        torch.testing.assert_close(omega(state), personal, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(up["omega"], w, atol=1e-6, rtol=1e-5)
        server = method.absorb(task, server, [0], [down], [up])
    assert not torch.allclose(personal, w, atol=1e-4)


def test_the_federation_is_fedavg_whatever_the_personal_models_do():
    task, data = make_task(batch=4), make_data()
    uploads = []
    for method in (Ditto(lam=3.0), FedAvg()):
        server, client = method.init(task, 0)
        uploads.append(visit(method, task, client, server, 0, data)[3])
    assert equal(*uploads)


def test_without_a_pull_the_personal_model_is_local_training():
    task, data = make_task(batch=4), make_data()
    server, state = Ditto(lam=0.0).init(task, 0)
    alone = LocalOnly().init(task, 0)[1]
    for t in range(3):
        _, state, down, up = visit(Ditto(lam=0.0), task, state, server, 1, data, t)
        server = Ditto().absorb(task, server, [1], [down], [up])
        _, alone, _, _ = visit(LocalOnly(), task, alone, {}, 1, data, t)
        server = {"omega": server["omega"] + 1.0}  # wherever the global model goes
    torch.testing.assert_close(omega(state), omega(alone), atol=1e-5, rtol=1e-4)


def test_the_pull_moves_the_personal_model_towards_the_global_one():
    task, data = make_task(epochs=10), make_data()
    _, state = Ditto().init(task, 0)
    far = {"omega": omega(state) + 0.5}
    gaps = []
    for lam in (0.0, 1.0, 4.0):
        after = visit(Ditto(lam=lam), task, state, far, 0, data)[1]
        gaps.append((omega(after) - far["omega"]).norm().item())
    assert gaps[0] > 1.2 * gaps[1] > 1.2 * gaps[2]


def test_what_arrives_does_not_touch_the_personal_model():
    task, data = make_task(), make_data()
    server, state = Ditto().init(task, 0)
    shown = visit(Ditto(), task, state, {"omega": server["omega"] + 1}, 0, data)[0]
    assert equal(shown, state)
    assert Ditto().evaluated == "after"


def test_bytes_of_lenet5_on_cifar10():
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50), Training(epochs=1))
    data = [Split(torch.zeros(1, 3, 32, 32), torch.tensor([3]))]
    server, client = Ditto().init(task, 0)
    _, trained, down, up = visit(Ditto(), task, client, server, 0, data)
    assert count_bytes(down) == 4 * 62_006
    assert count_bytes(up) == 4 * 62_006 + 4
    assert torch.isfinite(omega(trained)).all()
