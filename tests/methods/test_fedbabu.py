"""FedBABU: the head that never changes, FedRep without head epochs beneath, and the tuned model by plain autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import equal
from fedapa.methods.fedbabu import FedBABU
from fedapa.methods.fedrep import FedRep

torch.set_num_threads(1)


def test_the_federation_is_that_of_fedrep_without_head_epochs() -> None:
    """On whole batches: the two draw mini-batches from different streams."""
    task, data, servers = make_task(epochs=3), make_data(), []
    for method in (FedBABU(), FedRep(head_epochs=0)):
        server, state = method.init(task, 0)
        states = [state] * 3
        for t in range(2):
            seen = [visit(method, task, states[i], server, i, data, t) for i in range(3)]
            states = [s[1] for s in seen]
            server = method.absorb(task, server, [0, 1, 2], [s[2] for s in seen], [s[3] for s in seen])
        servers.append(server["theta"])
    torch.testing.assert_close(*servers, atol=1e-6, rtol=1e-5)
    assert (servers[0] - FedBABU().init(task, 0)[0]["theta"]).norm() > 0.01


def test_what_goes_up_does_not_depend_on_fine_tuning() -> None:
    task, data = make_task(batch=4), make_data()
    ups = []
    for method in (FedBABU(), FedBABU(tune_epochs=0), FedBABU(tuned="head")):
        server, state = method.init(task, 0)
        ups.append(visit(method, task, state, server, 0, data)[3])
    assert equal(ups[0], ups[1])
    assert equal(ups[0], ups[2])


@pytest.mark.parametrize("tuned", ["model", "head"])
def test_the_tuned_model_starts_from_what_arrived(tuned: str) -> None:
    task, data = make_task(lr=0.05), make_data()
    method = FedBABU(tune_epochs=3, tuned=tuned)
    server, state = method.init(task, 1)
    server = {"theta": server["theta"] + 0.01}
    w = torch.cat([server["theta"], state["phi"]])
    moving = torch.ones_like(w)
    moving[: task.P if tuned == "head" else 0] = 0
    v = torch.zeros_like(w)
    for _ in range(3):
        leaf = w.clone().requires_grad_()
        v = 0.9 * v + torch.autograd.grad(F.cross_entropy(net(leaf, data[0].x), data[0].y), leaf)[0]
        w = w - 0.05 * v * moving
    shown, trained, _, _ = visit(method, task, state, server, 0, data)
    torch.testing.assert_close(omega(trained), w, atol=1e-6, rtol=1e-5)
    assert torch.equal(omega(shown), torch.cat([server["theta"], state["phi"]]))


def test_the_common_head_comes_back_with_every_model() -> None:
    task, data, method = make_task(), make_data(), FedBABU()
    server, state = method.init(task, 0)
    _, trained, _, up = visit(method, task, state, server, 0, data)
    assert not torch.allclose(trained["phi"], state["phi"], atol=1e-4)
    shown, _, _, again = visit(method, task, trained, server, 0, data)
    assert torch.equal(shown["phi"], state["phi"])
    assert equal(up, again)
    assert method.evaluated == "after"
