"""FedProto: prototypes by hand, its limit Local, the pull's gradient, the ways to predict, and its bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from few_classes import lenet_task, make_data, make_task, visit

from fedapa.core.tree import count_bytes, distance, equal
from fedapa.data.federated import Split
from fedapa.methods.fedproto import FedProto, attracted
from fedapa.methods.local_only import LocalOnly
from fedapa.training.local import Local
from fedapa.training.task import Batch

torch.set_num_threads(1)


@pytest.mark.parametrize(("average", "first"), [("samples", (10 + 9) / 7), ("clients", (10 / 5 + 9 / 2) / 2)])
def test_prototypes_by_hand(average, first):
    task, method = make_task(), FedProto(average=average)
    server, _ = method.init(task, 0)
    server = {"prototypes": torch.full((3, 64), 9.0), "counts": torch.tensor([0.0, 0.0, 3.0])}
    ups = [
        {"sums": torch.stack([torch.full((64,), s), torch.zeros(64), torch.zeros(64)]), "counts": counts}
        for s, counts in ((10.0, torch.tensor([5.0, 0.0, 0.0])), (9.0, torch.tensor([2.0, 0.0, 0.0])))
    ]
    new = method.absorb(task, server, [0, 2], [], ups)
    assert torch.allclose(new["prototypes"][0], torch.full((64,), first))
    assert torch.equal(new["prototypes"][2], server["prototypes"][2])  # nobody reported class 2: it stays
    assert new["counts"][1].item() == 0
    assert new["counts"][2].item() == 3


def test_lambda_zero_is_local():
    task, method = make_task(), FedProto(lam=0.0)
    server, client = method.init(task, 0)
    alone = LocalOnly().init(task, 0)[1]
    for t in range(3):
        visits = [visit(method, task, server, client, i, t) for i in (0, 1)]
        server = method.absorb(task, server, [0, 1], [v[1] for v in visits], [v[2] for v in visits])
        client, alone = visits[0][0], visit(LocalOnly(), task, {}, alone, 0, t)[0]
    assert server["counts"].sum() > 0
    assert distance(alone, {k: client[k] for k in alone}) < 1e-6
    x = make_data()[0].x
    assert torch.allclose(method.predict(task, client, x), task.predict(alone, x), atol=1e-5)


def test_the_step_and_the_upload_by_plain_autograd():
    task, method, data = make_task(epochs=1, momentum=0.0, lr=0.1), FedProto(lam=2.0), make_data()[0]
    server, client = method.init(task, 0)
    server = {"prototypes": torch.ones(3, 64), "counts": torch.tensor([1.0, 0.0, 2.0])}
    trained, _, up = visit(method, task, server, client, 0)
    params = {k: client[k].clone().requires_grad_() for k in ("theta", "phi")}
    z = task.features(params, data.x)
    pull = ((z - 1) ** 2 * (data.y != 1)[:, None]).mean()
    loss = F.cross_entropy(task.logits(params, z), data.y) + 2 * pull
    for (name, w), g in zip(params.items(), torch.autograd.grad(loss, list(params.values())), strict=True):
        assert torch.allclose(trained[name], w - 0.1 * g, atol=1e-6)
    z = task.features(trained, data.x)
    assert torch.allclose(up["sums"][1], z[data.y == 1].sum(0), atol=1e-5)
    assert torch.allclose(trained["own"][1], z[data.y == 1].mean(0), atol=1e-5)
    assert up["counts"].tolist() == [4, 4, 4]


def test_the_pull_has_a_gradient():
    task, data = make_task(), make_data()[0]
    _, client = FedProto().init(task, 0)
    given = {"target": torch.ones(3, 64), "present": torch.ones(3)}

    def rise(lam):
        low, high = ({"theta": client["theta"] + e, "phi": client["phi"]} for e in (-1e-2, 1e-2))
        both = {**given, "lam": torch.tensor(lam)}
        return float(attracted(task, high, Batch(*data), both) - attracted(task, low, Batch(*data), both))

    assert abs(rise(1.0) - rise(0.0)) > 1e-3


def test_prototypes_seen_during_the_last_epoch():
    task, data = make_task(epochs=2, momentum=0.0, lr=0.1), make_data()[1]
    server, client = FedProto().init(task, 0)
    trained, _, up = visit(FedProto(prototypes="during"), task, server, client, 1)
    params = {k: client[k].clone().requires_grad_() for k in ("theta", "phi")}
    loss = F.cross_entropy(task.predict(params, data.x), data.y)
    slopes = torch.autograd.grad(loss, list(params.values()))
    moved = {k: v - 0.1 * g for (k, v), g in zip(params.items(), slopes, strict=True)}
    assert torch.allclose(up["sums"][0], task.features(moved, data.x)[data.y == 0].sum(0), atol=1e-5)
    assert up["counts"].tolist() == [4, 3, 0]
    assert {k: v.shape for k, v in trained.items()} == {k: v.shape for k, v in client.items()}


def test_all_batches_of_the_last_epoch_are_seen():
    """At rate 0 the model stands still, and three batches of four show what one of twelve does."""
    task, data = make_task(epochs=2, lr=0.0, batch=4), make_data()[0]
    server, client = FedProto().init(task, 0)
    _, _, up = visit(FedProto(prototypes="during"), task, server, client, 0)
    z = task.features(client, data.x)
    torch.testing.assert_close(up["sums"], torch.stack([z[data.y == k].sum(0) for k in range(3)]), atol=1e-5, rtol=1e-5)
    assert up["counts"].tolist() == [4, 4, 4]


def test_ways_to_predict():
    task, x = make_task(), make_data()[1].x
    _, client = FedProto().init(task, 0)
    z = task.features(client, x)
    client |= {"prototypes": torch.stack([z[0], z[1], z[2]]), "counts": torch.ones(3)}
    client |= {"own": torch.stack([z[2], z[1], z[0]]), "owned": torch.tensor([1.0, 1.0, 0.0])}

    def classes(inference, state=client):
        return FedProto(inference=inference).predict(task, state, x).argmax(1).tolist()

    assert classes("global_prototype")[:3] == [0, 1, 2]
    assert classes("own_prototype")[1:3] == [1, 0]
    assert classes("own_classes")[:2] == [0, 1]
    assert 2 not in classes("own_classes") + classes("own_prototype")
    assert classes("head") == task.predict(client, x).argmax(1).tolist()
    logits = FedProto(inference="global_prototype").predict(task, client, x)
    assert torch.allclose(logits[3], -((z[3] - client["prototypes"]) ** 2).sum(1), atol=1e-5)


@pytest.mark.parametrize("inference", ["head", "global_prototype", "own_classes", "own_prototype"])
def test_before_there_are_prototypes_the_head_predicts(inference):
    task, method, data = make_task(), FedProto(inference=inference), make_data()[2]
    server, client = method.init(task, 0)
    assert torch.equal(method.predict(task, client, data.x), task.predict(client, data.x))
    trained, down, up = visit(method, task, server, client, 2)
    shown = method.receive(task, trained, method.absorb(task, server, [2], [down], [up]), Local(task, 2, 1, 0, data))
    assert torch.isfinite(method.predict(task, shown, data.x)).all()
    assert {k: v.shape for k, v in shown.items()} == {k: v.shape for k, v in client.items()}
    if inference != "head":
        assert (method.predict(task, shown, data.x).argmax(1) == 0).all()  # one-class client


def test_models_never_leave():
    task, method = make_task(), FedProto()
    server, client = method.init(task, 0)
    one = visit(method, task, server, client, 0)
    assert set(one[1]) == {"prototypes", "counts"}
    assert set(one[2]) == {"sums", "counts"}
    assert equal(one[2], visit(method, task, server, client, 0)[2])


def test_bytes():
    task, method = lenet_task(), FedProto()
    server, client = method.init(task, 0)
    data = Split(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    _, down, up = visit(method, task, server, client, 0, data=data)
    assert count_bytes(down) == count_bytes(up) == 4 * 840 + 4 * 10  # dense prototypes and their counts
