"""The one training loop against torch.optim.SGD, BatchNorm against the module itself, and the random streams."""

import dataclasses
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapa.core.tree import Tree
from fedapa.data.federated import Split
from fedapa.errors import InputError
from fedapa.training.local import Local, clipped, count_correct
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.split_model import SplitModel
from fedapa.training.task import Batch, Task, proximal, task_loss


def small_task(training: Training, model: SplitModel | None = None) -> Task:
    return Task(model or build_model("mlp", (4,), 3), 3, torch.tensor([30, 20]), training, rounds=5)


def data(n: int = 30, seed: int = 0) -> Split:
    random = torch.Generator().manual_seed(seed)
    return Split(torch.randn(n, 4, generator=random), torch.randint(3, (n,), generator=random))


def local(task: Task, n: int = 30, client: int = 0, round: int = 0, memory: Tree | None = None) -> Local:
    return Local(task, client, round, 0, data(n), memory or {})


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_is_torchs_sgd_on_the_same_batches(weight_decay: float) -> None:
    task = small_task(Training(lr=0.1, momentum=0.9, batch=8, epochs=3, weight_decay=weight_decay))
    theta, phi = task.init(1)
    found = local(task).sgd(task_loss, {"theta": theta, "phi": phi})
    leaves = [theta.clone().requires_grad_(), phi.clone().requires_grad_()]
    optimiser = torch.optim.SGD(leaves, lr=0.1, momentum=0.9, weight_decay=weight_decay)
    samples = data()
    for index in local(task).batches(3):
        optimiser.zero_grad()
        logits = task.predict({"theta": leaves[0], "phi": leaves[1]}, samples.x[index])
        F.cross_entropy(logits, samples.y[index]).backward()
        optimiser.step()
    assert torch.allclose(found["theta"], leaves[0].detach(), atol=1e-6)
    assert torch.allclose(found["phi"], leaves[1].detach(), atol=1e-6)


def test_batches_cover_all_samples_and_drop_last_drops_the_rest() -> None:
    keep, drop = (small_task(Training(batch=8, drop_last=d)) for d in (False, True))
    kept, dropped = list(local(keep).batches(1)), list(local(drop).batches(1))
    assert [len(b) for b in kept] == [8, 8, 8, 6]
    assert [len(b) for b in dropped] == [8, 8, 8]
    assert sorted(torch.cat(kept).tolist()) == list(range(30))


def test_every_epoch_has_a_shuffle_of_its_own() -> None:
    batches = list(local(small_task(Training(batch=10))).batches(3))
    epochs = [torch.cat(batches[k : k + 3]).tolist() for k in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, range(30)]}) == 4


def test_the_defaults_are_those_of_the_paper() -> None:
    assert Training() == Training(0.01, 0.9, 64, 2, 0.0, 0.0, True, "auto")


def test_a_client_more() -> None:
    larger = dataclasses.replace(small_task(Training()), names=("a", "b")).with_client("c", 7)
    assert larger.sizes.tolist() == [30, 20, 7]
    assert (larger.clients, larger.name(2)) == (3, "client c")


def test_a_client_smaller_than_a_batch_uses_all_it_has() -> None:
    task = small_task(Training(batch=64, drop_last=True))
    assert [len(b) for b in local(task, n=5).batches(2)] == [5, 5]
    assert [len(b) for b in local(task, n=1).batches(1)] == [1]


def test_streams_differ_by_round_client_and_call_and_repeat_otherwise() -> None:
    task = small_task(Training(batch=30))
    order = lambda **key: next(iter(local(task, **key).batches(1))).tolist()  # noqa: E731
    assert order() == order()
    assert len({tuple(order(client=c, round=r)) for c in (0, 1) for r in (0, 1)}) == 4
    one = local(task)
    assert next(iter(one.batches(1))).tolist() != next(iter(one.batches(1))).tolist()


def test_momentum_survives_a_visit_only_if_the_task_keeps_it() -> None:
    kept, reset = (small_task(Training(batch=8, epochs=1, keep_momentum=k)) for k in (True, False))
    theta, phi = kept.init(0)
    for task, remembers in ((kept, True), (reset, False)):
        first = local(task)
        after = first.sgd(task_loss, {"theta": theta, "phi": phi})
        assert bool(first.memory) is remembers
        again = local(task, round=1, memory=first.memory).sgd(task_loss, after)
        fresh = local(task, round=1).sgd(task_loss, after)
        assert torch.equal(again["theta"], fresh["theta"]) is not remembers


def test_visits_of_different_names_do_not_share_momentum() -> None:
    task = small_task(Training(batch=8, epochs=1))
    theta, phi = task.init(0)
    one = local(task)
    one.sgd(task_loss, {"theta": theta, "phi": phi}, memory="body")
    assert set(one.memory) == {"body/theta", "body/phi"}
    one.sgd(task_loss, {"phi": phi}, given={"theta": theta}, memory=None)
    assert set(one.memory) == {"body/theta", "body/phi"}
    one.sgd(task_loss, {"phi": phi}, given={"theta": theta}, memory="head")
    assert set(one.memory) == {"body/theta", "body/phi", "head/phi"}


def test_frozen_parts_stay_and_rates_are_per_part() -> None:
    task = small_task(Training(batch=8, epochs=1, momentum=0.0))
    theta, phi = task.init(0)
    found = local(task).sgd(task_loss, {"phi": phi}, given={"theta": theta})
    assert set(found) == {"phi"}
    slow = local(task).sgd(task_loss, {"theta": theta, "phi": phi}, lr={"theta": 0.0, "phi": 0.01})
    assert torch.equal(slow["theta"], theta)
    assert torch.allclose(slow["phi"], found["phi"], atol=1e-6)
    with pytest.raises(InputError, match="no learning rate for phi"):
        local(task).sgd(task_loss, {"theta": theta, "phi": phi}, lr={"theta": 0.1})


def test_proximal_pull_is_its_gradient() -> None:
    task = small_task(Training())
    theta, phi = task.init(0)
    w = {"theta": theta.clone().requires_grad_(), "phi": phi}
    anchors = {"anchor_theta": torch.zeros_like(theta), "rho": torch.tensor(0.3)}
    batch = Batch(*data())
    pulled = torch.autograd.grad(proximal(task, w, batch, anchors), w["theta"])[0]
    plain = torch.autograd.grad(task_loss(task, w, batch, {}), w["theta"])[0]
    assert torch.allclose(pulled - plain, 0.3 * theta, atol=1e-5)


def counting(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    return params["w"].sum(), {"seen": given["seen"] + len(batch.y), "last": given["last"] * 0 + len(batch.y)}


def test_carry_goes_from_batch_to_batch_and_projection_after_every_step() -> None:
    task = small_task(Training(batch=8, epochs=2, momentum=0.0, lr=1.0))
    carry = {"seen": torch.zeros(1), "last": torch.zeros(1)}
    found = local(task).sgd(
        counting, {"w": torch.zeros(2)}, carry=carry, project=lambda p: {"w": p["w"].clamp(min=-2.5)}, memory=None
    )
    assert found["seen"].item() == 48
    assert found["last"].item() == 8
    assert found["w"].tolist() == [-2.5, -2.5]


def test_steps_draw_batches_without_epochs() -> None:
    task = small_task(Training(batch=8, momentum=0.0))
    carry = {"seen": torch.zeros(1), "last": torch.zeros(1)}
    assert local(task).sgd(counting, {"w": torch.zeros(1)}, carry=carry, steps=7)["seen"].item() == 56


def summing(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    return params["w"].sum(), {"sum": given["sum"] + batch.x.sum()}


def summed(toolbox: Local, steps: int = 1) -> float:
    """The sum of all samples that a training of its own sees."""
    found = toolbox.sgd(summing, {"w": torch.zeros(1)}, carry={"sum": torch.zeros(())}, steps=steps, memory=None)
    return float(found["sum"])


def test_every_training_of_a_visit_has_batches_of_its_own() -> None:
    task = small_task(Training(batch=8))
    one, same = local(task), local(task)
    sums = [summed(one) for _ in range(3)]
    assert len(set(sums)) == 3
    assert [summed(same) for _ in range(3)] == sums


def test_a_batch_of_a_step_holds_no_sample_twice() -> None:
    assert summed(local(small_task(Training(batch=30)))) == pytest.approx(float(data().x.sum()), abs=1e-4)


def test_inside_only_there_are_these_samples_and_all_of_them_after() -> None:
    toolbox, whole = local(small_task(Training())), data()
    with toolbox.only(torch.tensor([4, 2])):
        assert torch.equal(toolbox.data.x, whole.x[[4, 2]])
        assert torch.equal(toolbox.data.y, whole.y[[4, 2]])
    assert torch.equal(toolbox.data.x, whole.x)
    with pytest.raises(KeyError), toolbox.only(torch.tensor([4])):
        raise KeyError
    assert toolbox.n == 30


def test_the_task_may_clip_gradients() -> None:
    """One step at rate 1 without momentum is as long as the gradient: at most 0.01 here."""
    task = small_task(Training(lr=1.0, momentum=0.0, batch=30, epochs=1, clip_norm=0.01))
    theta, phi = task.init(0)
    found = local(task).sgd(task_loss, {"theta": theta, "phi": phi})
    step = torch.cat([found["theta"] - theta, found["phi"] - phi])
    assert float(step.norm()) == pytest.approx(0.01, rel=1e-3)


def test_clipping_scales_all_gradients_together() -> None:
    found = clipped({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 1.0)
    assert found["a"].item() == pytest.approx(0.6, rel=1e-4)
    assert found["b"].item() == pytest.approx(0.8, rel=1e-4)
    small = {"a": torch.tensor([0.3])}
    assert torch.allclose(clipped(small, 1.0)["a"], small["a"])


def test_arguments_of_sgd_are_left_alone() -> None:
    task = small_task(Training(batch=8))
    theta, phi = task.init(0)
    memory = {"main/theta": torch.ones_like(theta), "main/phi": torch.ones_like(phi)}
    local(task, memory=memory).sgd(task_loss, {"theta": theta, "phi": phi})
    assert torch.equal(theta, task.init(0)[0])
    assert torch.equal(memory["main/theta"], torch.ones_like(theta))


@pytest.mark.parametrize("where", ["shared", "private"])
def test_batchnorm_statistics_are_those_of_the_module(where: str) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    model = SplitModel(build, torch.zeros(2, 4), "3", where)  # type: ignore[arg-type]
    task = small_task(Training(lr=0.1, momentum=0.0, batch=10, epochs=2), model)
    theta, phi = task.init(5)
    found = local(task).sgd(task_loss, {"theta": theta, "phi": phi})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module = build()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    samples = data()
    for index in local(task).batches(2):
        optimiser.zero_grad()
        F.cross_entropy(module(samples.x[index]), samples.y[index]).backward()
        optimiser.step()
    module.eval()
    with torch.no_grad():
        assert torch.allclose(task.predict(found, samples.x), module(samples.x), atol=1e-5)
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm1d)
    carried = found["theta"] if where == "shared" else found["phi"]
    assert torch.allclose(carried[-12:], torch.cat([norm.running_mean, norm.running_var]), atol=1e-5)  # type: ignore[list-item]


def test_bytes_are_normalised_like_floats() -> None:
    task = dataclasses.replace(small_task(Training()), mean=(0.5,), std=(0.25,))
    x = torch.tensor([[[0, 255]]], dtype=torch.uint8)
    assert task.prepare(x).flatten().tolist() == [-2.0, 2.0]
    assert dataclasses.replace(task, mean=(0.0,), std=(1.0,)).prepare(x).flatten().tolist() == [0.0, 1.0]


def test_count_correct() -> None:
    samples = Split(torch.eye(3), torch.tensor([0, 1, 1]))
    assert count_correct(lambda x: x, samples) == (2, 3)


def test_part_is_a_random_share_of_the_samples() -> None:
    """Rows are often sorted by class: a contiguous block would hold few of them."""
    task, whole = small_task(Training()), data()
    mine = local(task)
    pieces = [mine.part(0.5) for _ in range(2)]
    chosen = [[next(k for k in range(30) if torch.equal(whole.x[k], x)) for x in piece.data.x] for piece in pieces]
    for index, piece in zip(chosen, pieces, strict=True):
        assert len(set(index)) == 15
        assert index == sorted(index)
        assert torch.equal(piece.data.y, whole.y[index])
        assert index[-1] - index[0] > 15  # no block
    assert chosen[0] != chosen[1]
    assert local(task, n=1).part(0.1).n == 1


@pytest.mark.parametrize(
    ("keep", "goes_on", "replaced"), [("auto", True, False), (True, True, True), (False, False, False)]
)
def test_momentum_stays_with_weights_that_go_on(keep: bool | Literal["auto"], goes_on: bool, replaced: bool) -> None:
    task = small_task(Training(batch=8, epochs=1, keep_momentum=keep))
    for flag, kept in ((False, goes_on), (True, replaced)):
        mine = local(task)
        mine.sgd(task_loss, dict(zip(("theta", "phi"), task.init(0), strict=True)), replaced=flag)
        assert bool(mine.memory) == kept


def test_batchnorm_on_one_sample_is_refused_by_the_clients_name() -> None:
    model = SplitModel(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), torch.zeros(2, 4), "2"
    )
    for n, drop in ((1, True), (9, False)):
        task = small_task(Training(batch=8, drop_last=drop), model)
        theta, phi = task.init(0)
        with pytest.raises(InputError, match="client 0: BatchNorm cannot learn from a batch of one sample"):
            local(task, n=n).sgd(task_loss, {"theta": theta, "phi": phi})
