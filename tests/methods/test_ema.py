"""The running mean of a client's own models, around any method: by hand, beside the same federation, and every law."""

from __future__ import annotations

import pytest
import torch
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import digest
from fedapa.methods.catalogue import METHODS, make
from fedapa.methods.wrappers import Ema
from fedapa.verify import LAWS
from fedapa.verify.case import Case


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["fedapa-exact+ema", "fedavg+ema", "dbe+ema"])
def test_law(name: str, law: str) -> None:
    LAWS[law](Case(make(name)))


@pytest.mark.parametrize("name", ["fedapa-exact", "fedper", "fedavg", "local"])
def test_a_running_mean_beside_the_same_federation(name: str) -> None:
    """Messages, server and training are bit by bit those without it; weights by hand: 1, 1/2, 1/3, 3/10, 3/10."""
    task, data = make_task(batch=4), make_data()
    methods = plain, mean = make(name), make(f"{name}+ema", decay=0.7)
    assert mean.evaluated == "after"
    servers = [method.init(task, 0)[0] for method in methods]
    states = [[method.init(task, 0)[1] for _ in data] for method in methods]
    means = [torch.full_like(omega(state), float("nan")) for state in states[0]]
    for t, weight in enumerate((1.0, 1 / 2, 1 / 3, 0.3, 0.3)):
        for k, method in enumerate(methods):
            seen = [visit(method, task, states[k][i], servers[k], i, data, t) for i in range(3)]
            states[k] = [trained for _, trained, _, _ in seen]
            downs, ups = [down for *_, down, _ in seen], [up for *_, up in seen]
            servers[k] = method.absorb(task, servers[k], [0, 1, 2], downs, ups)
        assert digest(servers[0]) == digest(servers[1])
        for i, (client, state) in enumerate(zip(*states, strict=True)):
            assert torch.equal(omega(client), omega(state))
            means[i] = weight * omega(client) + ((1 - weight) * means[i] if t else 0)
            found, wanted = mean.predict(task, state, data[i].x), net(means[i], data[i].x)
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    assert (means[0] - omega(states[0][0])).norm() > 1e-3
    assert plain != mean


def test_a_client_uses_what_arrives_before_its_first_visit_and_its_mean_after() -> None:
    task, data, method = make_task(), make_data(), make("fedapa-exact+ema")
    server, state = method.init(task, 0)
    server = {**server, "theta": server["theta"] + 1}
    shown, trained, down, _ = visit(method, task, state, server, 0, data)
    arrived = torch.cat([down["theta"], state["phi"]])
    torch.testing.assert_close(method.predict(task, shown, data[0].x), net(arrived, data[0].x))
    again = visit(method, task, trained, {**server, "theta": server["theta"] + 1}, 0, data, 1)[0]
    assert torch.equal(method.predict(task, again, data[0].x), method.predict(task, trained, data[0].x))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_running_mean(name: str) -> None:
    """Three rounds of a small federation run to the end, and the mean is not the last model."""
    case = Case(make(f"{name}+ema"))
    assert isinstance(case.method, Ema)
    outcome = case.run(3)
    gaps = [
        (record.state[k] - record.state[f"mean/{k}"]).abs().max().item()
        for record in outcome.records
        for k in ("theta", "phi")
        if record.state["mean_visits"] > 1
    ]
    assert max(gaps) > 1e-6
    assert all(log.final is not None and not log.events for log in outcome.logs[-1:])
