"""MOON: its term by hand, a visit against plain autograd, and the first visit, where the term has no gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from test_fedrod import features
from three_clients import make_data, make_task, net, omega, visit

from fedapa.methods.catalogue import make
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.moon import MOON, contrast
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def test_the_term_by_hand() -> None:
    """Cosines 1 and 0 at tau = 0.5: -log e^2 / (e^2 + 1); equal cosines: log 2; lengths do not count."""
    z, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert contrast(z, 5 * z, other, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)))
    assert contrast(z, other, z, 0.5).item() == pytest.approx(math.log(1 + math.exp(2)))
    assert contrast(z, other, other, 0.5).item() == pytest.approx(math.log(2))


def test_a_visit_against_plain_autograd() -> None:
    task, data, method = make_task(lr=0.05, epochs=2), make_data(), MOON(mu=2.0, tau=0.7)
    server, state = method.init(task, 1)
    noise = torch.randn(task.P + task.Q, generator=torch.Generator().manual_seed(0)) / 10
    last = {f"last_{k}": v for k, v in task.parts(server["omega"] + noise).items()}
    w, x, y = server["omega"], data[0].x, data[0].y
    push, near, far = torch.zeros_like(w), features(w, x), features(w + noise, x)
    for _ in range(2):
        leaf = w.clone().requires_grad_()
        cosines = [F.cosine_similarity(features(leaf, x), other) / 0.7 for other in (near, far)]
        term = -(cosines[0].exp() / (cosines[0].exp() + cosines[1].exp())).log().mean()
        push = 0.9 * push + torch.autograd.grad(F.cross_entropy(net(leaf, x), y) + 2.0 * term, leaf)[0]
        w = w - 0.05 * push
    _, trained, _, up = visit(method, task, {**state, **last}, server, 0, data)
    torch.testing.assert_close(up["omega"], w, atol=1e-6, rtol=1e-5)
    assert torch.equal(trained["last_theta"], trained["theta"])
    plain = visit(FedAvg(), task, FedAvg().init(task, 1)[1], server, 0, data)[3]["omega"]
    assert (plain - w).norm() > 1e-3


def test_in_the_first_round_it_is_fedavg() -> None:
    task, data = make_task(), make_data()
    server, state = MOON().init(task, 0)
    up = visit(MOON(), task, state, server, 0, data)[3]["omega"]
    plain = visit(FedAvg(), task, FedAvg().init(task, 0)[1], server, 0, data)[3]["omega"]
    torch.testing.assert_close(up, plain, atol=1e-5, rtol=1e-4)


def test_the_last_model_waits_for_the_next_visit() -> None:
    task, data = make_task(), make_data()
    server, state = MOON().init(task, 0)
    trained = visit(MOON(), task, state, server, 0, data)[1]
    shown = visit(MOON(), task, trained, {"omega": server["omega"] + 1}, 0, data, 1)[0]
    assert torch.equal(omega(shown), server["omega"] + 1)
    assert torch.equal(shown["last_phi"], trained["phi"])
    assert [MOON().evaluated, MOON(fine_tune=True).evaluated] == ["before", "after"]


@pytest.mark.parametrize("law", ["engines-agree", "sent-arrives", "limits-are-met", "bytes-are-true"])
def test_laws_with_private_heads(law: str) -> None:
    LAWS[law](Case(make("moon", shared="extractor")))
