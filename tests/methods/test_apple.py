"""APPLE: gradients against the closed form, its limit Local, its schedule, and its bytes."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from three_clients import SIZES, make_data, make_task, net, omega, visit
from torch import Tensor, nn

from fedapa.core.tree import count_bytes
from fedapa.data.federated import Split
from fedapa.methods.apple import APPLE, by_client, mixture, own_first
from fedapa.methods.local_only import LocalOnly
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Batch, Task

torch.set_num_threads(1)


def differing_cores(task: Task) -> dict[str, Tensor]:
    return {"cores": torch.stack([torch.cat(task.init(k)) for k in (4, 5, 6)])}


def test_one_step_is_the_closed_form():
    """dF/dcore = p_ii g and dF/dp_j = <g, c_j> + mu (p_j - p_0j), with g from plain autograd."""
    task, data, method = make_task(lr=0.1, momentum=0.0, epochs=1), make_data(), APPLE(lr_p=0.02, mu=0.5)
    server, client = differing_cores(task), method.init(task, 0)[1]
    p = torch.tensor([0.2, 0.9, -0.3])
    client = {**client, "core": server["cores"][1], "p": p}
    shown, trained, _, up = visit(method, task, client, server, 1, data)
    personal = p @ server["cores"]
    torch.testing.assert_close(omega(shown), personal)
    leaf = personal.clone().requires_grad_()
    g = torch.autograd.grad(F.cross_entropy(net(leaf, data[1].x), data[1].y), leaf)[0]
    p_0 = torch.tensor([12.0, 7.0, 5.0]) / 24
    new_core = server["cores"][1] - 0.1 * p[1] * g
    new_p = p - 0.02 * (server["cores"] @ g + 0.5 * (p - p_0))
    torch.testing.assert_close(up["core"], new_core, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(trained["p"], new_p, atol=1e-6, rtol=1e-5)
    mixed = new_p @ torch.stack([server["cores"][0], new_core, server["cores"][2]])
    torch.testing.assert_close(omega(trained), mixed, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(method.predict(task, trained, data[1].x), net(mixed, data[1].x), atol=1e-5, rtol=1e-4)


def test_the_pull_of_p_has_a_gradient():
    task, data = make_task(), make_data()
    cores = differing_cores(task)["cores"]
    params = {**task.parts(cores[0]), "p": torch.tensor([0.5, 0.3, 0.2])}
    given = {"others": cores[1:], "p_0": torch.full((3,), 1 / 3), "strength": torch.tensor(0.0)}
    batch = Batch(data[0].x, data[0].y)
    pulled = mixture(task, params, batch, {**given, "strength": torch.tensor(4.0)})
    gap = (params["p"] - 1 / 3).square().sum()
    torch.testing.assert_close(pulled - mixture(task, params, batch, given), 2 * gap, atol=1e-6, rtol=1e-4)
    leaf = params["p"].clone().requires_grad_()
    slope = torch.autograd.grad(mixture(task, {**params, "p": leaf}, batch, given), leaf)[0]
    moved = {**params, "p": params["p"] + torch.tensor([0.0, 1e-3, 0.0])}
    back = {**params, "p": params["p"] - torch.tensor([0.0, 1e-3, 0.0])}
    difference = (mixture(task, moved, batch, given) - mixture(task, back, batch, given)) / 2e-3
    assert slope[1].item() == pytest.approx(difference.item(), rel=0.05)
    assert abs(slope[1]) > 1e-3


def test_alone_it_is_local_training():
    task, data = make_task(batch=4, drop_last=False), make_data()
    method = APPLE(lr_p=0.0, mu=0.0)
    server, client = method.init(task, 0)
    states = [{**client, "p": torch.eye(3)[i]} for i in range(3)]
    alone = [LocalOnly().init(task, 0)[1]] * 3
    for t in range(3):
        replies = [visit(method, task, states[i], server, i, data, t) for i in range(3)]
        server = method.absorb(task, server, [0, 1, 2], [r[2] for r in replies], [r[3] for r in replies])
        states = [r[1] for r in replies]
        alone = [visit(LocalOnly(), task, alone[i], {}, i, data, t)[1] for i in range(3)]
    for state, other in zip(states, alone, strict=True):
        torch.testing.assert_close(omega(state), omega(other), atol=1e-6, rtol=1e-5)


def test_from_a_common_start_the_first_personal_model_is_that_start():
    task, data = make_task(), make_data()
    server, client = APPLE().init(task, 0)
    shown, trained, _, _ = visit(APPLE(), task, client, server, 2, data)
    torch.testing.assert_close(omega(shown), omega(client), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(client["p"], torch.tensor([12.0, 7.0, 5.0]) / 24)
    assert (trained["p"] - client["p"]).abs().min() > 0


def test_own_starts_agree_between_server_and_client_and_are_drawn_once():
    task, data, method = make_task(), make_data(), APPLE(start="own")
    server, client = method.init(task, 0)
    shown, trained, down, up = visit(method, task, client, server, 1, data)
    assert torch.equal(shown["core"], server["cores"][1])
    assert not torch.equal(server["cores"][0], server["cores"][1])
    server = method.absorb(task, server, [1], [down], [up])
    again, *_ = visit(method, task, trained, server, 1, data, 1)
    assert torch.equal(again["core"], up["core"])
    assert torch.equal(again["core"], server["cores"][1])


def test_the_order_of_p_goes_there_and_back():
    p = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert own_first(p, 2).tolist() == [2.0, 0.0, 1.0, 3.0]
    for i in range(4):
        assert torch.equal(by_client(own_first(p, i), i), p)


def test_the_pull_fades_to_nothing():
    assert [APPLE().fade(r, 50) for r in (0, 5, 49)] == [1.0, 0.0, 0.0]
    assert APPLE().fade(1, 30) == pytest.approx(0.1)
    assert APPLE(decay="cosine").fade(2, 40) == pytest.approx(0.5)
    assert APPLE(L=0.0).fade(0, 50) == 0.0


def test_partial_participation_and_a_federation_of_one():
    task, data, method = make_task(), make_data(), APPLE()
    server, client = method.init(task, 0)
    _, _, down, up = visit(method, task, client, server, 1, data)
    new = method.absorb(task, server, [1], [down], [up])
    assert torch.equal(new["cores"][[0, 2]], server["cores"][[0, 2]])
    assert torch.equal(method.send(task, new, 0)["others"][0], up["core"])
    single = Task(task.model, 3, torch.tensor([12]), task.training)
    server, client = method.init(single, 0)
    _, trained, _, _ = visit(method, single, client, server, 0, data)
    assert torch.isfinite(omega(trained)).all()


def test_statistics_are_not_mixed():
    """Mixing variances with p of any sign would take roots of negative numbers."""
    layers = {"fc": nn.Linear(4, 6), "norm": nn.BatchNorm1d(6), "relu": nn.ReLU(), "head": nn.Linear(6, 3)}
    model = build_model(nn.Sequential(OrderedDict(layers)), (4,), 3)
    task, data = Task(model, 3, torch.tensor(SIZES), Training(), rounds=10), make_data()
    server, client = APPLE().init(task, 0)
    client = {**client, "p": torch.tensor([0.5, -2.0, -1.0])}
    shown, trained, _, up = visit(APPLE(), task, client, server, 0, data)
    assert torch.equal(shown["theta"][-12:], client["theta"][-12:])
    assert torch.isfinite(APPLE().predict(task, trained, data[0].x)).all()
    assert not torch.equal(up["core"][: task.P][-12:], client["theta"][-12:])


def test_bytes_of_lenet5_on_cifar10():
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50), Training(epochs=1))
    data = [Split(torch.zeros(1, 3, 32, 32), torch.tensor([3]))]
    server, client = APPLE().init(task, 0)
    _, trained, down, up = visit(APPLE(), task, client, server, 0, data)
    assert count_bytes(down) == 4 * 19 * 62_006
    assert count_bytes(up) == 4 * 62_006
    assert torch.isfinite(omega(trained)).all()
