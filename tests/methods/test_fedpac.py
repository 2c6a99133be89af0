"""FedPAC: statistics and head weights against explicit formulas and scipy, both phases, idle clients, bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from few_classes import lenet_task, make_data, make_task, visit
from scipy.optimize import minimize

from fedapa.core.tree import count_bytes, distance
from fedapa.data.federated import Split
from fedapa.methods.fedpac import FedPAC, combination, statistics
from fedapa.methods.fedproto import attracted
from fedapa.training.task import Batch

torch.set_num_threads(1)


def test_statistics_follow_the_published_formula():
    random = np.random.default_rng(0)
    z, y = random.standard_normal((9, 4)).astype(np.float32), np.array([0, 0, 0, 2, 2, 2, 2, 2, 0])
    sums = torch.stack([torch.from_numpy(z[y == k]).sum(0) for k in range(3)])
    h, V = statistics(torch.from_numpy(z), sums)
    want, V_want = np.zeros((3, 4)), 0.0
    for k in (0, 2):
        share, own = (y == k).mean(), z[y == k]
        want[k] = share * own.mean(0)
        V_want += share * (own**2).sum(1).mean() - share**2 * (own.mean(0) ** 2).sum()
    assert np.allclose(h, want, atol=1e-6)
    assert V.item() == pytest.approx(V_want / 9, rel=1e-5)


def test_head_weights_equal_scipy():
    random = np.random.default_rng(1)
    h, V = random.standard_normal((4, 6)), random.random(4) * 3
    A = combination(torch.from_numpy(h), torch.from_numpy(V))
    assert torch.allclose(A.sum(1), torch.ones(4))
    for i in range(4):
        D = np.array([[(h[i] - h[j]) @ (h[i] - h[l]) for l in range(4)] for j in range(4)])
        Q = np.diag(V) + D
        start, box = np.full(4, 0.25), [(0, 1)] * 4
        found = minimize(
            lambda a, Q=Q: a @ Q @ a, start, method="SLSQP", bounds=box, tol=1e-12,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
        )  # fmt: skip
        assert np.allclose(A[i], found.x, atol=2e-3)
        assert A[i].numpy() @ Q @ A[i].numpy() <= found.fun + 1e-4


def test_equal_clients_share_equally_and_strangers_do_not():
    h = torch.tensor([[1.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    A = combination(h, torch.full((3,), 0.1))
    assert torch.allclose(A, torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), atol=2e-3)
    assert torch.allclose(combination(torch.ones(2, 3), torch.zeros(2)), torch.full((2, 2), 0.5), atol=1e-4)
    assert combination(torch.ones(1, 3), torch.zeros(1)).tolist() == [[1.0]]


def test_small_weights_are_dropped_and_the_rest_sums_to_one():
    """Equal features: weights go as 1 / V. 1/2000 of 1 is below a thousandth of the whole, 1/400 is not."""
    for V, row in ((2000.0, [0.5, 0.5, 0.0]), (400.0, [400 / 801, 400 / 801, 1 / 801])):
        A = combination(torch.zeros(3, 2), torch.tensor([1.0, 1.0, V]))
        assert A[0].tolist() == pytest.approx(row, abs=1e-6)


def test_both_phases_by_plain_autograd():
    task, method, data = make_task(epochs=1, momentum=0.0, lr=0.05), FedPAC(lam=2.0), make_data()[0]
    server, client = method.init(task, 0)
    c = torch.linspace(0, 1, 3 * 64).view(3, 64)
    server = {**server, "prototypes": c, "counts": torch.tensor([4.0, 0.0, 1.0])}
    trained, _, up = visit(method, task, server, client, 0)

    theta, phi = client["theta"].clone().requires_grad_(), client["phi"].clone().requires_grad_()
    own = task.features({"theta": theta.detach()}, data.x)[data.y == 1].mean(0)
    target = torch.stack([c[0], own, c[2]])  # class 1 is known to nobody else
    loss = F.cross_entropy(task.predict({"theta": theta, "phi": phi}, data.x), data.y)
    (slope,) = torch.autograd.grad(loss, phi)
    phi = (phi - 0.1 * (slope + 5e-4 * phi)).detach()
    z = task.features({"theta": theta}, data.x)
    loss = F.cross_entropy(task.logits({"phi": phi}, z), data.y) + 2 * (z - target[data.y]).square().mean()
    (slope,) = torch.autograd.grad(loss, theta)
    assert torch.allclose(trained["phi"], phi, atol=1e-6)
    assert torch.allclose(trained["theta"], theta - 0.05 * slope, atol=1e-6)

    z = task.features(trained, data.x)
    assert torch.allclose(up["sums"][1], z[data.y == 1].sum(0), atol=1e-5)
    h_before = task.features(client, data.x)[data.y == 2].sum(0) / 12
    assert torch.allclose(up["h"][2], h_before, atol=1e-6)


def test_the_pull_has_a_gradient_and_is_off_before_there_are_prototypes():
    task, data = make_task(), make_data()[0]
    server, client = FedPAC().init(task, 0)
    given = {"phi": client["phi"], "target": torch.ones(3, 64), "present": torch.ones(3)}
    loss = [attracted(task, {"theta": client["theta"] + e}, Batch(*data), {**given, "lam": torch.tensor(lam)})
            for lam in (0.0, 1.0) for e in (-1e-2, 1e-2)]  # fmt: skip
    assert abs(float((loss[3] - loss[2]) - (loss[1] - loss[0]))) > 1e-3
    weak, strong = (visit(FedPAC(lam=lam), task, server, client, 0)[0] for lam in (0.0, 5.0))
    assert distance(weak, strong) == 0
    server = {**server, "counts": torch.ones(3)}
    weak, strong = (visit(FedPAC(lam=lam), task, server, client, 0)[0] for lam in (0.0, 5.0))
    assert distance(weak, strong) > 1e-5


def test_server_by_hand_with_idle_clients_and_absent_classes():
    task, method = make_task(), FedPAC()
    server, client = method.init(task, 0)
    server = {**server, "prototypes": torch.full((3, 64), 7.0), "counts": torch.tensor([1.0, 1.0, 1.0])}
    visits = [visit(method, task, server, client, i) for i in (1, 2)]  # nobody holds class 2
    ups = [v[2] for v in visits]
    new = method.absorb(task, server, [1, 2], [v[1] for v in visits], ups)
    assert torch.equal(new["phi"][0], server["phi"][0])
    A = combination(torch.stack([u["h"].flatten() for u in ups]), torch.cat([u["V"] for u in ups]))
    mixed = A @ torch.stack([u["phi"] for u in ups])
    assert torch.allclose(new["phi"][1:], mixed, atol=1e-6)
    assert torch.allclose(new["theta"], (7 * ups[0]["theta"] + 5 * ups[1]["theta"]) / 12, atol=1e-6)
    together = (ups[0]["sums"][0] + ups[1]["sums"][0]) / (ups[0]["counts"][0] + ups[1]["counts"][0])
    assert torch.allclose(new["prototypes"][0], together, atol=1e-6)
    assert torch.equal(new["prototypes"][2], server["prototypes"][2])
    assert torch.equal(method.send(task, new, 1)["phi"], new["phi"][1])


def test_arrival_order_changes_nothing():
    task, method = make_task(), FedPAC()
    server, client = method.init(task, 0)
    visits = [visit(method, task, server, client, i) for i in range(3)]
    downs, ups = [v[1] for v in visits], [v[2] for v in visits]
    one = method.absorb(task, server, [0, 1, 2], downs, ups)
    other = method.absorb(task, server, [2, 0, 1], [downs[k] for k in (2, 0, 1)], [ups[k] for k in (2, 0, 1)])
    assert distance(one, other) < 1e-5


def test_without_collaboration_everybody_keeps_the_own_head():
    task, method = make_task(), FedPAC(collaborate=False)
    server, client = method.init(task, 0)
    trained, down, up = visit(method, task, server, client, 1)
    new = method.absorb(task, server, [1], [down], [up])
    assert torch.equal(new["phi"][1], trained["phi"])


def test_one_sample_and_one_client_stay_finite():
    task, method = make_task(), FedPAC()
    server, client = method.init(task, 0)
    data = Split(torch.ones(1, 4), torch.tensor([2]))
    for t in range(2):
        client, down, up = visit(method, task, server, client, 0, t, data)
        server = method.absorb(task, server, [0], [down], [up])
    assert up["V"].item() == pytest.approx(0, abs=1e-6)
    assert all(torch.isfinite(leaf).all() for leaf in (*server.values(), *client.values()))


def test_bytes():
    task, method = lenet_task(), FedPAC()
    server, client = method.init(task, 0)
    data = Split(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    _, down, up = visit(method, task, server, client, 0, data=data)
    assert count_bytes(down) == 4 * (61_156 + 850 + 840) + 4 * 10  # + which classes exist
    assert count_bytes(up) == 4 * (61_156 + 850 + 840 + 840 + 1 + 10)
