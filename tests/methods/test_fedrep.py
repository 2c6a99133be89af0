"""FedRep: both phases against explicit steps, the sample-weighted extractor, and its bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from few_classes import lenet_task, make_data, make_task, visit

from fedapa.core.tree import count_bytes, equal
from fedapa.data.federated import Split
from fedapa.methods.fedrep import FedRep
from fedapa.training.local import Local

torch.set_num_threads(1)


def test_head_first_then_extractor_by_plain_autograd():
    task, data = make_task(epochs=1, momentum=0.0, lr=0.1), make_data()[0]
    method = FedRep(head_epochs=2)
    server, client = method.init(task, 0)
    trained, _, up = visit(method, task, server, client, 0)

    theta, phi = client["theta"].clone().requires_grad_(), client["phi"].clone().requires_grad_()
    for turn in (phi, phi, theta):  # 12 samples are one batch: one step per epoch
        loss = F.cross_entropy(task.predict({"theta": theta, "phi": phi}, data.x), data.y)
        (slope,) = torch.autograd.grad(loss, turn)
        with torch.no_grad():
            turn -= 0.1 * slope
    assert torch.allclose(trained["phi"], phi, atol=1e-6)
    assert torch.allclose(trained["theta"], theta, atol=1e-6)
    assert torch.equal(up["theta"], trained["theta"])
    assert not torch.allclose(trained["theta"], client["theta"])


def test_epochs_of_both_phases():
    task = make_task(epochs=2)
    server, client = FedRep().init(task, 0)
    frozen, _, _ = visit(FedRep(head_epochs=0), task, server, client, 0)
    assert torch.equal(frozen["phi"], client["phi"])
    one, _, _ = visit(FedRep(extractor_epochs=1), task, server, client, 0)
    two, _, _ = visit(FedRep(extractor_epochs=2), task, server, client, 0)
    default, _, _ = visit(FedRep(), task, server, client, 0)
    assert equal(two, default)
    assert not equal(one, default)


def test_the_extractor_is_averaged_by_samples_over_whoever_answered():
    task = make_task()
    server, _ = FedRep().init(task, 0)
    ups = [{"theta": torch.full((task.P,), v), "n": torch.tensor([n])} for v, n in ((1.0, 30.0), (5.0, 10.0))]
    server = FedRep().absorb(task, server, [0, 2], [], ups)
    assert torch.allclose(server["theta"], torch.full((task.P,), 2.0))
    assert torch.equal(FedRep().send(task, server, 1)["theta"], server["theta"])


def test_the_head_stays_when_a_new_extractor_arrives():
    task = make_task()
    server, client = FedRep().init(task, 0)
    client, _, up = visit(FedRep(), task, server, client, 1)
    assert set(up) == {"theta", "n"}
    local = Local(task, 1, 1, 0, make_data()[1])
    back = FedRep().receive(task, client, {"theta": torch.zeros(task.P)}, local)
    assert torch.equal(back["phi"], client["phi"])
    assert back["theta"].abs().max() == 0


@pytest.mark.parametrize("samples", [1, 2])
def test_tiny_clients_stay_finite(samples):
    task = make_task()
    server, client = FedRep().init(task, 0)
    data = Split(torch.ones(samples, 4), torch.zeros(samples, dtype=torch.long))
    client, _, up = visit(FedRep(), task, server, client, 0, data=data)
    assert all(torch.isfinite(leaf).all() for leaf in (*client.values(), *up.values()))


def test_bytes():
    task = lenet_task()
    server, client = FedRep().init(task, 0)
    assert count_bytes(FedRep().send(task, server, 0)) == 4 * 61_156
    data = Split(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    _, _, up = visit(FedRep(head_epochs=1), task, server, client, 0, data=data)
    assert count_bytes(up) == 4 * 61_156 + 4
