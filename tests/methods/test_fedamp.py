"""FedAMP: the mixing against explicit differences, its limits, its convexity, and its bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import clone, count_bytes
from fedapa.data.federated import Split
from fedapa.errors import InputError
from fedapa.methods.fedamp import FedAMP
from fedapa.methods.local_only import LocalOnly
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Task

torch.set_num_threads(1)


MODELS = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.5, 1.5], [-1.0, 1.0, 0.0]])


def mixture(method, omegas, i):
    """u_i as the server would send it, for models of any length."""
    return method.send(make_task(), {"omega": omegas}, i)["omega"]


def test_the_exact_mixture_against_explicit_differences():
    method, w = FedAMP(sigma=3.0, alpha=1.2), MODELS.double().numpy()
    for i in range(3):
        share = {j: 1.2 / 3.0 * np.exp(-((w[i] - w[j]) ** 2).sum() / 3.0) for j in range(3) if j != i}
        expected = (1 - sum(share.values())) * w[i] + sum(a * w[j] for j, a in share.items())
        assert mixture(method, MODELS, i).numpy() == pytest.approx(expected, abs=1e-6)


def test_the_heuristic_mixture_against_explicit_cosines():
    method, w = FedAMP(attention="heuristic", xi=0.4, sharpness=2.0), MODELS.double().numpy()
    for i in range(3):
        others = [j for j in range(3) if j != i]
        cosine = [w[i] @ w[j] / np.linalg.norm(w[i]) / np.linalg.norm(w[j]) for j in others]
        share = 0.6 * np.exp(2 * np.array(cosine)) / np.exp(2 * np.array(cosine)).sum()
        expected = 0.4 * w[i] + sum(a * w[j] for a, j in zip(share, others, strict=True))
        assert mixture(method, MODELS, i).numpy() == pytest.approx(expected, abs=1e-6)


def test_training_against_plain_autograd_from_u_with_the_squared_pull():
    task, data, method = make_task(lr=0.05, epochs=3), make_data(), FedAMP(sigma=40.0, alpha=2.0, lam=0.6)
    server, client = method.init(task, 0)
    server = {
        "omega": server["omega"] + 0.1 * torch.randn(3, task.P + task.Q, generator=torch.Generator().manual_seed(1))
    }
    shown, trained, down, up = visit(method, task, client, server, 1, data)
    assert torch.equal(omega(shown), down["omega"])
    assert not torch.allclose(down["omega"], server["omega"][1], atol=1e-3)
    w, v = down["omega"], 0.0
    for _ in range(3):
        leaf = w.clone().requires_grad_()
        loss = F.cross_entropy(net(leaf, data[1].x), data[1].y) + 0.6 / 4 * (leaf - down["omega"]).square().sum()
        v = 0.9 * v + torch.autograd.grad(loss, leaf)[0]
        w = w - 0.05 * v
    torch.testing.assert_close(omega(trained), w, atol=1e-6, rtol=1e-5)
    assert torch.equal(up["omega"], omega(trained))
    loose = visit(FedAMP(sigma=40.0, alpha=2.0, lam=0.0), task, client, server, 1, data)[1]
    assert (omega(loose) - down["omega"]).norm() > (omega(trained) - down["omega"]).norm() + 1e-4


def test_without_steps_of_the_mixing_it_is_local_training():
    task, data = make_task(batch=4), make_data()
    method = FedAMP(alpha=1e-12, lam=0.0)
    server, state = method.init(task, 0)
    alone = LocalOnly().init(task, 0)[1]
    for t in range(3):
        states = [visit(method, task, state, server, i, data, t) for i in (0, 2)]
        server = method.absorb(task, server, [0, 2], [s[2] for s in states], [s[3] for s in states])
        alone = visit(LocalOnly(), task, alone, {}, 0, data, t)[1]
        state = states[0][1]
    torch.testing.assert_close(omega(state), omega(alone), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(server["omega"][2], server["omega"][0], atol=1e-3)


@pytest.mark.parametrize("attention", ["exact", "heuristic"])
@pytest.mark.parametrize("clients", [1, 2, 20, 200])
def test_every_mixture_is_convex_by_default(attention, clients):
    method = FedAMP(attention=attention)
    random = torch.Generator().manual_seed(0)
    for spread in (0.0, 0.05, 1.0, 100.0):
        omegas = torch.randn(50, generator=random) + spread * torch.randn(clients, 50, generator=random)
        A = method.watch({"omega": omegas})["A"]
        assert A.shape == (clients, clients)
        assert A.min() >= -1e-6
        torch.testing.assert_close(A.sum(1), torch.ones(clients))
        for i in (0, clients - 1):
            torch.testing.assert_close(mixture(method, omegas, i), A[i] @ omegas, atol=1e-3, rtol=1e-4)


def test_equal_models_are_mixed_evenly_and_distant_ones_hardly():
    A = FedAMP(sigma=2.0).watch({"omega": torch.ones(4, 6)})["A"]
    torch.testing.assert_close(A, torch.full((4, 4), 0.25), atol=1e-5, rtol=0)
    near_and_far = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 0.0]])
    row = FedAMP(sigma=2.0).watch({"omega": near_and_far})["A"][0]
    assert row[1].item() == pytest.approx(np.exp(-0.5) / 3, abs=1e-6)
    assert row[2] < 1e-6


def test_the_default_scale_is_alive_for_lenet5():
    """Models that trained a few rounds apart are neither silent to each other nor all alike."""
    model = build_model("lenet5", (3, 32, 32), 10)
    start = torch.cat(model.init(0))
    random = torch.Generator().manual_seed(0)
    step = torch.nn.functional.normalize(torch.randn(3, len(start), generator=random))
    omegas = start + step * torch.tensor([0.1, 0.5, 2.0])[:, None]  # squared distances about 0.3 and 4
    row = FedAMP().watch({"omega": omegas})["A"][0]
    assert row[0] > row[1] > 1.5 * row[2] > 0.01


def test_a_step_that_would_leave_the_convex_hull_is_refused():
    task = make_task()
    with pytest.raises(InputError, match="more than all"):
        FedAMP(sigma=1.0, alpha=0.6).init(task, 0)
    FedAMP(sigma=1.0, alpha=0.5).init(task, 0)
    FedAMP(sigma=1.0, alpha=0.6, attention="heuristic").init(task, 0)


def test_idle_clients_keep_their_last_model_in_the_mixture():
    task, data, method = make_task(), make_data(), FedAMP()
    server, client = method.init(task, 0)
    _, _, down, up = visit(method, task, client, server, 1, data)
    new = method.absorb(task, server, [1], [down], [up])
    assert torch.equal(new["omega"][[0, 2]], server["omega"][[0, 2]])
    assert torch.equal(new["omega"][1], up["omega"])
    assert not torch.allclose(method.send(task, new, 0)["omega"], method.send(task, server, 0)["omega"], atol=1e-5)
    server = clone(server)  # at the start all rows are one
    donated = method.absorb(replace(task, donate=True), server, [1], [down], [up])
    assert donated["omega"].data_ptr() == server["omega"].data_ptr()
    assert torch.equal(donated["omega"], new["omega"])


def test_bytes_of_lenet5_on_cifar10():
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50), Training(epochs=1))
    data = [Split(torch.zeros(1, 3, 32, 32), torch.tensor([3]))]
    server, client = FedAMP().init(task, 0)
    _, _, down, up = visit(FedAMP(), task, client, server, 0, data)
    assert count_bytes(down) + count_bytes(up) == 4 * 124_012
