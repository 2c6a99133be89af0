"""SCAFFOLD by hand over two rounds, the mean of its control variates, momentum, and FedAvg at one step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from three_clients import SIZES, make_data, make_task, visit

from fedapa.data.federated import Split
from fedapa.methods import scaffold
from fedapa.methods.catalogue import make
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.scaffold import Scaffold, local_steps, total_weight
from fedapa.training.local import Local
from fedapa.training.settings import Training
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def played(method, task, server, states, data, ids, t=0):
    seen = [visit(method, task, states[i], server, i, data, t) for i in ids]
    for i, (_, trained, _, _) in zip(ids, seen, strict=True):
        states[i] = trained
    return method.absorb(task, server, ids, [s[2] for s in seen], [s[3] for s in seen])


def test_two_rounds_by_hand(monkeypatch) -> None:
    """f_i = (x - a_i)^2 / 2, a = (0, 2), two steps of 0.5 from x = 3."""

    def quadratic(task, params, batch, given):
        return sum(0.5 * (v - batch.x.mean()).square().sum() for v in params.values())

    monkeypatch.setattr(scaffold, "task_loss", quadratic)
    task = replace(make_task(lr=0.5, momentum=0.0, epochs=2), sizes=torch.tensor([5, 5]))
    data = [Split(torch.full((5, 4), a), torch.zeros(5, dtype=torch.long)) for a in (0.0, 2.0)]
    method = Scaffold()
    server, state = method.init(task, 0)
    server, states = {**server, "omega": torch.full_like(server["omega"], 3.0)}, [state, state]
    for x, c, own in ((1.5, 1.5, (2.25, 0.75)), (1.125, 0.375, (1.3125, -0.5625))):
        server = played(method, task, server, states, data, [0, 1])
        torch.testing.assert_close(server["omega"], torch.full_like(server["omega"], x))
        torch.testing.assert_close(server["c"], torch.full_like(server["c"], c))
        for found, wanted in zip(states, own, strict=True):
            torch.testing.assert_close(found["c"], torch.full_like(server["c"], wanted))


@pytest.mark.parametrize("setting", [{}, {"average": "samples"}, {"shared": "extractor"}, {"server_lr": 0.5}])
def test_c_is_the_mean_of_all_control_variates_whoever_takes_part(setting) -> None:
    case = Case(make("scaffold", **setting))
    done = case.run()
    assert min(len(log.trained) for log in done.logs) < 4
    own = torch.stack([record.state["c"] for record in done.records])
    weights = case.task.sizes.float() if setting.get("average") == "samples" else torch.ones(4)
    torch.testing.assert_close(done.server["c"], weights @ own / weights.sum(), atol=1e-6, rtol=1e-4)
    assert own.norm() > 0.1
    larger = case.task.with_client("late", 50)
    server = case.method.admit(larger, done.server)
    assert torch.equal(server["c"], done.server["c"])  # it enters the mean with its first upload
    weights = torch.cat([weights, torch.tensor([50.0 if "average" in setting else 1.0])])
    late = Split(*(leaf[:1].expand(50, *leaf.shape[1:]) for leaf in case.data.clients[0].train))
    state, data = case.method.init(larger, 7)[1], [case.data.clients[1].train, late]
    seen = [
        visit(case.method, larger, *pair)
        for pair in ((done.records[1].state, server, 0, data), (state, server, 1, data))
    ]
    server = case.method.absorb(larger, server, [1, 4], [s[2] for s in seen], [s[3] for s in seen])
    own = torch.stack([*(seen[0][1]["c"] if i == 1 else own[i] for i in range(4)), seen[1][1]["c"]])
    torch.testing.assert_close(server["c"], weights @ own / weights.sum(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("epochs", [1, 2, 10])
def test_a_control_variate_is_the_gradient_whatever_the_momentum(monkeypatch, momentum, epochs) -> None:
    monkeypatch.setattr(scaffold, "task_loss", lambda task, params, batch, given: 0.7 * params["theta"].sum())
    task, data, method = make_task(lr=0.1, momentum=momentum, epochs=epochs), make_data(), Scaffold()
    server, state = method.init(task, 0)
    server, state = {**server, "c": server["c"] + 0.2}, {**state, "c": state["c"] - 0.1}
    trained = visit(method, task, state, server, 0, data)[1]
    torch.testing.assert_close(trained["c"][: task.P], torch.full((task.P,), 0.7), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(trained["c"][task.P :], torch.zeros(task.Q), atol=1e-4, rtol=0)


def test_weights_of_gradients_under_momentum() -> None:
    assert [round(total_weight(k, 0.9), 1) for k in (1, 2, 10, 100)] == [1.0, 2.9, 41.4, 910.0]
    assert [total_weight(k, 0.0) for k in (1, 7)] == [1, 7]


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_server_knows_how_many_steps_a_client_takes(drop_last: bool) -> None:
    for samples in (1, 7, 8, 9, 16, 23):
        training = Training(batch=8, epochs=3, drop_last=drop_last)
        task = replace(make_task(), training=training)
        data = Split(torch.zeros(samples, 4), torch.zeros(samples, dtype=torch.long))
        assert local_steps(training, samples) == len(list(Local(task, 0, 0, 0, data).batches(3)))


def test_one_step_of_all_clients_is_fedavg_without_weights() -> None:
    """The corrections add up to 0; with c_i that do not, the third round would differ."""
    data, task = make_data(), make_task(lr=0.3, momentum=0.0, epochs=1)
    even = replace(task, sizes=torch.ones(3))
    method, plain = Scaffold(), FedAvg()
    server, state = method.init(task, 0)
    x, states = server["omega"], [state] * 3
    for t in range(3):
        server = played(method, task, server, states, data, [0, 1, 2], t)
        ups = [visit(plain, even, plain.init(even, 0)[1], {"omega": x}, i, data, t)[3]["omega"] for i in range(3)]
        x = torch.stack(ups).mean(0)
        torch.testing.assert_close(server["omega"], x, atol=1e-5, rtol=1e-4)
    assert states[0]["c"].norm() > 0.1


def test_models_are_weighed_alike_unless_by_samples() -> None:
    task = make_task()
    server = {"omega": torch.zeros(2), "c": torch.zeros(2), "counted": torch.ones(3)}
    ups = [{"omega": torch.tensor([1.0, 0.0])}, {"omega": torch.tensor([0.0, 1.0])}]
    for average, share in (("clients", 0.5), ("samples", SIZES[0] / (SIZES[0] + SIZES[2]))):
        found = Scaffold(average=average).absorb(task, server, [0, 2], [server, server], ups)["omega"]
        torch.testing.assert_close(found, torch.tensor([share, 1 - share]))


@pytest.mark.parametrize("law", ["engines-agree", "sent-arrives", "limits-are-met", "bytes-are-true"])
def test_laws_with_private_heads(law: str) -> None:
    LAWS[law](Case(make("scaffold", shared="extractor")))


def test_the_model_in_use() -> None:
    assert Scaffold().evaluated == "before"
    assert Scaffold(fine_tune=True).evaluated == "after"
