"""Recipes in the kernel: weighed losses, clipping and optimisers against torch, every refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jobs import CLASSES, images, job, near
from nets import CIFAR, FMNIST, ODD, TINY, distance, flat, flat_grad, network
from torch import Tensor, nn

import fedapa as fa
from fedapa.errors import InputError, RunError
from fedapa.methods.catalogue import make
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import make_task, simulate
from fedapa.training import local as local_module
from fedapa.training.engines.native import ClassPull, Kernel, Shape, SoftLabels, Terms, Trained, TrainingCall
from fedapa.training.fused import train_fused
from fedapa.training.local import Local, train
from fedapa.training.optimizers import Rule, state_of
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
RULES = {
    "nesterov": Rule(0.9, 1e-2, nesterov=True),
    "adam": Rule(weight_decay=1e-2, name="adam"),
    "adamw": Rule(weight_decay=1e-2, name="adamw"),
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


@SHAPES
@pytest.mark.parametrize("n", [1, 8, 13])
def test_one_step_on_numbers_is_torchs(shape: Shape, n: int) -> None:
    f, h = network(shape, 1)
    x, _ = batch(shape, n)
    y = torch.linspace(-1, 2, n + 2)
    order = torch.randperm(n + 2, generator=torch.Generator().manual_seed(1))[:n]
    x = torch.cat([x, x[:1], x[:1] + 1])
    loss = F.mse_loss(h(f(x[order]))[:, 0], y[order])
    loss.backward()
    for library in ("", "portable"):
        numbers = TrainingCall(flat(f), flat(h), x, y, order, torch.tensor([0, n]), 0.1)
        got = Kernel(shape, 1, library=library).train(numbers)
        assert got.loss == pytest.approx(loss.item(), rel=1e-6)
        assert distance(got.velocity_theta, flat_grad(f)) < 2e-6
        assert distance(got.velocity_phi, flat_grad(h)) < 2e-6


def numbers() -> fa.Federated:
    random = np.random.default_rng(2)
    x = random.normal(size=(2, 80, 1, 16, 16)).astype(np.float32)
    y = (40 + 7 * x.mean((2, 3, 4)) + random.normal(size=(2, 80))).astype(np.float32)
    return fa.from_arrays([(a[:40], b[:40], a[40:], b[40:]) for a, b in zip(x, y, strict=True)])


def test_regression_trains_as_on_the_torch_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    data = numbers()
    found = []
    for engine in ("torch", "native"):
        task = make_task(data, "lenet5", Training(batch=16), engine=engine, objective=fa.Regression())  # type: ignore[arg-type]
        assert task.objective.std != 1  # targets are standardised
        if engine == "native":
            monkeypatch.setattr(local_module, "gradients", None)
        toolbox = Local(task, 0, 0, 7, data.clients[0].train)
        found.append((toolbox.sgd(task_loss, near(task, 1)), toolbox.loss))
    assert all(distance(found[1][0][k], found[0][0][k]) < 2e-4 for k in found[0][0])
    assert found[1][1].total == pytest.approx(found[0][1].total, rel=1e-4)


class Doubled(fa.Classification):
    def mean_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return 2 * super().mean_loss(outputs, y)


class Cubed(fa.Regression):
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().losses(outputs, y) ** 1.5


def test_a_loss_that_somebody_states_anew_is_left_to_python(tasks: tuple[Task, Task]) -> None:
    case = task_loss, near(tasks[0], 1), {}, {}
    for objective in (Doubled(), Cubed(), fa.Regression("huber")):
        assert objective.fuses is None
        assert train_fused(job(replace(tasks[0], objective=objective), case, [torch.arange(9)])) is None


# ------------------------------------------------------------------------------------------------------ the steps


def optimiser(rule: Rule, lr: float, *modules: nn.Module) -> torch.optim.Optimizer:
    """torch's own."""
    weights = [p for module in modules for p in module.parameters()]
    decay: dict[str, Any] = {"lr": lr, "weight_decay": rule.weight_decay}
    if rule.name == "sgd":
        return torch.optim.SGD(weights, momentum=rule.momentum, nesterov=rule.nesterov, **decay)
    adam = torch.optim.Adam if rule.name == "adam" else torch.optim.AdamW
    return adam(weights, betas=rule.betas, eps=rule.eps, **decay)


@SHAPES
@pytest.mark.parametrize("name", RULES)
def test_a_step_moves_as_torchs_optimiser(shape: Shape, name: str) -> None:
    """From one gradient, so that nothing but the step is compared: Adam's first one hardly depends on its size."""
    rule = RULES[name]._replace(eps=1e-3)
    lr = 0.1 if name == "nesterov" else 0.01
    for library in ("", "portable"):
        f, h = network(shape, CLASSES)
        x, y = batch(shape, 13)
        opt, before = optimiser(rule, lr, f, h), flat(f)
        F.cross_entropy(h(f(x)), y).backward()
        opt.step()
        got = call(shape, 13, library, rule=rule, lr_theta=lr)
        assert distance(got.theta, flat(f)) < 1e-6
        assert distance(got.phi, flat(h)) < 1e-6
        moved = flat(f) - before
        assert float((got.theta - before - moved).norm() / moved.norm()) < 1e-5
        assert len(got.velocity_theta) == shape.theta_size if name == "nesterov" else 2 * shape.theta_size + 1


@pytest.mark.parametrize("at", [0.5, 2.0])
@pytest.mark.parametrize("frozen", ["", "theta", "phi"])
def test_gradients_are_clipped_together(at: float, frozen: str) -> None:
    shape = FMNIST
    f, h = network(shape, CLASSES)
    x, y = batch(shape, 13)
    anchors = {"anchor_theta": flat(f) + 0.3, "anchor_phi": flat(h) - 0.3}
    modules = [module for module, name in ((f, "theta"), (h, "phi")) if name != frozen]
    loss = F.cross_entropy(h(f(x)), y)
    for module, anchor in ((f, anchors["anchor_theta"]), (h, anchors["anchor_phi"])):
        loss = loss + 0.35 * (torch.nn.utils.parameters_to_vector(module.parameters()) - anchor).square().sum()
    loss.backward()
    weights = [p for module in modules for p in module.parameters()]
    norm = float(torch.cat([p.grad.flatten() for p in weights if p.grad is not None]).norm())
    torch.nn.utils.clip_grad_norm_(weights, at * norm)
    freeze = {f"freeze_{frozen}": True} if frozen else {}
    for library in ("", "portable"):
        got = call(shape, 13, library, clip_norm=at * norm, rho=0.7, **anchors, **freeze)
        for name, module in (("theta", f), ("phi", h)):
            if name != frozen:
                assert distance(getattr(got, f"velocity_{name}"), flat_grad(module)) < 2e-6


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("loss", [task_loss, proximal])
def test_several_steps_move_as_on_the_torch_engine(
    name: str, clip: float | None, loss: Any, tasks: tuple[Task, Task]
) -> None:
    """A state from before is taken up, also where theta and phi have taken different numbers of steps."""
    rule, g = RULES[name]._replace(eps=1e-3), torch.Generator().manual_seed(4)
    batches = [torch.randperm(60, generator=g)[:n] for n in (16, 16, 16, 5)]
    anchors = {f"anchor_{k}": v for k, v in near(tasks[0], 2).items()} | {"rho": torch.tensor(0.3)}
    params = near(tasks[0], 1)
    case = loss, params, anchors if loss is proximal else {}, {}
    state = {k: v for name, w in params.items() for k, v in state_of(rule, name, w).items()}
    state |= {k: torch.full_like(v, 5.0 if "phi" in k else 0.0) for k, v in state.items() if k.endswith("steps")}
    rates = {"theta": 0.01, "phi": 0.005}
    found = []
    for task in tasks:
        begun = {k: v.clone() for k, v in state.items()}
        whole = job(task, case, batches, rule=rule, clip_norm=clip, velocity=begun, rates=rates)
        assert (train_fused(whole) is None) == (task is tasks[1])
        first = train(whole)
        found.append(train(whole._replace(params=first.params, velocity=first.velocity)))
    assert found[0].loss.total == pytest.approx(found[1].loss.total, rel=1e-4)
    for one, other in ((found[0].params, found[1].params), (found[0].velocity, found[1].velocity)):
        assert one.keys() == other.keys()
        assert all(one[k].shape == other[k].shape for k in one)
        assert all(distance(one[k], other[k]) < 2e-4 for k in one)


@pytest.mark.parametrize("name", RULES)
def test_the_state_goes_from_visit_to_visit(name: str, tasks: tuple[Task, Task]) -> None:
    """One call with two batches is two calls with one, bit for bit, and arguments stay."""
    rule, params = RULES[name], near(tasks[0], 1)
    case = task_loss, params, {}, {}
    state = {k: v for name, w in params.items() for k, v in state_of(rule, name, w).items()}
    a, b = torch.arange(9), torch.arange(9, 25)
    both, first = (train(job(tasks[0], case, some, rule=rule, velocity=state)) for some in ([a, b], [a]))
    assert all(not v.any() for v in state.values())
    second = train(job(tasks[0], case, [b], rule=rule, params=first.params, velocity=first.velocity))
    assert all(torch.equal(both.params[k], v) for k, v in second.params.items())
    assert all(torch.equal(both.velocity[k], v) for k, v in second.velocity.items())


@pytest.mark.parametrize("keep", [True, False, "auto"])
def test_clients_keep_adams_moments_as_on_the_torch_engine(keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole rounds by everything at once; in `auto` fedavg starts afresh and the head of fedper goes on."""
    recipe = Training(1e-3, batch=16, epochs=1, optimizer="adamw", eps=1e-3, clip_norm=0.5, keep_momentum=keep)
    balanced = fa.Classification(class_weights="balanced", label_smoothing=0.1)
    data = images()
    for name in ("fedavg", "fedper"):
        ends = []
        for engine in ("torch", "native"):
            task = make_task(data, "lenet5", recipe, engine=engine, objective=balanced)  # type: ignore[arg-type]
            with monkeypatch.context() as patched:
                if engine == "native":
                    patched.setattr(local_module, "gradients", None)
                ends.append(simulate(make(name), task, data, Plan(3, (1.0, 1.0), evaluate_every=3)).records)
        for one, other in zip(*ends, strict=True):
            assert one.memory.keys() == other.memory.keys()
            for mine, theirs in ((one.memory, other.memory), (one.state, other.state)):
                assert all(distance(mine[k], theirs[k]) < 1e-3 for k in theirs)


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
    "betas must be": [{"rule": Rule(name="adam", betas=(1.0, 0.9))}],
    "eps must be": [{"rule": Rule(name="adam", eps=float("nan"))}],
    "momentum must be": [{"rule": Rule(-1.0)}],
    "weight_decay must be": [{"rule": Rule(0.0, float("inf"))}],
    "clip_norm must be": [{"clip_norm": value} for value in (-1.0, float("nan"))],
    "velocity_phi must have shape": [{"rule": Rule(name="adam"), "velocity_phi": torch.zeros(TINY.phi_size(CLASSES))}],
    "smoothing must be": [{"smoothing": value} for value in (-0.1, 1.0, float("nan"))],
}


def test_numbers_that_cannot_be_learned_are_refused() -> None:
    f, h = network(TINY, 1)
    x, _ = batch(TINY, 9)
    d = TINY.features

    def trained(y: Any, outputs: int = 1, **changes: Any) -> Trained:
        phi = flat(h) if outputs == 1 else torch.zeros(TINY.phi_size(outputs))
        made = TrainingCall(flat(f), phi, x, y, torch.arange(9), torch.tensor([0, 9]), 0.1, **changes)
        return Kernel(TINY, outputs).train(made)

    pull = Terms(pull=ClassPull(torch.zeros(1, d), torch.ones(1), 1.0))
    answers = Terms(teacher=SoftLabels(torch.zeros(TINY.theta_size), torch.zeros(TINY.phi_size(1)), 1, 1))
    assert trained(torch.ones(9)).loss > 0
    bad: dict[str, tuple[Any, ...]] = {
        "y must have shape": (torch.ones(8),),
        "y must be an int64": (torch.ones(9).double(),),
        "one output": (torch.ones(9), 2),
    }
    for why, arguments in bad.items():
        with pytest.raises(InputError, match=why):
            trained(*arguments)
    with pytest.raises(InputError, match="without class weights"):
        trained(torch.ones(9), smoothing=0.1)
    with pytest.raises(InputError, match="needs classes"):
        trained(torch.ones(9), terms=pull)
    with pytest.raises(InputError, match="soft labels"):
        trained(torch.ones(9), terms=answers)
    with pytest.raises(RunError, match="batch 1 of 1 is not finite"):
        trained(torch.full((9,), float("nan")))


@pytest.mark.parametrize("why", BAD)
def test_bad_recipes_are_refused(why: str) -> None:
    for changes in BAD[why]:
        with pytest.raises(InputError, match=why):
            call(**changes)
