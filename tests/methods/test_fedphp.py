"""FedPHP: both regularisers against slow formulas, its limit FedAvg plus a moving average, and its bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import count_bytes
from fedapa.data.federated import Split
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.fedphp import FedPHP, mmd, taught_features, taught_labels
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Batch, Task

torch.set_num_threads(1)


def slow_mmd(z: np.ndarray, t: np.ndarray) -> float:
    """Pair by pair."""
    both = np.concatenate([z, t]).astype(float)
    gap = np.array([[((a - b) ** 2).sum() for b in both] for a in both])
    base = gap.sum() / (len(both) ** 2 - len(both)) / 4
    kernel, n = sum(np.exp(-gap / (base * 2**k)) for k in range(5)), len(z)
    return float(kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean())


def test_mmd_equals_the_pairwise_formula():
    random = torch.Generator().manual_seed(0)
    z, t = torch.randn(6, 5, generator=random), torch.randn(6, 5, generator=random) + 0.7
    assert abs(mmd(z, t).item() - slow_mmd(z.numpy(), t.numpy())) < 1e-5
    assert mmd(z, t) > 0.1
    assert abs(mmd(z, z).item()) < 1e-6


def test_kd_equals_the_written_out_formula_and_leaves_the_teacher_alone():
    task, data = make_task(), make_data()
    student, teacher = task.init(0), task.init(1)
    params = {"theta": student[0].requires_grad_(), "phi": student[1].requires_grad_()}
    given = {"inherited_theta": teacher[0], "inherited_phi": teacher[1], "lam": torch.tensor(0.3)}
    found = taught_labels(task, params, Batch(*data[0]), given)
    with torch.no_grad():
        p = torch.softmax(net(torch.cat(teacher), data[0].x) / 4, 1)
        log_q = torch.log_softmax(net(torch.cat(student), data[0].x), 1)
        own = -log_q[torch.arange(12), data[0].y].mean()
        expected = 0.7 * own - 0.3 * (p * log_q).sum(1).mean()
    torch.testing.assert_close(found.detach(), expected)


@pytest.mark.parametrize("loss", [taught_features, taught_labels])
def test_the_teacher_has_a_gradient(loss):
    task, data = make_task(), make_data()
    student, teacher = task.init(0), task.init(1)
    params = {"theta": student[0].double(), "phi": student[1].double()}
    batch = Batch(data[0].x.double(), data[0].y)
    given = {
        "inherited_theta": teacher[0].double(),
        "inherited_phi": teacher[1].double(),
        "lam": torch.tensor(1.0),
    }
    direction = torch.randn(task.P, generator=torch.Generator().manual_seed(1)).double()
    leaf = params["theta"].clone().requires_grad_()
    slope = torch.autograd.grad(loss(task, {**params, "theta": leaf}, batch, given), leaf)[0] @ direction
    ends = [loss(task, {**params, "theta": params["theta"] + h * direction}, batch, given) for h in (1e-6, -1e-6)]
    difference = (ends[0] - ends[1]) / 2e-6
    if loss is taught_labels:
        assert abs(slope - difference) < 1e-4 * abs(difference)
    assert abs(slope) > 1e-3  # the mmd bandwidth is held constant, so its slope is not the finite difference


def test_mmd_slope_with_the_bandwidth_held():
    z = torch.tensor([[0.0], [1.0]], dtype=torch.double, requires_grad=True)
    t = torch.tensor([[0.5], [2.0]], dtype=torch.double)
    slope = torch.autograd.grad(mmd(z, t), z)[0]
    both = torch.tensor([0.0, 1.0, 0.5, 2.0], dtype=torch.double)
    base = ((both[:, None] - both) ** 2).sum() / 12

    def k(a, b):
        return sum(torch.exp(-((a - b) ** 2) / (base * c)) for c in (0.25, 0.5, 1.0, 2.0, 4.0))

    def value(a, b):
        return (2 * k(a, b) - 2 * (k(a, 0.5) + k(a, 2.0) + k(b, 0.5) + k(b, 2.0))) / 4

    h = 1e-6
    expected = (value(h, 1.0) - value(-h, 1.0)) / (2 * h)
    assert abs(slope[0, 0] - expected) < 1e-6
    assert abs(expected) > 0.01


@pytest.mark.parametrize("regulariser", ["mmd", "kd"])
def test_without_a_teacher_it_is_fedavg_plus_a_moving_average(regulariser):
    task, data = make_task(batch=4), make_data()
    method = FedPHP(lam=0.0, regulariser=regulariser)
    (server, state), average = method.init(task, 0), None
    (plain, client), h = FedAvg().init(task, 0), server["omega"]
    for t in range(4):
        _, state, down, up = visit(method, task, state, server, 0, data, t)
        server = method.absorb(task, server, [0], [down], [up])
        _, client, down, up = visit(FedAvg(), task, client, plain, 0, data, t)
        plain = FedAvg().absorb(task, plain, [0], [down], [up])
        average = 0.9 * t / 10
        h = average * h + (1 - average) * omega(client)
        torch.testing.assert_close(omega(state), omega(client), atol=1e-6, rtol=1e-5)
        inherited = torch.cat([state["inherited_theta"], state["inherited_phi"]])
        torch.testing.assert_close(inherited, h, atol=1e-6, rtol=1e-5)
        assert state["visits"].item() == t + 1
    assert (h - omega(client)).norm() > 1e-3


@pytest.mark.parametrize("regulariser", ["mmd", "kd"])
def test_the_inherited_model_teaches_and_not_the_one_that_arrived(regulariser):
    """One step on all data, from what arrived, against the model that the client inherited."""
    task, data, method = make_task(lr=0.1, epochs=1), make_data(), FedPHP(lam=0.4, regulariser=regulariser)
    server, client = method.init(task, 0)
    inherited = dict(zip(("inherited_theta", "inherited_phi"), task.init(1), strict=True))
    trained = visit(method, task, {**client, **inherited}, server, 0, data)[1]
    loss = taught_features if regulariser == "mmd" else taught_labels
    leaf = server["omega"].clone().requires_grad_()
    value = loss(task, task.parts(leaf), Batch(*data[0]), {**inherited, "lam": torch.tensor(0.4)})
    expected = server["omega"] - 0.1 * torch.autograd.grad(value, leaf)[0]
    torch.testing.assert_close(omega(trained), expected, atol=1e-6, rtol=1e-5)


def test_the_share_of_the_past_counts_visits_not_rounds_and_stops_at_mu():
    found = [FedPHP(mu=0.9)._mu(torch.tensor([float(q)]), 5.0).item() for q in (0, 1, 4, 5, 9)]
    assert found == pytest.approx([0.0, 0.18, 0.72, 0.9, 0.9])


def test_a_client_expects_as_many_visits_as_the_run_gives_it():
    """Ten rounds of which it sees half: after five visits its memory is as long as it gets."""
    task, data = replace(make_task(), participation=0.5), make_data()
    server, state = FedPHP().init(task, 0)
    state = {**state, "visits": torch.tensor([4.0])}
    for method, average in ((FedPHP(), 0.72), (FedPHP(Q=1.0), 0.36)):
        trained = visit(method, task, state, server, 0, data)[1]
        expected = average * state["inherited_theta"] + (1 - average) * trained["theta"]
        torch.testing.assert_close(trained["inherited_theta"], expected, atol=1e-6, rtol=1e-5)


def test_the_model_in_use():
    task, data = make_task(), make_data()
    server, state = FedPHP().init(task, 0)
    _, state, _, _ = visit(FedPHP(), task, state, server, 0, data)
    shown = visit(FedPHP(), task, state, {"omega": server["omega"] * 0}, 0, data, 1)[0]
    x = data[0].x
    assert torch.equal(FedPHP(used="local").predict(task, shown, x), torch.zeros(12, 3))
    inherited = torch.cat([state["inherited_theta"], state["inherited_phi"]])
    torch.testing.assert_close(FedPHP().predict(task, shown, x), net(inherited, x))


def test_one_sample_stays_finite():
    task, data = make_task(epochs=30), [Split(torch.ones(1, 4), torch.tensor([2]))]
    for teacher in (0.0, 1e-6, 1.0):
        server, state = FedPHP(lam=1.0).init(task, 0)
        state = {**state, "inherited_theta": state["theta"] + teacher}
        after = visit(FedPHP(lam=1.0), task, state, server, 0, data)[1]
        assert omega(after).abs().max() < 5


def test_bytes_of_lenet5_on_cifar10():
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50), Training(epochs=1))
    data = [Split(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))]
    server, client = FedPHP().init(task, 0)
    _, _, down, up = visit(FedPHP(), task, client, server, 0, data)
    assert count_bytes(down) == 4 * 62_006
    assert count_bytes(up) == 4 * 62_006 + 4
