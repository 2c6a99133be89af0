"""The yardstick is right: the plain loop and our engines learn the same from the same batches."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from fedapa.bench import image_data, plain
from fedapa.bench.end_to_end import PlainRun
from fedapa.bench.fixtures import Bed, dense_flops, make_bed, network
from fedapa.rounds.loop import draw
from fedapa.rounds.round_plan import Plan
from fedapa.training.engines.native import available
from fedapa.training.local import count_correct
from fedapa.training.task import task_loss

pytestmark = pytest.mark.skipif(not available()[0], reason=f"the native kernel is not available: {available()[1]}")


@pytest.fixture(scope="module")
def bed() -> Bed:
    return make_bed(image_data.equal("fmnist", 2, 150, 30))


def test_one_epoch_equals_local_sgd(bed: Bed) -> None:
    model = network(bed.torch, bed.data, bed.start)
    batches = list(bed.local(bed.torch).batches(1))
    assert [len(index) for index in batches] == [64, 64]
    start = parameters_to_vector(model.parameters()).detach().clone()
    loader = plain.in_batches(plain.samples(bed.torch, bed.own), batches)
    plain.train(model, plain.optimiser(model, bed.torch.training), loader)
    found = parameters_to_vector(model.parameters()).detach()
    for task in (bed.torch, bed.native):
        ours = bed.local(task).sgd(task_loss, bed.start)
        gap = (bed.torch.join(ours["theta"], ours["phi"]) - found).abs().max()
        assert gap < 1e-3 * (found - start).abs().max()


def test_right_answers_are_counted_alike(bed: Bed) -> None:
    model, data = network(bed.torch, bed.data, bed.start), bed.data.clients[0].test
    wanted, total = count_correct(lambda x: bed.torch.predict(bed.start, x), data)
    assert total == len(data.y)
    assert plain.count_correct(model, plain.samples(bed.torch, data)) == wanted
    assert plain.count_correct_sliced(model, bed.torch.prepare(data.x), data.y) == wanted


def test_a_plain_round_trains_who_is_drawn_and_nobody_else(bed: Bed) -> None:
    data = image_data.equal("fmnist", 5, 40, 10)
    peer = PlainRun(bed.torch, data)
    before = [parameters_to_vector(model.parameters()).detach().clone() for model in peer.models]
    correct = peer.round(0, 3)
    moved = [not torch.equal(parameters_to_vector(m.parameters()), w) for m, w in zip(peer.models, before, strict=True)]
    assert sorted(draw(Plan(3), 5, 0)) == [i for i, did in enumerate(moved) if did]
    assert 0 <= correct <= sum(len(client.test.y) for client in data.clients)


def test_a_plain_loader_shuffles_and_drops_the_rest(bed: Bed) -> None:
    loader = plain.shuffled(plain.samples(bed.torch, bed.own), bed.torch.training)
    first, second = (torch.cat([y for _, y in loader]) for _ in range(2))
    assert len(first) == 128
    assert not torch.equal(first, second)


def test_dense_operations_of_lenet5() -> None:
    """By hand: 2 (75 6 28^2 + 150 16 10^2 + 400 120 + 120 84 + 84 10), thrice, less the first layer once."""
    bed = make_bed(image_data.equal("cifar10", 1, 200, 50))
    model = network(bed.torch, bed.data, bed.start)
    assert dense_flops(model, torch.zeros(3, 32, 32)) == 3_204_720
