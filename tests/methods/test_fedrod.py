"""FedRoD: the balanced loss by hand, against plain autograd, what each head sees, and FedAvg beside it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from few_classes import make_data as make_unequal
from three_clients import make_data, make_task, net, omega, visit

from fedapa.data.federated import Split
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.fedrod import FedRoD, log_sizes, two_heads
from fedapa.training.task import Batch

torch.set_num_threads(1)


@pytest.mark.parametrize(("label", "wanted"), [(0, math.log(4 / 3)), (1, math.log(4))])
def test_the_balanced_loss_by_hand(label: int, wanted: float) -> None:
    """Two classes of 3 and 1 samples, logits 0; the third class is absent. The private head is uniform over three."""
    task = make_task()
    params = {"theta": torch.zeros(task.P), "phi": torch.zeros(task.Q), "psi": torch.zeros(task.Q)}
    shift = log_sizes(torch.tensor([3.0, 1.0, 0.0]))
    found = two_heads(task, params, Batch(torch.ones(1, 4), torch.tensor([label])), {"shift": shift})
    assert found.item() == pytest.approx(wanted + math.log(3), abs=1e-6)


def head(psi, z):
    return z @ psi[: 3 * 64].view(3, 64).T + psi[3 * 64 :]


def features(w, x):
    """Of the network of three_clients: its first two layers."""
    for rows, columns in ((64, 4), (64, 64)):
        weight, bias = w[: rows * columns].view(rows, columns), w[rows * columns : rows * (columns + 1)]
        x, w = (x @ weight.T + bias).relu(), w[rows * (columns + 1) :]
    return x


def test_two_epochs_against_plain_autograd() -> None:
    task, data, method = make_task(lr=0.05, epochs=2), make_data(), FedRoD(gamma=0.5)
    server, state = method.init(task, 1)
    w, psi, x, y = server["omega"], torch.zeros(task.Q), data[1].x, data[1].y  # it lacks class 2
    shift = 0.5 * torch.tensor([math.log(4), math.log(3), -2e9])
    pushes = [torch.zeros_like(w), torch.zeros_like(psi)]
    for _ in range(2):
        leaves = w.clone().requires_grad_(), psi.clone().requires_grad_()
        generic = torch.autograd.grad(F.cross_entropy(net(leaves[0], x) + shift, y), leaves[0])[0]
        personal = net(w, x) + head(leaves[1], features(w, x))
        private = torch.autograd.grad(F.cross_entropy(personal, y), leaves[1])[0]
        pushes = [0.9 * pushes[0] + generic, 0.9 * pushes[1] + private]
        w, psi = w - 0.05 * pushes[0], psi - 0.05 * pushes[1]
    _, trained, _, up = visit(method, task, state, server, 1, data)
    torch.testing.assert_close(up["omega"], w, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(trained["psi"], psi, atol=1e-6, rtol=1e-5)
    wanted = net(w, x) + head(psi, features(w, x))
    torch.testing.assert_close(method.predict(task, trained, x), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(FedRoD(used="generic").predict(task, trained, x), net(w, x), atol=1e-5, rtol=1e-4)


def test_an_absent_class_keeps_its_row_of_the_shared_head() -> None:
    task, data = make_task(epochs=3), make_unequal()
    server, state = FedRoD().init(task, 0)
    up = visit(FedRoD(), task, state, server, 2, data)[3]["omega"]  # it has class 0 alone
    weight = slice(task.P, task.P + 3 * 64)
    rows = (up - server["omega"])[weight].view(3, 64).norm(dim=1)
    assert rows[1:].max() < 1e-6
    plain = visit(FedAvg(), task, FedAvg().init(task, 0)[1], server, 2, data)[3]["omega"]
    assert (plain - server["omega"])[weight].view(3, 64).norm(dim=1).min() > 1e-3


def test_the_shared_model_does_not_see_the_private_head() -> None:
    task, data = make_task(), make_data()
    server, state = FedRoD().init(task, 0)
    ups = [visit(FedRoD(), task, {**state, "psi": state["psi"] + s}, server, 0, data)[3]["omega"] for s in (0, 3)]
    assert torch.equal(*ups)


def test_classes_of_equal_size_make_it_fedavg_beside_private_heads() -> None:
    task = make_task(epochs=3)
    data = [Split(torch.randn(12, 4, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3)]
    server, state = FedRoD().init(task, 0)
    up = visit(FedRoD(), task, state, server, 0, data)[3]["omega"]
    plain = visit(FedAvg(), task, FedAvg().init(task, 0)[1], server, 0, data)[3]["omega"]
    torch.testing.assert_close(up, plain, atol=1e-6, rtol=1e-4)


def test_starts() -> None:
    task, data = make_task(), make_data()
    zero, copy = (FedRoD(start=start).init(task, 0)[1] for start in ("zero", "head"))
    answers = [FedRoD().predict(task, state, data[0].x) for state in (zero, copy)]
    torch.testing.assert_close(answers[0], net(omega(zero), data[0].x))
    torch.testing.assert_close(answers[1], 2 * answers[0])
    assert FedRoD().evaluated == "after"
