"""Losses of methods in the kernel: one step against float64, several against the torch engine, every refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from jobs import CLASSES, Case, images, job, near
from nets import CIFAR, TINY, distance, extractor, flat, flat_grad, network
from torch import Tensor

import fedapa as fa
from fedapa.core.tree import Tree
from fedapa.errors import InputError, RunError
from fedapa.methods.apple import mixture
from fedapa.methods.catalogue import make
from fedapa.methods.dbe import debiased
from fedapa.methods.fedala import mixing, mixing_heads, unit_box
from fedapa.methods.fedphp import BANDWIDTHS, mmd, taught_features, taught_labels
from fedapa.methods.fedproto import attracted, watched
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import make_task, simulate
from fedapa.training import local as local_module
from fedapa.training.engines.native import (
    ClassPull,
    Kernel,
    MeanPull,
    MixingCall,
    Mixture,
    Mmd,
    Shape,
    SoftLabels,
    Terms,
    Trained,
    TrainingCall,
)
from fedapa.training.fused import train_fused
from fedapa.training.local import Split, train
from fedapa.training.optimizers import Rule, state_of
from fedapa.training.settings import Training
from fedapa.training.task import Batch, Task

torch.set_num_threads(1)
SIZES = (1, 7, 8, 9, 29)  # of batches: fewer than the lanes of a vector, as many, and more


@pytest.fixture(scope="module")
def tasks() -> tuple[Task, Task]:
    """The same task on the native and on the torch engine."""
    native = make_task(images(), "lenet5", Training(batch=16), engine="native")
    return native, replace(native, kernel=None)


# ------------------------------------------------------------------------------------- losses of methods


def prototypes(task: Task, seed: int) -> Tree:
    g = torch.Generator().manual_seed(seed)
    present = torch.tensor([2.0, 0.0, 1.0])  # a class without a prototype
    return {"target": torch.rand(CLASSES, task.d, generator=g), "present": present, "lam": torch.tensor(0.7)}


def means(task: Task, ready: float) -> Tree:
    return {
        "mean": torch.linspace(-1, 1, task.d),
        "mu": torch.tensor(0.3),
        "kappa": torch.tensor(8.0),
        "ready": torch.tensor([ready]),
    }


def pulled(task: Task) -> Case:
    return attracted, near(task, 1), prototypes(task, 2), {}


def pulled_with_a_frozen_head(task: Task) -> Case:
    both = near(task, 1)
    return attracted, {"theta": both["theta"]}, {"phi": both["phi"], **prototypes(task, 2)}, {}


def shifted(task: Task) -> Case:
    b, m = torch.linspace(-0.5, 0.5, task.d), torch.linspace(0, 1, task.d)
    return debiased, {**near(task, 1), "b": b}, {**means(task, 1.0), "b": b}, {"m": m}


def shifted_by_a_constant(task: Task) -> Case:
    loss, params, given, carry = shifted(task)
    return loss, {k: params[k] for k in ("theta", "phi")}, given, carry


def not_yet_shifted(task: Task) -> Case:
    loss, params, given, carry = shifted(task)
    return loss, params, {**given, **means(task, 0.0)}, carry


def taught(loss: Any) -> Callable[[Task], Case]:
    def case(task: Task) -> Case:
        teacher = {f"inherited_{k}": v for k, v in near(task, 5).items()}
        return loss, near(task, 1), {**teacher, "lam": torch.tensor(0.4)}, {}

    return case


def mixed(others: int) -> Callable[[Task], Case]:
    def case(task: Task) -> Case:
        cores = [task.join(*near(task, 7 + k).values()) for k in range(others)]
        given = {
            "others": torch.stack(cores) if cores else torch.zeros(0, task.P + task.Q),
            "p_0": torch.full((others + 1,), 0.2),
            "strength": torch.tensor(0.6),
        }
        p = torch.linspace(0.7, 0.2, others + 1)
        return mixture, {**near(task, 1), "p": p}, given, {}

    return case


CASES: dict[str, Callable[[Task], Case]] = {
    "class pull": pulled,
    "class pull, frozen head": pulled_with_a_frozen_head,
    "mean pull and shift": shifted,
    "mean pull, frozen shift": shifted_by_a_constant,
    "running mean only": not_yet_shifted,
    "features of a teacher": taught(taught_features),
    "answers of a teacher": taught(taught_labels),
    "mixture of four": mixed(3),
    "mixture of one": mixed(0),
}


def doubled(tree: Tree) -> Tree:
    return {k: v.double() for k, v in tree.items()}


@pytest.mark.parametrize("name", CASES)
def test_one_step_is_the_gradient_in_float64(name: str, tasks: tuple[Task, Task]) -> None:
    native, plain = tasks
    case = CASES[name](native)
    for n in SIZES:
        index = torch.randperm(60, generator=torch.Generator().manual_seed(n))[:n]
        one = job(native, case, [index])
        found = train_fused(one)
        assert found is not None
        x, y = one.data.x[index].double(), one.data.y[index]
        loss, params, given, carry = case
        exact = local_module.gradients(plain, loss, doubled(params), Batch(x, y), doubled(given), doubled(carry))
        for k, grad in exact[0].items():
            assert distance(found[1][k].double(), grad) < 2e-5, (n, k)  # without momentum, the velocity is the gradient
        for k, value in exact[1].items():
            assert distance(found[0][k].double(), value) < 1e-6, (n, k)


@pytest.mark.parametrize("name", CASES)
def test_several_steps_are_those_of_the_torch_engine(name: str, tasks: tuple[Task, Task]) -> None:
    native, plain = tasks
    g = torch.Generator().manual_seed(4)
    batches = [torch.randperm(60, generator=g)[:n] for n in (16, 16, 16, 5)]
    options = {"rule": Rule(0.9, 1e-2)}
    case = CASES[name](native)
    fused, looped = (train(job(task, case, batches, **options)) for task in (native, plain))
    assert fused.params.keys() == looped.params.keys()
    assert fused.velocity.keys() == looped.velocity.keys()
    for one, other in ((fused.params, looped.params), (fused.velocity, looped.velocity)):
        for k in one:
            assert distance(one[k], other[k]) < 2e-4, k


@pytest.mark.parametrize("name", CASES)
def test_terms_go_with_weighed_classes_and_smoothed_labels(name: str, tasks: tuple[Task, Task]) -> None:
    objective = fa.Classification(label_smoothing=0.1, class_weights=[0.5, 2.0, 1.0])
    case, index = CASES[name](tasks[0]), [torch.arange(16), torch.arange(16, 29)]
    fused, looped = (train(job(replace(task, objective=objective), case, index)) for task in tasks)
    assert all(distance(fused.params[k], looped.params[k]) < 1e-5 for k in looped.params)


@pytest.mark.parametrize("rule", [Rule(0.9, 1e-2), Rule(weight_decay=1e-2, name="adamw", eps=1e-3)])
@pytest.mark.parametrize("name", CASES)
def test_terms_go_with_adam_and_clipping(name: str, rule: Rule, tasks: tuple[Task, Task]) -> None:
    case, index = CASES[name](tasks[0]), [torch.arange(16), torch.arange(16, 29)]
    begun = {k: v for name, w in case[1].items() for k, v in state_of(rule, name, w).items()}
    rates = dict.fromkeys(case[1], 0.01)
    found = []
    for task in tasks:
        fresh = {k: v.clone() for k, v in begun.items()}  # the torch engine moves it in place
        found.append(train(job(task, case, index, rule=rule, velocity=fresh, rates=rates, clip_norm=0.3)))
    for k, w in found[1].params.items():
        assert distance(found[0].params[k], w) < 1e-4, k
    for k, v in found[1].velocity.items():
        assert distance(found[0].velocity[k], v) < 2e-4, k


def test_velocity_of_the_extra_vector_carries_over(tasks: tuple[Task, Task]) -> None:
    case, rule = shifted(tasks[0]), Rule(0.9)
    loss, params, given, _ = case
    a, b = torch.arange(9), torch.arange(9, 25)
    both, first = (train(job(tasks[0], case, batches, rule=rule)) for batches in ([a, b], [a]))
    moved = (loss, {k: first.params[k] for k in params}, given, {"m": first.params["m"]})
    second = train(job(tasks[0], moved, [b], rule=rule, velocity=first.velocity))
    assert all(torch.equal(both.params[k], v) for k, v in second.params.items())


@pytest.mark.parametrize("name", CASES)
def test_a_training_changes_none_of_its_arguments(name: str, tasks: tuple[Task, Task]) -> None:
    one = job(tasks[0], CASES[name](tasks[0]), [torch.arange(9)], rule=Rule(0.9))
    trees = (one.params, one.velocity, one.given, one.carry)
    before = [{k: v.clone() for k, v in tree.items()} for tree in trees]
    assert train_fused(one) is not None
    assert all(torch.equal(a[k], b[k]) for a, b in zip(trees, before, strict=True) for k in a)


def test_the_mixed_head_learns_as_on_the_torch_engine(tasks: tuple[Task, Task]) -> None:
    native = tasks[0]
    own, arrived = near(native, 1), near(native, 2)
    given = {"global": arrived["phi"], "local": own["phi"], "theta_below": arrived["theta"]}
    given |= {k: torch.zeros(0) for k in ("theta_above", "phi_below", "phi_above")}
    W = torch.rand(native.Q, generator=torch.Generator().manual_seed(3))
    case = (mixing_heads, {"W": W}, given, {"loss": torch.zeros(())})
    data = Split(torch.rand(60, native.d, generator=torch.Generator().manual_seed(8)), torch.arange(60) % CLASSES)
    batches = [torch.arange(60)[a:b] for a, b in ((0, 16), (16, 39), (39, 60))]
    for eta in (0.5, 50.0):  # the larger one ends at the walls of the box
        options = {"rates": {"W": eta}, "project": unit_box, "data": data}
        fused, looped = (train(job(task, case, batches, **options)) for task in tasks)
        assert train_fused(job(native, case, batches, **options)) is not None
        assert distance(fused.params["W"], looped.params["W"]) < 1e-4
        assert float(fused.params["loss"]) == pytest.approx(float(looped.params["loss"]), rel=1e-5)
        assert distance(fused.velocity["W"], looped.velocity["W"]) < 1e-4
        for other in ({"clip_norm": 1.0}, {"rule": Rule(name="adam")}, {"rule": Rule(0.9, nesterov=True)}):
            assert train_fused(job(native, case, batches, **{**options, **other})) is None
    assert fused.params["W"].min() == 0
    assert fused.params["W"].max() == 1


# ------------------------------------------------------------------------------------------ whole or not


@pytest.mark.parametrize(
    "name", ["fedproto", "fedpac", "dbe", "fedphp", "apple", "fedala", "fedprox", "ditto", "fedavg"]
)
def test_methods_train_without_a_gradient_in_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a batch was computed in Python")

    monkeypatch.setattr(local_module, "gradients", never)
    data = images()
    task = make_task(data, "lenet5", Training(epochs=1, batch=16), engine="native")
    simulate(make(name), task, data, Plan(2, (1.0, 1.0), evaluate_every=2))


def test_what_the_kernel_cannot_do_is_left_to_python(tasks: tuple[Task, Task]) -> None:
    native, plain = tasks
    index = [torch.arange(9)]
    case = pulled(native)
    assert train_fused(job(native, case, index)) is not None
    assert train_fused(job(plain, case, index)) is None
    changes: list[dict[str, Any]] = [
        {"project": unit_box},
        {"pace": lambda share: {"theta": 0.1, "phi": 0.1}},
        {"carry": {"m": torch.zeros(native.d)}},
        {"loss": watched},
        {"loss": mixing},
        {"augment": lambda x, k: x},
        {"params": {"phi": case[1]["phi"]}, "given": {**case[2], "theta": case[1]["theta"]}},
        {"params": {**case[1], "more": torch.zeros(1)}},
    ]
    assert [train_fused(job(native, case, index, **change)) for change in changes] == [None] * len(changes)
    weighed = replace(native, objective=fa.Classification(label_smoothing=0.1))
    assert train_fused(job(weighed, case, index)) is not None
    assert train_fused(job(weighed, CASES["answers of a teacher"](native), index)) is None
    assert train_fused(job(replace(native, objective=fa.Regression("absolute")), case, index)) is None


def test_a_training_without_a_step_returns_what_it_was_given(tasks: tuple[Task, Task]) -> None:
    one = job(tasks[0], shifted(tasks[0]), [])
    done = train(one)
    assert all(torch.equal(done.params[k], v) for k, v in {**one.params, **one.carry}.items())


# --------------------------------------------------------------------------- the kernel alone, any shape


def oracle(terms: Terms, f: Any, h: Any, z_of: Callable[[Tensor], Tensor], y: Tensor, extra: Tensor | None) -> Tensor:
    """The loss in float64, written anew from the docstrings of the terms."""
    z = f
    head = z if terms.shift is None or extra is None else z + terms.shift * extra
    value = terms.share * F.cross_entropy(h(head), y)
    if (pull := terms.pull) is not None:
        rows = [
            (z[i] - pull.target[c].double()).square().mean() for i, c in enumerate(y.tolist()) if pull.present[c] > 0
        ]
        value = value + pull.strength * sum(rows, torch.zeros((), dtype=torch.float64)) / len(y)
    if (mean := terms.mean) is not None:
        m = (1 - mean.mu) * mean.m.double() + mean.mu * z.mean(0)
        value = value + mean.strength / 2 * (m - mean.target.double()).square().mean()
    if isinstance(terms.teacher, Mmd):
        value = value + terms.teacher.strength * discrepancy(z, z_of(terms.teacher.theta), terms.teacher)
    if isinstance(terms.teacher, SoftLabels):
        taught = z_of(terms.teacher.theta)
        phi, d = terms.teacher.phi.double(), z.shape[1]
        classes = len(phi) // (d + 1)
        logits = F.linear(taught, phi[: classes * d].reshape(classes, d), phi[classes * d :])
        soft = (logits / terms.teacher.temperature).softmax(1)
        value = value - terms.teacher.strength * (soft * F.log_softmax(h(head), 1)).sum(1).mean()
    return value


def discrepancy(z: Tensor, t: Tensor, how: Mmd) -> Tensor:
    """MMD^2, pair by pair."""
    both = torch.cat([z, t])
    gaps = (both[:, None] - both[None]).square().sum(2)
    n = len(z)
    width = max(float(gaps.detach().sum()) / (2 * n * (2 * n - 1)), how.floor)
    k = sum(torch.exp(-gaps / (how.widest / 2**b * width)) for b in range(how.bandwidths))
    sign = torch.cat([torch.ones(n), -torch.ones(n)]).double()
    return (sign[:, None] * sign * k).sum() / n**2


@st.composite
def some_terms(draw: st.DrawFn) -> tuple[Shape, int, int, int, str, list[str]]:
    shape = Shape(draw(st.integers(1, 2)), draw(st.integers(6, 9)), (draw(st.integers(1, 4)),), tuple(
        draw(st.integers(1, 19)) for _ in range(draw(st.integers(0, 2)))))  # fmt: skip
    teacher = draw(st.sampled_from(["none", "features", "answers"]))
    chosen = [name for name in ("pull", "mean", "shift", "share") if draw(st.booleans())]
    return shape, draw(st.integers(1, 40)), draw(st.integers(1, 7)), draw(st.integers(0, 2**31)), teacher, chosen


@pytest.mark.parametrize("library", ["auto", "portable"])
@settings(max_examples=25, deadline=None, derandomize=True)
@drawn(some_terms())
def test_any_terms_on_any_shape(library: str, what: tuple[Shape, int, int, int, str, list[str]]) -> None:
    shape, n, classes, seed, kind, chosen = what
    f, h = network(shape, classes, seed)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, shape.channels, shape.size, shape.size, generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    d, theta, phi = shape.features, flat(f), flat(h)
    other = theta + 0.1 * torch.randn(len(theta), generator=g)
    number = float(torch.rand(1, generator=g)) + 0.1
    extra = torch.randn(d, generator=g) if "shift" in chosen else None
    teachers = {"features": Mmd(other, number, 4.0, 5, 1e-3), "answers": SoftLabels(other, phi * 2, number, 3.0)}
    terms = Terms(
        0.6 if "share" in chosen else 1.0,
        ClassPull(torch.randn(classes, d, generator=g), (torch.rand(classes, generator=g) > 0.3).float(), number)
        if "pull" in chosen else None,
        MeanPull(torch.randn(d, generator=g), torch.randn(d, generator=g), 0.4, number) if "mean" in chosen else None,
        teachers.get(kind),
        0.8 if extra is not None else None,
    )  # fmt: skip
    kernel = Kernel(shape, classes, library=library)
    call = TrainingCall(theta, phi, x, y, torch.arange(n), torch.tensor([0, n]), 0.0, terms=terms, extra=extra)
    got = kernel.train(call)
    f.double()
    h.double()
    teacher = extractor(shape)
    torch.nn.utils.vector_to_parameters(other, teacher.parameters())
    b = None if extra is None else extra.double().requires_grad_()
    loss = oracle(terms, f(x.double()), h, lambda _: teacher.double()(x.double()).detach(), y, b)
    loss.backward()
    assert distance(got.velocity_theta.double(), flat_grad(f)) < 2e-4  # an arg-max may flip against float64
    assert distance(got.velocity_phi.double(), flat_grad(h)) < 5e-5
    if b is not None:
        assert got.velocity_extra is not None
        assert b.grad is not None
        assert distance(got.velocity_extra.double(), b.grad) < 5e-5


def test_mmd_is_that_of_fedphp() -> None:
    z, t = torch.rand(9, 4), torch.rand(9, 4)
    how = Mmd(torch.zeros(1), 1.0, max(BANDWIDTHS), len(BANDWIDTHS), 1e-3)
    assert sorted(how.widest / 2**b for b in range(how.bandwidths)) == list(BANDWIDTHS)
    assert float(discrepancy(z.double(), t.double(), how)) == pytest.approx(float(mmd(z, t)), rel=1e-5)


# ---------------------------------------------------------------------------------------------- refusals


def call(shape: Shape = TINY, **changes: Any) -> Trained:
    f, h = network(shape, CLASSES)
    x = torch.randn(9, shape.channels, shape.size, shape.size, generator=torch.Generator().manual_seed(0))
    made = {"lr_theta": 0.1, **changes}
    order = torch.arange(9)
    return Kernel(shape, CLASSES).train(
        TrainingCall(flat(f), flat(h), x, order % CLASSES, order, torch.tensor([0, 5, 9]), **made)
    )


D, P, Q = TINY.features, TINY.theta_size, TINY.phi_size(CLASSES)
NONE: Any = None


def mixing_of(others: Any, origin: Any, extra: int, **more: Any) -> dict[str, Any]:
    return {"terms": Terms(mixture=Mixture(others, origin, 1.0), **more), "extra": torch.zeros(extra)}


def moved_by(**extra: Any) -> dict[str, Any]:
    return {"terms": Terms(shift=1.0), "extra": torch.zeros(D), **extra}


BAD_TERMS: dict[str, dict[str, Any]] = {
    "target must have shape": {"terms": Terms(pull=ClassPull(torch.zeros(CLASSES, D + 1), torch.ones(CLASSES), 1))},
    "target must be a float32": {"terms": Terms(pull=ClassPull(NONE, torch.ones(CLASSES), 1))},
    "present must have shape": {"terms": Terms(pull=ClassPull(torch.zeros(CLASSES, D), torch.ones(9), 1))},
    "pull must be finite": {"terms": Terms(pull=ClassPull(torch.zeros(CLASSES, D), torch.ones(CLASSES), -1))},
    "share must be finite": {"terms": Terms(float("nan"))},
    "m must have shape": {"terms": Terms(mean=MeanPull(torch.zeros(D - 1), torch.zeros(D), 1, 1))},
    "target of the mean": {"terms": Terms(mean=MeanPull(torch.zeros(D), NONE, 1, 1))},
    "teacher's theta must have": {"terms": Terms(teacher=Mmd(torch.zeros(P - 1), 1, 4, 5, 1))},
    "bandwidths must be": {"terms": Terms(teacher=Mmd(torch.zeros(P), 1, 4, 0, 1))},
    "floor must be": {"terms": Terms(teacher=Mmd(torch.zeros(P), 1, 4, 5, 0))},
    "teacher's phi must have": {"terms": Terms(teacher=SoftLabels(torch.zeros(P), torch.zeros(Q + 1), 1, 1))},
    "temperature must be": {"terms": Terms(teacher=SoftLabels(torch.zeros(P), torch.zeros(Q), 1, 0))},
    "needs an extra vector": {"terms": Terms(shift=1.0)},
    "nothing else has one": {"extra": torch.zeros(D)},
    "extra must have shape": moved_by(extra=torch.zeros(D + 1)),
    "velocity_extra must": moved_by(velocity_extra=torch.zeros(1)),
    "lr_extra must be": moved_by(lr_extra=float("inf")),
    "others must have shape": mixing_of(torch.zeros(2, 3), torch.zeros(3), 3),
    "others must be a float32": mixing_of(None, torch.zeros(1), 1),
    "origin must have shape": mixing_of(torch.zeros(2, P + Q), torch.zeros(2), 3),
    "cannot share": mixing_of(torch.zeros(0, P + Q), torch.zeros(1), 1, shift=1.0),
    "not frozen": {**mixing_of(torch.zeros(0, P + Q), torch.zeros(1), 1), "freeze_phi": True},
    "frozen theta": {"terms": Terms(0.5), "freeze_theta": True},
    "soft labels need plain": {
        "terms": Terms(teacher=SoftLabels(torch.zeros(P), torch.zeros(Q), 1, 1)),
        "smoothing": 0.1,
    },
}


@pytest.mark.parametrize("why", BAD_TERMS)
def test_bad_terms_are_refused(why: str) -> None:
    with pytest.raises(InputError, match=why):
        call(**BAD_TERMS[why])


def test_bad_mixed_heads_are_refused() -> None:
    kernel, n = Kernel(TINY, CLASSES), 6
    good: dict[str, Any] = {
        "W": torch.ones(Q), "arrived": torch.zeros(Q), "own": torch.ones(Q), "z": torch.rand(n, D),
        "y": torch.zeros(n, dtype=torch.int64), "order": torch.arange(n), "bounds": torch.tensor([0, n]), "lr": 0.1,
    }  # fmt: skip
    assert kernel.mix_head(MixingCall(**good)).loss > 0
    bad: dict[str, list[Any]] = {
        "W": [torch.ones(Q + 1), None],
        "arrived": [torch.ones(Q).double()],
        "own": [None],
        "z": [torch.rand(n, D + 1), None, torch.rand(n)],
        "y": [torch.full((n,), CLASSES), torch.zeros(n)],
        "order": [torch.arange(n) + 1, None],
        "bounds": [torch.tensor([0, 2])],
        "lr": [float("nan")],
        "velocity": [torch.zeros(1)],
    }
    for name, values in bad.items():
        for value in values:
            with pytest.raises(InputError):
                kernel.mix_head(MixingCall(**{**good, name: value}))
    for name in ("arrived", "own", "W"):
        with pytest.raises(RunError, match="batch 1 of 1 is not finite"):
            kernel.mix_head(MixingCall(**{**good, name: torch.full((Q,), float("nan"))}))


NAN = float("nan")


@pytest.mark.parametrize(
    "changes",
    [
        {"terms": Terms(pull=ClassPull(torch.full((CLASSES, D), NAN), torch.ones(CLASSES), 1))},
        {"terms": Terms(mean=MeanPull(torch.full((D,), NAN), torch.zeros(D), 0.5, 1))},
        {"terms": Terms(teacher=Mmd(torch.full((P,), NAN), 1, 4, 5, 1e-3))},
        {"terms": Terms(teacher=SoftLabels(torch.zeros(P), torch.full((Q,), NAN), 1, 1))},
        {"terms": Terms(shift=1.0), "extra": torch.full((D,), NAN)},
        {"terms": Terms(mixture=Mixture(torch.full((1, P + Q), NAN), torch.zeros(2), 1)), "extra": torch.ones(2)},
    ],
    ids=["target", "mean", "features", "answers", "shift", "mixture"],
)
def test_nan_in_a_term_is_refused_at_the_first_batch(changes: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="batch 1 of 2 is not finite"):
        call(**changes)


def test_a_frozen_extra_vector_stays() -> None:
    b = torch.ones(D)
    found = [call(terms=Terms(shift=1.0), extra=b, lr_extra=0.1, freeze_extra=frozen).extra for frozen in (True, False)]
    assert found[0] is not None
    assert found[1] is not None
    assert torch.equal(found[0], b)
    assert not torch.equal(found[1], b)


def test_a_large_batch_after_a_small_one_fits_its_buffers() -> None:
    """One workspace serves calls of any size, one after another."""
    f, h = network(CIFAR, 10)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(70, 3, 32, 32, generator=g), torch.randint(0, 10, (70,), generator=g)
    kernel = Kernel(CIFAR, 10)
    terms = Terms(0.5, teacher=Mmd(flat(f) * 1.1, 0.5, 4.0, 5, 1e-3))

    def trained(n: int, own: Kernel) -> Tensor:
        order = torch.arange(n)
        return own.train(TrainingCall(flat(f), flat(h), x, y, order, torch.tensor([0, n]), 0.1, terms=terms)).theta

    for n in (3, 70, 17):
        assert torch.equal(trained(n, kernel), trained(n, Kernel(CIFAR, 10)))
