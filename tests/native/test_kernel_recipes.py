"""Recipes in the kernel: class weights and smoothed labels against torch, every refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from jobs import CLASSES, images, job, near
from nets import CIFAR, FMNIST, ODD, TINY, distance, flat, flat_grad, network
from torch import Tensor

import fedapa as fa
from fedapa.errors import InputError, RunError
from fedapa.simulation import make_task
from fedapa.training import local as local_module
from fedapa.training.engines.native import Kernel, Shape, Trained, TrainingCall
from fedapa.training.fused import train_fused
from fedapa.training.local import Local, train
from fedapa.training.optimizers import Rule
from fedapa.training.settings import Training
from fedapa.training.task import Task, proximal, task_loss

torch.set_num_threads(1)
SHAPES = pytest.mark.parametrize("shape", [CIFAR, FMNIST, TINY, ODD], ids=["cifar", "fmnist", "tiny", "odd"])
WEIGHTS = torch.tensor([0.5, 0.0, 3.0])
LOSSES: dict[str, dict[str, Any]] = {
    "weights": {"class_weights": WEIGHTS},
    "smoothing": {"smoothing": 0.2},
    "weights and smoothing": {"class_weights": WEIGHTS, "smoothing": 0.1},
}


@pytest.fixture(scope="module")
def tasks() -> tuple[Task, Task]:
    """The same task on the native and on the torch engine."""
    native = make_task(images(), "lenet5", Training(batch=16), engine="native")
    return native, replace(native, kernel=None)


def objective(class_weights: Tensor | None = None, smoothing: float = 0.0) -> fa.Classification:
    weights: Any = "none" if class_weights is None else class_weights.tolist()
    return fa.Classification(label_smoothing=smoothing, class_weights=weights)


def batch(shape: Shape, n: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n)
    x = torch.randn(n, shape.channels, shape.size, shape.size, generator=g)
    return x, torch.randint(0, CLASSES, (n,), generator=g)


def call(shape: Shape = TINY, n: int = 9, library: str | None = None, **changes: Any) -> Trained:
    """One batch."""
    f, h = network(shape, CLASSES)
    x, y = batch(shape, n)
    made = {"lr_theta": 0.1, "x": x, "y": y, **changes}
    order, bounds = torch.arange(n), torch.tensor([0, n])
    return Kernel(shape, CLASSES, library=library).train(
        TrainingCall(theta=flat(f), phi=flat(h), order=order, bounds=bounds, **made)
    )


# ------------------------------------------------------------------------------------------------------- the loss


@SHAPES
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("n", [1, 8, 13])
def test_one_step_is_torchs(shape: Shape, name: str, n: int) -> None:
    settings = LOSSES[name]
    weights = settings.get("class_weights", torch.ones(CLASSES))
    f, h = network(shape, CLASSES)
    x, y = batch(shape, n)
    each = F.cross_entropy(h(f(x)), y, reduction="none", label_smoothing=settings.get("smoothing", 0.0))
    loss = (weights[y] * each).mean()
    loss.backward()
    for library in ("", "portable"):
        got = call(shape, n, library, **settings)
        assert got.loss == pytest.approx(loss.item(), rel=1e-6)
        assert distance(got.velocity_theta, flat_grad(f)) < 2e-6
        assert distance(got.velocity_phi, flat_grad(h)) < 2e-6


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("loss", [task_loss, proximal])
def test_several_steps_are_those_of_the_torch_engine(name: str, loss: Any, tasks: tuple[Task, Task]) -> None:
    g = torch.Generator().manual_seed(4)
    batches = [torch.randperm(60, generator=g)[:n] for n in (16, 16, 16, 5)]
    anchors = {f"anchor_{k}": v for k, v in near(tasks[0], 2).items()} | {"rho": torch.tensor(0.3)}
    case = loss, near(tasks[0], 1), anchors if loss is proximal else {}, {}
    weighed = [replace(task, objective=objective(**LOSSES[name])) for task in tasks]
    assert train_fused(job(weighed[0], case, batches)) is not None
    fused, looped = (train(job(task, case, batches, rule=Rule(0.9, 1e-2))) for task in weighed)
    assert fused.loss.total == pytest.approx(looped.loss.total, rel=1e-4)
    assert fused.loss.samples == looped.loss.samples
    for one, other in ((fused.params, looped.params), (fused.velocity, looped.velocity)):
        assert one.keys() == other.keys()
        assert all(distance(one[k], other[k]) < 2e-4 for k in one)


def test_balanced_weights_are_those_of_the_clients_labels(
    tasks: tuple[Task, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    balanced = fa.Classification(class_weights="balanced")
    data = images().clients[0].train
    native, plain = (replace(task, objective=balanced).at(data.y) for task in tasks)
    looped = Local(plain, 0, 0, 7, data).sgd(task_loss, near(plain, 1))
    monkeypatch.setattr(local_module, "gradients", None)
    fused = Local(native, 0, 0, 7, data).sgd(task_loss, near(native, 1))
    assert all(distance(fused[k], looped[k]) < 2e-4 for k in fused)


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_inputs_surface(name: str, value: float) -> None:
    x, y = batch(TINY, 9)
    x[:, 0, 3, 4] = value
    with pytest.raises(RunError, match="batch 1 of 1 is not finite"):
        call(x=x, y=torch.ones_like(y), **LOSSES[name])  # a class whose weight is 0


BAD: dict[str, list[dict[str, Any]]] = {
    "class_weights must have shape": [{"class_weights": torch.ones(CLASSES + 1)}],
    "class_weights must be a float32": [{"class_weights": WEIGHTS.double()}],
    "class_weights must be finite": [{"class_weights": torch.tensor([1, w, 1])} for w in (-1.0, float("nan"))],
    "smoothing must be": [{"smoothing": value} for value in (-0.1, 1.0, float("nan"))],
}


@pytest.mark.parametrize("why", BAD)
def test_bad_recipes_are_refused(why: str) -> None:
    for changes in BAD[why]:
        with pytest.raises(InputError, match=why):
            call(**changes)
