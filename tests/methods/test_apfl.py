"""APFL on a quadratic by hand, against plain autograd, its share, its limits (FedAvg, Local) and late clients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import equal
from fedapa.methods import apfl
from fedapa.methods.apfl import APFL
from fedapa.methods.catalogue import make
from fedapa.methods.fedavg import FedAvg
from fedapa.training.local import Local
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def own(tree):
    return torch.cat([tree["own_theta"], tree["own_phi"]])


def quadratic(task, params, batch, given):
    return sum(0.5 * params[k].square().sum() for k in ("theta", "phi"))


def test_a_quadratic_by_hand(monkeypatch) -> None:
    """v = 2, w = 1: alpha <- 0.5 - 0.1 * 1.5 = 0.35; then u = 1.35 and v <- 2 - 0.1 * 0.35 * 1.35."""
    monkeypatch.setattr(apfl, "task_loss", quadratic)
    task, data = make_task(lr=0.1, momentum=0.0, epochs=1), make_data()
    size = task.P + task.Q
    method = APFL(alpha=0.5, alpha_lr=0.1 / size, start="common")
    server, state = method.init(task, 0)
    server = {"omega": torch.ones(size)}
    state = {**state, "own_theta": torch.full((task.P,), 2.0), "own_phi": torch.full((task.Q,), 2.0)}
    shown, trained, _, up = visit(method, task, state, server, 0, data)
    torch.testing.assert_close(omega(shown), torch.full((size,), 1.5))
    torch.testing.assert_close(trained["alpha"], torch.tensor([0.35]))
    torch.testing.assert_close(own(trained), torch.full((size,), 2 - 0.1 * 0.35 * 1.35))
    torch.testing.assert_close(up["omega"], torch.full((size,), 0.9))
    torch.testing.assert_close(omega(trained), 0.35 * own(trained) + 0.65 * up["omega"])


@pytest.mark.parametrize("mix", ["parameters", "logits"])
def test_two_visits_against_plain_autograd(mix: str) -> None:
    """The private model keeps its momentum, the global one starts afresh."""
    task, data = make_task(lr=0.05, epochs=2), make_data()
    method = APFL(alpha=0.3, alpha_lr=0.0, mix=mix)
    server, state = method.init(task, 1)
    w = v = server["omega"]
    v_push, memory = torch.zeros_like(v), {}

    def answer(v, w):
        x = data[0].x
        return net(0.3 * v + 0.7 * w, x) if mix == "parameters" else 0.3 * net(v, x) + 0.7 * net(w, x)

    for t in range(2):
        w_push = torch.zeros_like(w)
        for _ in range(2):
            leaf, global_leaf = v.clone().requires_grad_(), w.clone().requires_grad_()
            slope = torch.autograd.grad(F.cross_entropy(answer(leaf, w), data[0].y), leaf)[0]
            global_slope = torch.autograd.grad(F.cross_entropy(net(global_leaf, data[0].x), data[0].y), global_leaf)[0]
            v_push, w_push = 0.9 * v_push + slope, 0.9 * w_push + global_slope
            v, w = v - 0.05 * v_push, w - 0.05 * w_push
        local = Local(task, 0, t, 0, data[0], memory)
        down = method.send(task, server, 0)
        state, up = method.train(task, method.receive(task, state, down, local), down, local)
        memory = local.memory
        torch.testing.assert_close(up["omega"], w, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(own(state), v, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(method.predict(task, state, data[0].x), answer(v, w), atol=1e-5, rtol=1e-4)
        server = method.absorb(task, server, [0], [down], [up])
    assert set(memory) == {"main/own_theta", "main/own_phi"}


def test_the_federation_is_fedavg_whatever_the_private_models_do() -> None:
    task, data = make_task(batch=4), make_data()
    ups = []
    for method in (APFL(alpha_lr=1.0), FedAvg()):
        server, client = method.init(task, 0)
        ups.append(visit(method, task, client, server, 0, data)[3])
    assert equal(*ups)


def test_the_share_follows_whoever_is_better_and_stays_a_share() -> None:
    task, data = make_task(epochs=5), make_data()
    method = APFL(alpha=0.5, alpha_lr=0.05)
    server, state = method.init(task, 0)
    good = visit(FedAvg(), task, FedAvg().init(task, 0)[1], server, 0, data)[3]
    for _ in range(5):
        good = visit(FedAvg(), task, FedAvg().init(task, 0)[1], good, 0, data)[3]
    bad = {"omega": 2 * server["omega"] - good["omega"]}
    held = {**state, **{f"own_{k}": v for k, v in task.parts(good["omega"]).items()}, "begun": torch.ones(1)}
    up = visit(method, task, held, bad, 0, data)[1]["alpha"]
    held = {**held, **{f"own_{k}": v for k, v in task.parts(bad["omega"]).items()}}
    down = visit(method, task, held, good, 0, data)[1]["alpha"]
    assert down < 0.5 < up
    for rate in (1e3, 1e5):
        held = visit(APFL(alpha_lr=rate), task, held, good, 0, data)[1]
        assert 0 <= held["alpha"] <= 1


def test_a_client_that_comes_late_begins_with_the_model_that_it_finds() -> None:
    task, data = make_task(), make_data()
    server, state = APFL().init(task, 0)
    later = {"omega": server["omega"] + 1}
    torch.testing.assert_close(omega(visit(APFL(), task, state, later, 0, data)[0]), later["omega"])
    shown = omega(visit(APFL(start="common"), task, APFL(start="common").init(task, 0)[1], later, 0, data)[0])
    torch.testing.assert_close(shown, server["omega"] + 0.5)
    trained = visit(APFL(), task, state, later, 0, data)[1]
    again = visit(APFL(), task, trained, {"omega": later["omega"] + 5}, 0, data, 1)[0]
    assert torch.equal(own(again), own(trained))


@pytest.mark.parametrize("law", ["engines-agree", "functions-are-pure", "sent-arrives", "resume-is-exact"])
def test_laws_with_mixed_logits(law: str) -> None:
    LAWS[law](Case(make("apfl", mix="logits")))
