"""FedALA: the mixing weights against explicit steps, its limit FedAvg, its stopping rule, and its bytes."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from three_clients import SIZES, make_data, make_task, net, omega, visit
from torch import Tensor, nn

from fedapa.core.tree import count_bytes, equal
from fedapa.data.federated import Split
from fedapa.methods.fedala import FedALA, top_tensors
from fedapa.methods.fedavg import FedAvg
from fedapa.training.local import Local
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Task

torch.set_num_threads(1)


def apart(task: Task, method: FedALA) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A server and a client whose models differ."""
    server, client = method.init(task, 0)
    theta, phi = task.init(7)
    return server, {**client, "theta": theta, "phi": phi}


@pytest.mark.parametrize(("p", "below"), [(2, 4480), (4, 320)])
def test_one_epoch_of_mixing_by_hand(p, below):
    """Once settled, W takes one clipped step per batch; here one batch of all data."""
    task, data, method = make_task(), make_data(), FedALA(s=100.0, eta=200.0, p=p)
    server, client = apart(task, method)
    client = {**client, "settled": torch.ones(1), "W": torch.full_like(client["W"], 0.5)}
    shown, _, _, _ = visit(method, task, client, server, 0, data)
    w, own = server["omega"], omega(client)
    gap = w - own
    leaf = torch.cat([w[:below], (own + 0.5 * gap)[below:]]).requires_grad_()
    g = torch.autograd.grad(F.cross_entropy(net(leaf, data[0].x), data[0].y), leaf)[0]
    W = (0.5 - 200.0 * g * gap).clamp(0, 1)[below:]
    assert (W == 0).any()
    assert (W == 1).any()
    assert ((W > 0) & (W < 1) & (W != 0.5)).any()
    torch.testing.assert_close(shown["W"], W, atol=1e-3, rtol=1e-3)
    assert torch.equal(omega(shown)[:below], w[:below])
    torch.testing.assert_close(omega(shown)[below:], own[below:] + gap[below:] * W, atol=1e-4, rtol=1e-3)


def test_mixing_lowers_the_loss_of_what_arrived():
    task, data, method = make_task(), make_data(), FedALA(s=100.0)
    server, client = apart(task, method)
    shown, _, _, _ = visit(method, task, client, server, 0, data)
    mixed = F.cross_entropy(method.predict(task, shown, data[0].x), data[0].y)
    assert mixed < F.cross_entropy(net(server["omega"], data[0].x), data[0].y) - 0.01
    assert shown["W"].min() >= 0
    assert shown["W"].max() <= 1


def test_with_everything_taken_in_it_is_fedavg_bit_for_bit():
    task, data = make_task(batch=4), make_data()
    method = FedALA(eta=0.0, threshold=10.0)
    (server, client), (plain, _) = method.init(task, 0), FedAvg().init(task, 0)
    states, simple = [client] * 3, FedAvg().init(task, 0)[1]
    for t, ids in enumerate(([0, 1], [1, 2], [0, 1, 2])):
        replies = {i: visit(method, task, states[i], server, i, data, t) for i in ids}
        server = method.absorb(task, server, ids, [replies[i][2] for i in ids], [replies[i][3] for i in ids])
        others = [visit(FedAvg(), task, simple, plain, i, data, t) for i in ids]
        plain = FedAvg().absorb(task, plain, ids, [r[2] for r in others], [r[3] for r in others])
        for i in ids:
            states[i] = replies[i][1]
        assert equal(server, plain)


def test_nothing_is_learned_when_what_arrives_is_the_own_model():
    task, data, method = make_task(), make_data(), FedALA()
    server, client = method.init(task, 0)
    shown, *_ = visit(method, task, client, server, 0, data)
    assert equal(shown, client)
    assert shown["settled"].item() == 0


class Counting(Local):
    """A toolbox that counts the epochs of mixing, and the samples in them."""

    epochs = samples = 0

    def sgd(self, *args, **kw):
        Counting.epochs += kw.get("epochs") == 1
        Counting.samples = self.n
        return super().sgd(*args, **kw)


@pytest.mark.parametrize(
    ("settings", "settled", "expected"),
    [
        ({"threshold": 1e9}, 0.0, 11),  # the window must be full, plus one
        ({"threshold": 1e9, "window": 3}, 0.0, 4),
        ({"threshold": 0.0, "cap": 25}, 0.0, 25),  # never settles
        ({"threshold": 0.0, "cap": 25}, 1.0, 1),  # later visits: one epoch
        ({"threshold": 1e-7, "window": 3, "cap": 25}, 0.0, 25),  # the loss still falls
        ({"threshold": 1e-7, "window": 3, "cap": 25, "p": 4}, 0.0, 25),
    ],
)
def test_how_long_the_mixing_goes_on(settings, settled, expected):
    task, data, method = make_task(), make_data(), FedALA(**settings)
    server, client = apart(task, method)
    local = Counting(task, 0, 1, 0, data[0])
    Counting.epochs = 0
    shown = method.receive(task, {**client, "settled": torch.tensor([settled])}, method.send(task, server, 0), local)
    assert Counting.epochs == expected
    assert shown["settled"].item() == 1
    assert local.calls == 0  # local training draws the batches that it would draw without the mixing
    assert local.memory == {}


def test_settled_is_a_small_spread_of_the_last_losses_alone():
    method = FedALA(window=2, threshold=0.1)
    assert method._has_settled([9.0, 1.0, 1.1])
    assert not method._has_settled([1.0, 1.0, 9.0])
    assert not method._has_settled([1.0, 1.0])  # one more than the window


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize(("settings", "samples"), [({}, 9), ({"s": 50.0}, 6), ({"s": 100.0}, 12), ({"s": 0.0}, 1)])
def test_the_weights_learn_from_a_share_of_the_samples(settings, samples, p):
    """Client 0 has 12 samples: 80 % of them by default, rounded down."""
    task, data, method = make_task(), make_data(), FedALA(**settings, p=p)
    server, client = apart(task, method)
    method.receive(
        task, {**client, "settled": torch.ones(1)}, method.send(task, server, 0), Counting(task, 0, 1, 0, data[0])
    )
    assert Counting.samples == samples


def test_which_tensors_are_mixed():
    task = make_task()
    P, Q = task.P, task.Q
    assert top_tensors(task, 1) == {"theta": (P, P), "phi": (Q - 3, Q)}
    assert top_tensors(task, 2) == {"theta": (P, P), "phi": (0, Q)}
    assert top_tensors(task, 4) == {"theta": (P - 64 * 65, P), "phi": (0, Q)}
    assert top_tensors(task, 99) == {"theta": (0, P), "phi": (0, Q)}


@pytest.mark.parametrize("p", [1, 4, 6])
def test_other_depths_mix_those_tensors_and_take_the_rest(p):
    task, data, method = make_task(), make_data(), FedALA(p=p, s=100.0, eta=50.0)
    server, client = apart(task, method)
    shown, *_ = visit(method, task, client, server, 0, data)
    spans, offset = top_tensors(task, p), 0
    for part, arrived in task.parts(server["omega"]).items():
        start, stop = spans[part]
        assert torch.equal(shown[part][:start], arrived[:start])
        W = shown["W"][offset : offset + stop - start]
        own = client[part][start:stop]
        torch.testing.assert_close(shown[part][start:stop], own + (arrived[start:stop] - own) * W, atol=1e-5, rtol=1e-4)
        offset += stop - start
    assert offset == len(shown["W"])
    assert shown["W"].min() < 0.9


def test_statistics_arrive_unmixed():
    layers = {"fc": nn.Linear(4, 6), "norm": nn.BatchNorm1d(6), "relu": nn.ReLU(), "head": nn.Linear(6, 3)}
    model = build_model(nn.Sequential(OrderedDict(layers)), (4,), 3)
    task, data = Task(model, 3, torch.tensor(SIZES), Training(), rounds=10), make_data()
    server, client = FedALA(p=4).init(task, 0)
    assert len(client["W"]) == 6 + 6 + 18 + 3
    server = {"omega": server["omega"] + 1.0}
    shown, *_ = visit(FedALA(p=4), task, client, server, 0, data)
    assert torch.equal(shown["theta"][-12:], server["omega"][: task.P][-12:])


def test_the_mixing_weights_stay_with_the_client():
    task, data, method = make_task(), make_data(), FedALA(s=100.0)
    server, client = apart(task, method)
    shown, trained, _, up = visit(method, task, client, server, 0, data)
    assert torch.equal(trained["W"], shown["W"])
    assert set(up) == {"omega", "n"}
    assert method.evaluated == "before"


def test_bytes_of_lenet5_on_cifar10_and_one_sample():
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50), Training(epochs=1))
    data = [Split(torch.zeros(1, 3, 32, 32), torch.tensor([3]))]
    server, client = FedALA().init(task, 0)
    _, trained, down, up = visit(FedALA(), task, client, {"omega": server["omega"] * 1.1}, 0, data)
    assert count_bytes(down) == 4 * 62_006
    assert count_bytes(up) == 4 * 62_006 + 4
    assert torch.isfinite(omega(trained)).all()


def test_every_batch_is_one_plain_step():
    """Two equal batches: the second step starts where the first ended, without momentum."""
    task, method = make_task(batch=2, weight_decay=0.1), FedALA(s=100.0, eta=50.0)
    data = [Split(make_data()[0].x[:1].repeat(4, 1), torch.zeros(4, dtype=torch.int64))]
    server, client = apart(task, method)
    shown, _, _, _ = visit(method, task, {**client, "settled": torch.ones(1)}, server, 0, data)
    own, gap, W = client["phi"], server["omega"][task.P :] - client["phi"], torch.ones(task.Q)
    for _ in range(2):
        leaf = torch.cat([server["omega"][: task.P], own + gap * W]).requires_grad_()
        loss = F.cross_entropy(net(leaf, data[0].x), data[0].y)
        W = (W - 50.0 * torch.autograd.grad(loss, leaf)[0][task.P :] * gap).clamp(0, 1)
    assert ((W > 0) & (W < 0.9)).sum() > 10
    torch.testing.assert_close(shown["W"], W, atol=1e-4, rtol=1e-4)
