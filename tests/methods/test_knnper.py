"""kNN-Per: an answer by hand, its three limits, its store, and FedAvg's training beneath."""

from __future__ import annotations

import math

import pytest
import torch
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import equal
from fedapa.methods.catalogue import make
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.knnper import KNNPer, neighbours
from fedapa.training.local import Local
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def store_of(z, y, kept=None):
    return {"z": z, "y": torch.tensor(y), "kept": torch.ones(len(y)) if kept is None else torch.tensor(kept)}


def test_an_answer_by_hand() -> None:
    """d = 2: neighbours at squared distance 0 and 2 ln 3 answer (0.75, 0.25); a third is too far, a fourth is empty."""
    far = math.sqrt(2 * math.log(3))
    z = torch.tensor([[1.0, 1.0], [1.0 + far, 1.0], [9.0, 9.0], [1.0, 1.0]])
    store = store_of(z, [0, 1, 1, 1], [1.0, 1.0, 1.0, 0.0])
    found = neighbours(torch.tensor([[1.0, 1.0]]), store, 2, 2, 2.0)
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.25]]), atol=1e-5, rtol=1e-5)


def answers(method, task, state, x):
    return method.predict(task, state, x).exp()


def test_answers_are_probabilities_and_the_share_is_lambda() -> None:
    task, data = make_task(), make_data()
    server, state = KNNPer().init(task, 0)
    shown = visit(KNNPer(), task, state, server, 0, data)[0]
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    none, half, whole = (answers(KNNPer(lam=lam, k=3), task, shown, x) for lam in (0.0, 0.5, 1.0))
    torch.testing.assert_close(none, net(omega(shown), x).softmax(1))
    torch.testing.assert_close(half, (none + whole) / 2)
    torch.testing.assert_close(half.sum(1), torch.ones(9))


def test_limits_of_the_neighbours() -> None:
    """One neighbour of a stored sample is itself; all of them without a scale are the client's label frequencies."""
    task, data = make_task(), make_data()
    server, state = KNNPer().init(task, 0)
    shown = visit(KNNPer(), task, state, server, 1, data)[0]
    own = answers(KNNPer(lam=1.0, k=1), task, shown, data[1].x)
    assert torch.equal(own.argmax(1), data[1].y)
    everybody = answers(KNNPer(lam=1.0, k=7, scale=1e9), task, shown, data[1].x)
    torch.testing.assert_close(everybody, torch.tensor([4 / 7, 3 / 7, 0.0]).expand(7, 3), atol=1e-5, rtol=1e-5)


def test_the_store_is_that_of_the_model_that_arrived() -> None:
    task, data = make_task(), make_data()
    server, state = KNNPer().init(task, 0)
    shown, trained, _, _ = visit(KNNPer(), task, state, {"omega": 2 * server["omega"]}, 0, data)
    for found in (shown, trained):
        torch.testing.assert_close(found["z"][:12], task.features(found, data[0].x))
        assert found["y"][:12].tolist() == data[0].y.tolist()
        assert found["kept"].tolist() == [1.0] * 12 + [0.0] * 488
    assert not torch.allclose(shown["z"], trained["z"], atol=1e-4)


def test_a_larger_client_stores_a_part_of_its_samples_and_the_same_in_every_round() -> None:
    task, data, method = make_task(), make_data(), KNNPer(capacity=5)
    server, state = method.init(task, 0)
    parts = [visit(method, task, state, server, 0, data, t)[0] for t in (0, 1)]
    assert equal(*parts)
    z = task.features(parts[0], data[0].x)
    places = [(z - row).norm(dim=1).argmin().item() for row in parts[0]["z"]]
    assert len(set(places)) == 5
    assert parts[0]["y"].tolist() == data[0].y[places].tolist()
    other = Local(task, 0, 0, 1, data[0])
    assert not equal(method.receive(task, state, server, other), parts[0])


def test_before_anything_is_stored_the_model_answers() -> None:
    task, data = make_task(), make_data()
    _, state = KNNPer().init(task, 0)
    torch.testing.assert_close(answers(KNNPer(), task, state, data[0].x), net(omega(state), data[0].x).softmax(1))


def test_training_is_fedavgs_bit_for_bit() -> None:
    task, data = make_task(batch=4), make_data()
    ups = []
    for method in (KNNPer(), FedAvg()):
        server, state = method.init(task, 0)
        ups.append(visit(method, task, state, server, 0, data)[3])
    assert equal(*ups)


def test_the_order_of_the_store_is_irrelevant() -> None:
    random = torch.Generator().manual_seed(3)
    z, x = torch.randn(20, 4, generator=random), torch.randn(6, 4, generator=random)
    y, order = torch.arange(20) % 3, torch.randperm(20, generator=random)
    store = {"z": z, "y": y, "kept": torch.ones(20)}
    turned = {name: leaf[order] for name, leaf in store.items()}
    torch.testing.assert_close(*(neighbours(x, s, 5, 3, 4.0) for s in (store, turned)))


@pytest.mark.parametrize("law", ["engines-agree", "functions-are-pure", "limits-are-met", "bytes-are-true"])
def test_laws_with_private_heads(law: str) -> None:
    LAWS[law](Case(make("knnper", shared="extractor")))
