"""DBE: the initialisation phase, the loss against explicit steps, its limit FedAvg, and its bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from few_classes import lenet_task, make_data, make_task, play, visit

from fedapa.core.tree import count_bytes, distance
from fedapa.data.federated import Split
from fedapa.methods.dbe import DBE, debiased
from fedapa.methods.fedavg import FedAvg
from fedapa.training.local import Local
from fedapa.training.task import Batch

torch.set_num_threads(1)


def ready(task, method):
    """A server past its initialisation, and a client with a bias."""
    server, client = method.init(task, 0)
    mean = torch.linspace(0, 1, 64)
    server = {**server, "mean": mean, "ready": torch.ones(1), "told": torch.ones(3)}
    return server, {**client, "b": torch.linspace(-0.1, 0.1, 64), "mean": mean}


def test_the_first_round_finds_the_mean_and_discards_the_models():
    task, method = make_task(epochs=1), DBE()
    server, client = method.init(task, 0)
    visits = [visit(method, task, server, client, i) for i in (0, 2)]
    new = method.absorb(task, server, [0, 2], [v[1] for v in visits], [v[2] for v in visits])
    means = [task.features(client, make_data()[i].x).mean(0) for i in (0, 2)]  # one full batch, mu = 1
    assert torch.allclose(new["mean"], (12 * means[0] + 5 * means[1]) / 17, atol=1e-6)
    assert torch.equal(new["omega"], server["omega"])
    assert new["ready"].item() == 1
    for trained, _, up in visits:
        assert trained["b"].abs().max() == 0
        assert set(up) == {"n", "mean"}  # the models are not even sent
    keeping = DBE(keep_first=True)
    visits = [visit(keeping, task, server, client, i) for i in (0, 2)]
    kept = keeping.absorb(task, server, [0, 2], [v[1] for v in visits], [v[2] for v in visits])
    assert not torch.equal(kept["omega"], server["omega"])
    assert torch.equal(kept["mean"], new["mean"])


def test_the_mean_is_frozen_afterwards():
    task, method = make_task(), DBE()
    server, client = ready(task, method)
    new = play(method, task, server, client, [0, 1])
    assert torch.equal(new["mean"], server["mean"])
    assert not torch.equal(new["omega"], server["omega"])


def test_the_default_pull_of_one_feature_is_that_of_the_authors():
    """kappa = 50 was chosen for 512 features: 50/512 for each, whatever their number; kappa / d with width 0."""
    assert [DBE().pull(d) / d for d in (512, 84)] == pytest.approx([50 / 512, 50 / 512])
    assert DBE(width=0).pull(84) == 50


def test_the_default_pull_is_what_training_uses():
    task = make_task(epochs=1)
    scaled = DBE(kappa=50 * task.d / 512, width=0)
    states = [visit(method, task, *ready(task, method), 0)[0] for method in (DBE(), scaled, DBE(width=0))]
    assert torch.equal(states[0]["theta"], states[1]["theta"])
    assert not torch.equal(states[0]["theta"], states[2]["theta"])


@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_two_steps_by_plain_autograd(mu):
    task, method, data = make_task(epochs=2, momentum=0.0, lr=0.02), DBE(kappa=3.0, width=0, mu=mu), make_data()[0]
    server, client = ready(task, method)
    trained, _, up = visit(method, task, server, client, 0)
    names, m = ("theta", "phi", "b"), torch.zeros(64)
    params = {k: client[k].clone() for k in names}
    for _ in range(2):
        params = {k: v.detach().requires_grad_() for k, v in params.items()}
        z = task.features(params, data.x)
        m = (1 - mu) * m.detach() + mu * z.mean(0)
        loss = F.cross_entropy(task.logits(params, z + params["b"]), data.y)
        loss = loss + 3.0 * (0.5 * (m - server["mean"]) ** 2).mean()
        slopes = torch.autograd.grad(loss, list(params.values()))
        params = {k: v - 0.02 * g for (k, v), g in zip(params.items(), slopes, strict=True)}
    for name in names:
        assert torch.allclose(trained[name], params[name], atol=1e-6)
    assert set(up) == {"omega", "n"}
    assert not torch.allclose(trained["b"], client["b"])


@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_the_running_mean_of_the_first_round_by_plain_autograd(mu):
    task, method, data = make_task(epochs=2, momentum=0.0, lr=0.02), DBE(kappa=3.0, width=0, mu=mu), make_data()[0]
    server, client = method.init(task, 0)
    _, _, up = visit(method, task, server, client, 0)
    params, m = {k: client[k].clone() for k in ("theta", "phi")}, torch.zeros(64)
    for _ in range(2):
        params = {k: v.detach().requires_grad_() for k, v in params.items()}
        z = task.features(params, data.x)
        m = (1 - mu) * m.detach() + mu * z.mean(0)
        slopes = torch.autograd.grad(F.cross_entropy(task.logits(params, z), data.y), list(params.values()))
        params = {k: v - 0.02 * g for (k, v), g in zip(params.items(), slopes, strict=True)}
    assert torch.allclose(up["mean"], m.detach(), atol=1e-6)


def test_everybody_is_told_the_mean_once_also_who_missed_a_round():
    task, method = make_task(epochs=1), DBE()
    server, client = method.init(task, 0)
    assert set(method.send(task, server, 1)) == {"omega", "phase"}
    server = play(method, task, server, client, [0, 2])
    assert all("mean" in method.send(task, server, i) for i in range(3))
    told, down, up = visit(method, task, server, client, 0, 1)
    assert torch.equal(told["mean"], server["mean"])
    server = method.absorb(task, server, [0], [down], [up])
    assert [("mean" in method.send(task, server, i)) for i in range(3)] == [False, True, True]
    again, _, _ = visit(method, task, server, told, 0, 2)
    assert torch.equal(again["mean"], server["mean"])  # remembered, not sent


def test_the_mean_regularisation_has_a_gradient():
    task, data = make_task(), make_data()[0]
    _, client = ready(task, DBE())
    given = {"mean": torch.ones(64), "ready": torch.ones(1), "mu": torch.tensor(1.0), "m": torch.zeros(64)}

    def rise(kappa):
        both = {**given, "kappa": torch.tensor(kappa)}
        low, high = ({**client, "theta": client["theta"] + e} for e in (-1e-2, 1e-2))
        return float(debiased(task, high, Batch(*data), both)[0] - debiased(task, low, Batch(*data), both)[0])

    assert abs(rise(50.0) - rise(0.0)) > 1e-2


def test_without_its_two_parts_it_is_fedavg():
    task, method = make_task(), DBE(kappa=0.0, train_bias=False)
    server, client = method.init(task, 0)
    server = play(method, task, server, client, [0, 1, 2])
    other, _ = FedAvg().init(task, 0)
    for t in (1, 2):
        server = play(method, task, server, client, [0, 1, 2], t)
        other = play(FedAvg(), task, other, client, [0, 1, 2], t)
    assert distance({"w": server["omega"]}, {"w": other["omega"]}) < 1e-6
    assert not torch.equal(server["omega"], method.init(task, 0)[0]["omega"])


def test_the_bias_is_private_and_used():
    task, method = make_task(), DBE()
    server, client = ready(task, method)
    shown = method.receive(task, client, method.send(task, server, 0), Local(task, 0, 1, 0, make_data()[0]))
    assert torch.equal(shown["b"], client["b"])
    x = make_data()[0].x
    assert torch.allclose(method.predict(task, shown, x), task.logits(shown, task.features(shown, x) + client["b"]))
    assert not torch.allclose(method.predict(task, shown, x), task.predict(shown, x))


def test_tiny_clients_stay_finite_and_shapes_stay():
    task, method = make_task(), DBE()
    server, client = ready(task, method)
    trained, _, up = visit(method, task, server, client, 0, data=Split(torch.ones(1, 4), torch.tensor([1])))
    assert {k: v.shape for k, v in trained.items()} == {k: v.shape for k, v in client.items()}
    assert all(torch.isfinite(leaf).all() for leaf in (*trained.values(), *up.values()))


def test_bytes():
    task, method = lenet_task(), DBE()
    server, client = method.init(task, 0)
    data = Split(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    _, down, up = visit(method, task, server, client, 0, data=data)
    assert (count_bytes(down), count_bytes(up)) == (4 * 62_006 + 4, 4 * (84 + 1))  # a flag; the mean and n
    server = method.absorb(task, server, [0], [down], [up])
    _, down, up = visit(method, task, server, client, 0, data=data)
    assert (count_bytes(down), count_bytes(up)) == (4 * 62_006 + 4 * 85, 4 * 62_006 + 4)  # once: the mean
    server = method.absorb(task, server, [0], [down], [up])
    _, down, up = visit(method, task, server, client, 0, data=data)
    assert (count_bytes(down), count_bytes(up)) == (4 * 62_006 + 4, 4 * 62_006 + 4)  # FedAvg, a flag and n
