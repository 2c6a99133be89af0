"""Per-FedAvg on a quadratic by hand, against plain autograd in both orders, and the model in use."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.data.federated import Split
from fedapa.methods import perfedavg
from fedapa.methods.catalogue import make
from fedapa.methods.perfedavg import PerFedAvg, halves
from fedapa.training.local import Local
from fedapa.training.task import Batch
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def quadratic(task, params, batch, given):
    return sum(v.square().sum() for v in params.values())  # h/2 |w|^2 with h = 2


@pytest.mark.parametrize(("order", "wanted"), [("first", 0.2), ("exact", 0.36)])
def test_a_quadratic_by_hand(monkeypatch, order: str, wanted: float) -> None:
    """h = 2, alpha = 0.1, w = 1, beta = 0.5: gradients 1.6 and 1.28; the model in use is 1 - 0.1 * 2."""
    monkeypatch.setattr(perfedavg, "task_loss", quadratic)
    task, data = make_task(lr=0.5, momentum=0.0, epochs=1), make_data()
    method = PerFedAvg(alpha=0.1, order=order)
    server, state = method.init(task, 0)
    server = {"omega": torch.ones_like(server["omega"])}
    shown, trained, _, up = visit(method, task, state, server, 0, data)
    torch.testing.assert_close(up["omega"], torch.full_like(up["omega"], wanted))
    torch.testing.assert_close(omega(shown), torch.full_like(up["omega"], 0.8))
    torch.testing.assert_close(omega(trained), torch.full_like(up["omega"], 0.8 * wanted))


def loss(w, split: Split):
    return F.cross_entropy(net(w, split.x), split.y)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("order", ["first", "exact"])
@pytest.mark.parametrize("engine", [False, True])
def test_one_step_against_plain_autograd(order: str, split: bool, engine: bool) -> None:
    from dataclasses import replace

    task, data = replace(make_task(lr=0.05, epochs=1), vectorise=engine), make_data()[0]
    method = PerFedAvg(alpha=0.3, order=order, split=split)
    server, _ = method.init(task, 1)
    index = next(iter(Local(task, 0, 0, 0, data).batches(1)))
    first, second = (index[:6], index[6:]) if split else (index, index)
    w = server["omega"].clone().requires_grad_()
    slope = torch.autograd.grad(loss(w, Split(data.x[first], data.y[first])), w, create_graph=True)[0]
    adapted = w - 0.3 * (slope if order == "exact" else slope.detach())
    gradient = torch.autograd.grad(loss(adapted, Split(data.x[second], data.y[second])), w)[0]
    up = visit(method, task, method.init(task, 1)[1], server, 0, [data])[3]
    torch.testing.assert_close(up["omega"], w.detach() - 0.05 * gradient, atol=1e-6, rtol=1e-4)


def test_the_model_in_use_is_adapted_to_own_train_data_on_every_look() -> None:
    task, data, method = make_task(), make_data(), PerFedAvg(alpha=0.4)
    server, state = method.init(task, 0)
    shown = visit(method, task, state, server, 1, data)[0]
    leaf = server["omega"].clone().requires_grad_()
    wanted = leaf.detach() - 0.4 * torch.autograd.grad(loss(leaf, data[1]), leaf)[0]
    torch.testing.assert_close(omega(shown), wanted, atol=1e-6, rtol=1e-5)
    assert method.evaluated == "before"
    assert torch.equal(omega(visit(PerFedAvg(adapt_steps=0), task, state, server, 1, data)[0]), server["omega"])


def test_personal_steps_have_neither_momentum_nor_weight_decay() -> None:
    data = make_data()
    ways = []
    for steps in (1, 3):
        task = make_task(momentum=0.9, weight_decay=0.5, lr=0.01)
        server, state = PerFedAvg().init(task, 0)
        shown = visit(PerFedAvg(alpha=1e-4, adapt_steps=steps), task, state, server, 0, data)[0]
        ways.append((omega(shown) - server["omega"]).norm())
    assert ways[1] / ways[0] == pytest.approx(3, rel=1e-2)


def test_batches_are_cut_in_two() -> None:
    x, y = torch.arange(5.0)[:, None], torch.arange(5)
    first, second = halves(Batch(x, y))
    assert (first.y.tolist(), second.y.tolist()) == ([0, 1], [2, 3, 4])
    assert (first.x[:, 0].tolist(), second.x[:, 0].tolist()) == ([0, 1], [2, 3, 4])
    assert all(len(part.y) == 1 for part in halves(Batch(x[:1], y[:1])))
    assert all(len(part.y) == 3 for part in halves(Batch(x[:3], y[:3]), least=2))


@pytest.mark.parametrize("law", ["engines-agree", "functions-are-pure", "limits-are-met", "bytes-are-true"])
@pytest.mark.parametrize("setting", [{"shared": "extractor"}, {"order": "exact"}])
def test_laws_of_variants(law: str, setting: dict[str, str]) -> None:
    LAWS[law](Case(make("perfedavg", **setting)))


def test_with_private_heads_training_goes_on_from_the_head_that_was_not_adapted() -> None:
    task, data, method = make_task(), make_data(), PerFedAvg(alpha=0.5, shared="extractor")
    server, state = method.init(task, 0)
    _, trained, _, up = visit(method, task, state, server, 0, data)
    assert set(up) == {"theta", "n"}
    assert not torch.allclose(trained["head"], trained["phi"], atol=1e-4)
    still = visit(PerFedAvg(alpha=0.0, shared="extractor"), task, trained, server, 0, data, 1)[0]
    assert torch.equal(still["phi"], trained["head"])
