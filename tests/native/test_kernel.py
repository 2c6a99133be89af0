"""The kernel against torch: one step tightly, every option, every refusal."""

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import CIFAR, FMNIST, ODD, TINY, distance, extractor, flat, flat_grad, network
from torch import Tensor, nn

from fedapa.errors import InputError, RunError
from fedapa.training.engines.native import Kernel, Shape, Trained, TrainingCall, available, libraries, shape_of
from fedapa.training.optimizers import Rule

SHAPES = pytest.mark.parametrize("shape", [CIFAR, FMNIST, TINY, ODD], ids=["cifar", "fmnist", "tiny", "odd"])


def batch(shape: Shape, n: int, classes: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, shape.channels, shape.size, shape.size, generator=g)
    return x, torch.randint(0, classes, (n,), generator=g)


def train(kernel: Kernel, *arguments: Any, momentum: float = 0.0, weight_decay: float = 0.0, **options: Any) -> Trained:
    options["rule"] = Rule(momentum, weight_decay)
    return kernel.train(TrainingCall(*arguments, **options))


def steps(
    f: nn.Module,
    h: nn.Module,
    x: Tensor,
    y: Tensor,
    batches: list[Tensor],
    *,
    lr: float = 0.1,
    lr_phi: float | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    anchors: tuple[Tensor, Tensor] | None = None,
    rho: float = 0.0,
    theta: bool = True,
    phi: bool = True,
) -> list[float]:
    """The plain loop, in place; the losses without the proximal term."""
    groups = []
    if theta:
        groups.append({"params": list(f.parameters()), "lr": lr})
    if phi:
        groups.append({"params": list(h.parameters()), "lr": lr if lr_phi is None else lr_phi})
    opt = torch.optim.SGD(groups, momentum=momentum, weight_decay=weight_decay)
    losses = []
    for index in batches:
        opt.zero_grad()
        loss = F.cross_entropy(h(f(x[index])), y[index])
        losses.append(loss.item())
        if anchors is not None:
            for module, anchor in ((f, anchors[0]), (h, anchors[1])):
                w = torch.cat([p.reshape(-1) for p in module.parameters()])
                loss = loss + rho / 2 * ((w - anchor) ** 2).sum()
        loss.backward()
        opt.step()
    return losses


def packed(batches: list[Tensor]) -> tuple[Tensor, Tensor]:
    sizes = torch.tensor([0] + [len(b) for b in batches])
    return torch.cat(batches), sizes.cumsum(0)


@SHAPES
@pytest.mark.parametrize("classes", [10, 100])
def test_one_step_is_torchs(shape: Shape, classes: int) -> None:
    f, h = network(shape, classes)
    x, y = batch(shape, 64, classes)
    index = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    kernel = Kernel(shape, classes)
    before_f, before_h = flat(f), flat(h)
    got = train(kernel, before_f, before_h, x, y, *packed([index]), lr_theta=0.1, momentum=0.9)
    (loss,) = steps(f, h, x, y, [index], momentum=0.9)
    assert distance(got.theta, flat(f)) < 1e-6
    assert distance(got.phi, flat(h)) < 1e-6
    assert got.loss == pytest.approx(loss, rel=1e-6)
    # the step itself, not only the weights it hardly moves
    assert distance(got.velocity_theta, flat_grad(f)) < 2e-6
    assert distance(got.velocity_phi, flat_grad(h)) < 2e-6


@SHAPES
def test_uint8_is_normalised_inside(shape: Shape) -> None:
    f, h = network(shape, 10)
    g = torch.Generator().manual_seed(5)
    x = torch.randint(0, 256, (40, shape.channels, shape.size, shape.size), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (40,), generator=g)
    mean = [0.4 + 0.05 * c for c in range(shape.channels)]
    std = [0.2 + 0.03 * c for c in range(shape.channels)]
    m, s = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    index = torch.arange(33)
    kernel = Kernel(shape, 10, mean, std)
    theta, phi = flat(f), flat(h)
    got = train(kernel, theta, phi, x, y, *packed([index]), lr_theta=0.1)
    from_float = train(kernel, theta, phi, x.float() / 255, y, *packed([index]), lr_theta=0.1)
    steps(f, h, (x.float() / 255 - m) / s, y, [index])
    assert distance(got.theta, flat(f)) < 1e-6
    assert distance(from_float.theta, flat(f)) < 1e-6


def test_uint8_without_statistics_is_divided_by_255() -> None:
    f = extractor(TINY)
    x = torch.randint(0, 256, (9, 1, 8, 8), dtype=torch.uint8)
    z = Kernel(TINY, 3).features(flat(f), x)
    assert distance(z, f(x.float() / 255).detach()) < 1e-5


@SHAPES
def test_several_steps_with_every_option(shape: Shape) -> None:
    f, h = network(shape, 10)
    x, y = batch(shape, 70, 10)
    torch.manual_seed(0)
    batches = [torch.randperm(70)[:32], torch.randperm(70)[:32], torch.randperm(70)[:6]]
    anchor_f, anchor_h = flat(f) + 0.01 * torch.randn(shape.theta_size), flat(h) * 0.5
    kernel = Kernel(shape, 10)
    got = train(
        kernel, flat(f), flat(h), x, y, *packed(batches), lr_theta=0.05, lr_phi=0.02, momentum=0.9,
        weight_decay=1e-3, anchor_theta=anchor_f, anchor_phi=anchor_h, rho=0.3, last=1,
    )  # fmt: skip
    losses = steps(
        f, h, x, y, batches, lr=0.05, lr_phi=0.02, momentum=0.9, weight_decay=1e-3,
        anchors=(anchor_f, anchor_h), rho=0.3,
    )  # fmt: skip
    assert distance(got.theta, flat(f)) < 1e-5
    assert distance(got.phi, flat(h)) < 1e-5
    assert got.loss == pytest.approx(losses[-1], rel=1e-5)


def test_velocity_carries_over() -> None:
    f, h = network(FMNIST, 10)
    x, y = batch(FMNIST, 32, 10)
    a, b = torch.arange(16), torch.arange(16, 32)
    kernel = Kernel(FMNIST, 10)
    options = {"lr_theta": 0.1, "momentum": 0.9}
    both = train(kernel, flat(f), flat(h), x, y, *packed([a, b]), **options)
    one = train(kernel, flat(f), flat(h), x, y, *packed([a]), **options)
    two = train(
        kernel, one.theta, one.phi, x, y, *packed([b]), velocity_theta=one.velocity_theta,
        velocity_phi=one.velocity_phi, **options,
    )  # fmt: skip
    assert torch.equal(both.theta, two.theta)
    assert torch.equal(both.phi, two.phi)
    assert torch.equal(both.velocity_theta, two.velocity_theta)


@pytest.mark.parametrize("shape", [FMNIST, TINY], ids=["fmnist", "tiny"])
@pytest.mark.parametrize(("theta", "phi"), [(True, False), (False, True), (False, False)])
def test_frozen_parts_do_not_move(shape: Shape, theta: bool, phi: bool) -> None:
    f, h = network(shape, 10)
    x, y = batch(shape, 40, 10)
    batches = [torch.arange(20), torch.arange(20, 40)]
    start_f, start_h = flat(f), flat(h)
    got = train(
        Kernel(shape, 10), start_f, start_h, x, y, *packed(batches), lr_theta=0.1, momentum=0.9,
        freeze_theta=not theta, freeze_phi=not phi,
    )  # fmt: skip
    if theta or phi:
        steps(f, h, x, y, batches, momentum=0.9, theta=theta, phi=phi)
    if not theta:
        assert torch.equal(got.theta, start_f)
        assert not got.velocity_theta.any()
    if not phi:
        assert torch.equal(got.phi, start_h)
        assert not got.velocity_phi.any()
    assert distance(got.theta, flat(f)) < 2e-6
    assert distance(got.phi, flat(h)) < 2e-6


@SHAPES
def test_a_frozen_extractor_gives_the_same_bits_batch_by_batch(shape: Shape) -> None:
    f, h = network(shape, 10)
    x, y = batch(shape, 30, 10)
    kernel = Kernel(shape, 10)
    batches = [torch.tensor([3, 29, 3, 7, 11]), torch.arange(2, 21), torch.arange(5, 30)]
    options = {"lr_theta": 0.1, "momentum": 0.9, "freeze_theta": True}
    together = train(kernel, flat(f), flat(h), x, y, *packed(batches), **options, last=1)
    phi, velocity = flat(h), torch.zeros_like(flat(h))
    for index in batches:
        one = train(kernel, flat(f), phi, x, y, *packed([index]), velocity_phi=velocity, **options)
        phi, velocity = one.phi, one.velocity_phi
    assert torch.equal(together.phi, phi)
    assert together.loss == one.loss


def test_arguments_are_not_changed() -> None:
    f, h = network(TINY, 4)
    x, y = batch(TINY, 12, 4)
    theta, phi = flat(f), flat(h)
    kept = [t.clone() for t in (theta, phi, x, y)]
    velocity = torch.ones_like(theta)
    train(Kernel(TINY, 4), theta, phi, x, y, *packed([torch.arange(12)]), lr_theta=1.0, velocity_theta=velocity)
    assert all(torch.equal(a, b) for a, b in zip(kept, (theta, phi, x, y), strict=True))
    assert torch.equal(velocity, torch.ones_like(theta))


# ------------------------------------------------------------------------------------------ any shape


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    blocks = draw(st.integers(1, 3))
    low = {1: 6, 2: 16, 3: 36}[blocks]
    size = draw(st.integers(low, low + 8))
    convs = tuple(draw(st.integers(1, 18)) for _ in range(blocks))
    hidden = tuple(draw(st.integers(1, 20)) for _ in range(draw(st.integers(0, 3))))
    return Shape(draw(st.integers(1, 9)), size, convs, hidden)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(shapes(), st.integers(1, 130), st.integers(1, 12), st.booleans(), st.integers(0, 2**31))
def test_any_shape_and_batch(shape: Shape, n: int, classes: int, u8: bool, seed: int) -> None:
    if shape.theta_size > 60_000 or len(shape.convs) == 3:
        n = min(n, 21)
    f, h = network(shape, classes, seed)
    f.double()
    h.double()
    g = torch.Generator().manual_seed(seed)
    sizes = (n + 3, shape.channels, shape.size, shape.size)
    x = torch.randint(0, 256, sizes, dtype=torch.uint8, generator=g) if u8 else torch.randn(sizes, generator=g)
    real = (x.double() / 255 - 0.5) / 0.25 if u8 else (x.double() - 0.5) / 0.25
    y = torch.randint(0, classes, (n + 3,), generator=g)
    index = torch.randperm(n + 3, generator=g)[:n]
    kernel = Kernel(shape, classes, [0.5] * shape.channels, [0.25] * shape.channels)
    theta, phi = flat(f).float(), flat(h).float()
    z = f(real[index])
    assert distance(kernel.features(theta, x, index).double(), z.detach()) < 3e-5
    logits = h(z)
    assert distance(kernel.logits(theta, phi, x, index).double(), logits.detach()) < 3e-5
    F.cross_entropy(logits, y[index]).backward()
    got = train(kernel, theta, phi, x, y, *packed([index]), lr_theta=0.0)
    assert torch.equal(got.theta, theta)
    # against float64 an arg-max that float32 cannot tell apart may flip now and then
    assert distance(got.velocity_theta.double(), flat_grad(f)) < 2e-4
    assert distance(got.velocity_phi.double(), flat_grad(h)) < 3e-5


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 20), st.integers(0, 2**31), st.booleans())
def test_exact_ties_choose_as_torch(n: int, seed: int, signs: bool) -> None:
    """Small integers as inputs and weights: sums are exact and ties are everywhere."""
    shape = Shape(2, 18, (3, 4), (6,))
    f = extractor(shape, seed)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in f.parameters():
            p.copy_(torch.randint(-1, 2, p.shape, generator=g).float() if signs else torch.ones_like(p))
    x = torch.randint(0, 2, (n, 2, 18, 18), generator=g).float()
    kernel = Kernel(shape, 3)
    theta = flat(f).requires_grad_()
    z = kernel.features(theta, x)
    want = f(x)
    assert torch.equal(z, want)
    dz = torch.randint(-1, 2, z.shape, generator=g).float()
    z.backward(dz)
    want.backward(dz)
    assert theta.grad is not None
    assert distance(theta.grad, flat_grad(f)) < 1e-6


def test_a_constant_image_ties_everywhere() -> None:
    f = extractor(CIFAR)
    x = torch.full((10, 3, 32, 32), 0.7)
    theta = flat(f).requires_grad_()
    z = Kernel(CIFAR, 10).features(theta, x)
    z.sum().backward()
    f(x).sum().backward()
    assert theta.grad is not None
    # the sums of equal windows differ in rounding between the two, the gradients of equal patches do not
    assert distance(theta.grad, flat_grad(f)) < 1e-5


# -------------------------------------------------------------------------------------------- autograd


@SHAPES
def test_features_twice_in_one_loss(shape: Shape) -> None:
    f = extractor(shape)
    kernel = Kernel(shape, 10)
    x, _ = batch(shape, 30, 10)
    a, b = torch.arange(0, 17), torch.arange(12, 30)
    head = torch.randn(shape.features, generator=torch.Generator().manual_seed(9))

    def loss(za: Tensor, zb: Tensor) -> Tensor:
        return ((za.mean(0) - zb.mean(0)) ** 2).sum() + (za @ head).tanh().mean() + zb.square().mean()

    theta = flat(f).requires_grad_()
    got = loss(kernel.features(theta, x, a), kernel.features(theta, x, b)) + 0.1 * theta.square().sum()
    got.backward()
    w = torch.cat([p.reshape(-1) for p in f.parameters()])
    want = loss(f(x[a]), f(x[b])) + 0.1 * w.square().sum()
    want.backward()
    assert got.item() == pytest.approx(want.item(), rel=1e-5)
    assert theta.grad is not None
    assert distance(theta.grad, flat_grad(f)) < 2e-6


def test_gradient_against_differences() -> None:
    shape = Shape(1, 8, (2,), (3,))
    f = extractor(shape, 4)
    kernel = Kernel(shape, 2)
    x, _ = batch(shape, 5, 2)
    theta = flat(f).requires_grad_()
    kernel.features(theta, x).square().sum().backward()
    assert theta.grad is not None
    base, eps = theta.detach(), 1e-4
    for k in range(0, shape.theta_size, 7):
        e = torch.zeros_like(base)
        e[k] = eps
        up, down = (kernel.features(base + s * e, x).double().square().sum() for s in (1, -1))
        assert float(theta.grad[k]) == pytest.approx(float(up - down) / (2 * eps), abs=2e-2)


def test_backward_twice_and_retained_graph() -> None:
    f = extractor(TINY)
    x, _ = batch(TINY, 11, 2)
    theta = flat(f).requires_grad_()
    kernel = Kernel(TINY, 2)
    z = kernel.features(theta, x)
    (one,) = torch.autograd.grad(z.sum(), theta, retain_graph=True)
    kernel.features(theta, x * 2).sum().backward()
    (two,) = torch.autograd.grad(z.sum(), theta)
    assert torch.equal(one, two)


def test_changed_theta_is_noticed() -> None:
    theta = flat(extractor(TINY)).requires_grad_()
    x, _ = batch(TINY, 4, 2)
    z = Kernel(TINY, 2).features(theta, x)
    with torch.no_grad():
        theta += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_without_gradient_no_tape() -> None:
    theta = flat(extractor(CIFAR)).requires_grad_()
    x, _ = batch(CIFAR, 19, 2)
    kernel = Kernel(CIFAR, 2)
    with torch.no_grad():
        plain = kernel.features(theta, x)
    taped = kernel.features(theta, x)
    assert not plain.requires_grad
    assert taped.requires_grad
    assert torch.equal(plain, taped)


@pytest.mark.parametrize("index", [torch.zeros(0, dtype=torch.int64), range(0)], ids=["tensor", "range"])
def test_empty_batches(index: Tensor | range) -> None:
    f, h = network(TINY, 3)
    x, y = batch(TINY, 4, 3)
    kernel = Kernel(TINY, 3)
    theta = flat(f).requires_grad_()
    z = kernel.features(theta, x, index)
    assert z.shape == (0, TINY.features)
    z.sum().backward()
    assert theta.grad is not None
    assert not theta.grad.any()
    assert kernel.count_correct(flat(f), flat(h), x, y, index) == 0
    nothing = train(
        kernel,
        flat(f),
        flat(h),
        x,
        y,
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
        lr_theta=0.1,
    )
    assert torch.equal(nothing.theta, flat(f))


# ------------------------------------------------------------------------------------------ evaluation


@SHAPES
@pytest.mark.parametrize("n", [1, 64, 131])
def test_evaluation(shape: Shape, n: int) -> None:
    f, h = network(shape, 10)
    x, y = batch(shape, n, 10)
    kernel = Kernel(shape, 10)
    theta, phi = flat(f), flat(h)
    with torch.no_grad():
        want = h(f(x))
    got = kernel.logits(theta, phi, x)
    assert distance(got, want) < 3e-6
    assert kernel.count_correct(theta, phi, x, y) == int((want.argmax(1) == y).sum())
    part = range(n // 3, n)
    assert torch.equal(kernel.logits(theta, phi, x, part), got[n // 3 :])
    backwards = torch.arange(n - 1, -1, -1)
    assert torch.equal(kernel.logits(theta, phi, x, backwards), got.flip(0))
    assert kernel.count_correct(theta, phi, x, y, part) == int((want[n // 3 :].argmax(1) == y[n // 3 :]).sum())


def test_a_range_has_gradients() -> None:
    theta = flat(extractor(TINY)).requires_grad_()
    x, _ = batch(TINY, 20, 2)
    kernel = Kernel(TINY, 2)
    kernel.features(theta, x, range(5, 14)).sum().backward()
    a = theta.grad
    theta.grad = None
    kernel.features(theta, x, torch.arange(5, 14)).sum().backward()
    assert a is not None
    assert theta.grad is not None
    assert torch.equal(a, theta.grad)


# --------------------------------------------------------------------------------- NaN, determinism


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [0, 7, 12])
def test_bad_inputs_surface(value: float, at: int) -> None:
    f, h = network(FMNIST, 10)
    x, y = batch(FMNIST, 13, 10)
    x[at, 0, 13, 14] = value
    kernel = Kernel(FMNIST, 10)
    others = torch.tensor([i for i in range(13) if i != at])
    with pytest.raises(RunError, match="batch 2 of 3 is not finite"):
        train(kernel, flat(f), flat(h), x, y, *packed([others, torch.arange(13), others]), lr_theta=0.01)
    if value != value:
        assert kernel.features(flat(f), x)[at].isnan().any()
        assert not kernel.features(flat(f), x)[at - 1].isnan().any()
        with pytest.raises(RunError, match="NaN"):
            kernel.count_correct(flat(f), flat(h), x, y)
        with pytest.raises(RunError, match="NaN"):
            kernel.logits(flat(f), flat(h), x)
        assert kernel.logits(flat(f), flat(h), x, others).isfinite().all()


def test_nan_parameters_surface() -> None:
    f, h = network(CIFAR, 10)
    x, y = batch(CIFAR, 9, 10)
    for k in (0, 450, 470, 3000, 61_000):
        theta = flat(f)
        theta[k] = float("nan")
        with pytest.raises(RunError, match="not finite"):
            train(Kernel(CIFAR, 10), theta, flat(h), x, y, *packed([torch.arange(9)]), lr_theta=0.1)


def test_divergence_surfaces() -> None:
    f, h = network(TINY, 3)
    x, y = batch(TINY, 16, 3)
    batches = [torch.arange(16)] * 50
    with pytest.raises(RunError, match="not finite"):
        train(Kernel(TINY, 3), flat(f), flat(h), x, y, *packed(batches), lr_theta=10.0, weight_decay=10.0)


def test_large_logits_are_stable() -> None:
    f, h = network(TINY, 3)
    x, y = batch(TINY, 16, 3)
    phi = flat(h) * 1e4
    got = train(Kernel(TINY, 3), flat(f), phi, x, y, *packed([torch.arange(16)]), lr_theta=0.0)
    z = f(x).detach()
    want = F.cross_entropy(F.linear(z, phi[:-3].reshape(3, -1), phi[-3:]), y)
    assert got.loss == pytest.approx(want.item(), rel=1e-5)


def test_two_threads_give_the_bits_of_one() -> None:
    jobs = []
    for seed, shape in enumerate([CIFAR, FMNIST, CIFAR, TINY]):
        f, h = network(shape, 10, seed)
        x, y = batch(shape, 90, 10, seed)
        g = torch.Generator().manual_seed(seed)
        batches = [torch.randperm(90, generator=g)[:37] for _ in range(6)]
        jobs.append((shape, flat(f), flat(h), x, y, batches))
    kernels = {shape: Kernel(shape, 10) for shape in (CIFAR, FMNIST, TINY)}

    def run(job: int) -> list[Tensor]:
        shape, theta, phi, x, y, batches = jobs[job]
        kernel = kernels[shape]
        got = train(kernel, theta, phi, x, y, *packed(batches), lr_theta=0.05, momentum=0.9)
        w = got.theta.clone().requires_grad_()
        (kernel.features(w, x, batches[0]).sum() + kernel.features(w, x, batches[1]).square().sum()).backward()
        assert w.grad is not None
        return [got.theta, got.phi, w.grad, kernel.logits(theta, phi, x)]

    serial = [run(job) for job in range(len(jobs))]
    found: dict[tuple[int, int], list[Tensor]] = {}

    def work(thread: int) -> None:
        for repeat in range(3):
            for job in range(thread, len(jobs), 2):
                found[repeat, job] = run(job)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 3 * len(jobs)
    for (_, job), tensors in found.items():
        assert all(torch.equal(a, b) for a, b in zip(serial[job], tensors, strict=True))


@SHAPES
def test_portable_library_agrees(shape: Shape) -> None:
    try:
        portable = Kernel(shape, 10, library="portable")
    except InputError as error:
        pytest.skip(str(error))
    f, h = network(shape, 10)
    x, y = batch(shape, 45, 10)
    batches = [torch.arange(0, 24), torch.arange(20, 45)]
    a, b = (
        train(k, flat(f), flat(h), x, y, *packed(batches), lr_theta=0.05, momentum=0.9)
        for k in (Kernel(shape, 10), portable)
    )
    assert distance(b.theta, a.theta) < 1e-5
    assert distance(b.phi, a.phi) < 1e-5
    assert distance(b.velocity_theta, a.velocity_theta) < 1e-4
    assert distance(portable.logits(flat(f), flat(h), x), Kernel(shape, 10).logits(flat(f), flat(h), x)) < 1e-5


# ------------------------------------------------------------------------------------------- refusals


def test_bad_indices_and_labels_are_refused() -> None:
    f, h = network(TINY, 3)
    x, y = batch(TINY, 8, 3)
    kernel = Kernel(TINY, 3)
    theta, phi = flat(f), flat(h)
    for bad in (-1, 8, 2**40, -(2**63)):
        index = torch.tensor([0, bad])
        with pytest.raises(ValueError, match="out of range"):
            kernel.features(theta, x, index)
        with pytest.raises(ValueError, match="out of range"):
            kernel.features(theta.clone().requires_grad_(), x, index)
        with pytest.raises(ValueError, match="out of range"):
            kernel.logits(theta, phi, x, index)
        with pytest.raises(ValueError, match="out of range"):
            train(kernel, theta, phi, x, y, *packed([index]), lr_theta=0.1)
    for wrong in (range(-1, 3), range(4, 9)):
        with pytest.raises(ValueError, match="out of range"):
            kernel.logits(theta, phi, x, wrong)
    for label in (-1, 3, 2**40):
        z = y.clone()
        z[5] = label
        with pytest.raises(ValueError, match=r"outside 0\.\.2"):
            train(kernel, theta, phi, x, z, *packed([torch.arange(8)]), lr_theta=0.1)
        with pytest.raises(ValueError, match=r"outside 0\.\.2"):
            kernel.count_correct(theta, phi, x, z)
        assert kernel.count_correct(theta, phi, x, z, range(5)) <= 5


def test_bad_tensors_are_refused() -> None:
    f, h = network(TINY, 3)
    x, y = batch(TINY, 8, 3)
    kernel = Kernel(TINY, 3)
    theta, phi = flat(f), flat(h)
    order, bounds = packed([torch.arange(8)])
    with pytest.raises(ValueError, match="theta must have shape"):
        kernel.features(theta[:-1], x)
    with pytest.raises(ValueError, match="theta must be a float32"):
        kernel.features(theta.double(), x)
    with pytest.raises(ValueError, match="phi must have shape"):
        kernel.logits(theta, phi[1:], x)
    with pytest.raises(ValueError, match="x must have shape"):
        kernel.features(theta, x[:, :, :-1])
    with pytest.raises(ValueError, match="x must be uint8 or float32"):
        kernel.features(theta, x.double())
    with pytest.raises(ValueError, match="contiguous"):
        kernel.features(theta, x.transpose(2, 3))
    with pytest.raises(ValueError, match="y must have shape"):
        kernel.count_correct(theta, phi, x, y[1:])
    with pytest.raises(ValueError, match="y must be an int64"):
        kernel.count_correct(theta, phi, x, y.int())
    with pytest.raises(ValueError, match="index must be an int64"):
        kernel.features(theta, x, order.int())
    with pytest.raises(ValueError, match="one dimension"):
        kernel.features(theta, x, order[None])
    with pytest.raises(ValueError, match="step 1"):
        kernel.features(theta, x, range(0, 8, 2))
    for wrong in ([0, 4], [1, 8], [0, 5, 4, 8], [0, 4, 4, 8], [0, 9]):
        with pytest.raises(ValueError, match="bounds must rise"):
            train(kernel, theta, phi, x, y, order, torch.tensor(wrong), lr_theta=0.1)
    with pytest.raises(ValueError, match="lr_theta"):
        train(kernel, theta, phi, x, y, order, bounds, lr_theta=float("nan"))
    with pytest.raises(ValueError, match="rho needs"):
        train(kernel, theta, phi, x, y, order, bounds, lr_theta=0.1, rho=1.0)
    with pytest.raises(ValueError, match="last must be"):
        train(kernel, theta, phi, x, y, order, bounds, lr_theta=0.1, last=2)


def test_bad_kernels_are_refused() -> None:
    for wrong in ((1, 5, (3,), ()), (1, 8, (), (3,)), (1, 8, (3, 3), ()), (0, 8, (3,), ()), (1, 8, (3,), (0,))):
        with pytest.raises(ValueError, match=r"\w"):
            Shape(*wrong)
    with pytest.raises(ValueError, match="too large"):
        Shape(3, 32, (6,), (10**7,))
    with pytest.raises(ValueError, match="both mean and std"):
        Kernel(TINY, 3, mean=[0.5])
    with pytest.raises(ValueError, match="one per channel"):
        Kernel(TINY, 3, [0.5, 0.5], [1.0, 1.0])
    with pytest.raises(ValueError, match="positive"):
        Kernel(TINY, 3, [0.5], [0.0])
    with pytest.raises(ValueError, match="classes"):
        Kernel(TINY, 0)


# ---------------------------------------------------------------------------------------- recognition


@SHAPES
def test_extractors_are_recognised(shape: Shape) -> None:
    sample = (shape.channels, shape.size, shape.size)
    f = extractor(shape)
    assert shape_of(f, sample) == shape
    assert shape.theta_size == sum(p.numel() for p in f.parameters())
    assert shape_of(nn.Sequential(f, nn.Identity()), sample) == shape


def test_pool_before_relu_is_the_same_network() -> None:
    f = nn.Sequential(nn.Conv2d(1, 3, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.ReLU())
    assert shape_of(f, (1, 8, 8)) == TINY


def test_other_networks_are_not() -> None:
    conv, relu, pool, flatten = nn.Conv2d(1, 3, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    tail = [flatten, nn.Linear(12, 5), nn.ReLU()]
    wrong: list[nn.Module] = [
        nn.Linear(3, 3),
        nn.Sequential(flatten, nn.Linear(64, 5), nn.ReLU()),
        nn.Sequential(nn.Conv2d(1, 3, 3), relu, pool, *tail),
        nn.Sequential(nn.Conv2d(1, 3, 5, padding=2), relu, pool, *tail),
        nn.Sequential(nn.Conv2d(1, 3, 5, bias=False), relu, pool, *tail),
        nn.Sequential(conv, nn.Tanh(), pool, *tail),
        nn.Sequential(conv, relu, nn.AvgPool2d(2), *tail),
        nn.Sequential(conv, relu, nn.MaxPool2d(3), *tail),
        nn.Sequential(conv, relu, pool, flatten, nn.Linear(12, 5)),
        nn.Sequential(conv, relu, pool, flatten, nn.Linear(12, 5), nn.Dropout(), nn.ReLU()),
        nn.Sequential(conv, relu, pool, flatten, nn.Linear(13, 5), nn.ReLU()),
        extractor(TINY).double(),
        extractor(CIFAR),
    ]
    assert [shape_of(module, (1, 8, 8)) for module in wrong] == [None] * len(wrong)
    assert shape_of(extractor(TINY), (1, 8, 9)) is None

    class Twisted(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    assert shape_of(Twisted(*extractor(TINY)), (1, 8, 8)) is None


def test_hooks_that_change_the_result_are_noticed() -> None:
    f = extractor(TINY)
    f[0].register_forward_hook(lambda module, args, out: out * 2)
    assert shape_of(f, (1, 8, 8)) is None


def test_shared_parameters_are_not_recognised() -> None:
    f = extractor(Shape(1, 8, (3,), (12, 12)))
    f[6].weight = f[4].weight
    assert shape_of(f, (1, 8, 8)) is None


# ------------------------------------------------------------------------------------------ libraries


def test_choice_of_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert available()[0]
    monkeypatch.setenv("FEDAPA_NATIVE", "off")
    assert available() == (False, "switched off by FEDAPA_NATIVE=off")
    with pytest.raises(InputError, match="not available"):
        Kernel(TINY, 3)
    assert shape_of(extractor(TINY), (1, 8, 8)) == TINY
    monkeypatch.setenv("FEDAPA_NATIVE", "portable")
    assert available() == (True, "portable: asked for by FEDAPA_NATIVE")
    monkeypatch.setenv("FEDAPA_NATIVE", "cuda")
    assert not available()[0]
    monkeypatch.setenv("FEDAPA_NATIVE_PATH", str(tmp_path))
    assert "not built" in libraries.open_library("avx2")[1]
    for suffix in libraries.EXTENSION_SUFFIXES:
        (tmp_path / f"_avx2{suffix}").write_bytes(b"no library")
    assert "cannot be loaded" in libraries.open_library("avx2")[1]


def test_kernels_are_not_copied_by_pickle() -> None:
    with pytest.raises(TypeError, match="pickled"):
        copy.deepcopy(Kernel(TINY, 3))


def test_none_is_refused_and_does_not_end_the_process() -> None:
    kernel = Kernel(TINY, 3)
    theta, phi, (x, y) = torch.zeros(kernel.theta_size), torch.zeros(kernel.phi_size), batch(TINY, 4, 3)
    order, bounds = torch.arange(4), torch.tensor([0, 4])
    none: Any = None
    for call in (
        lambda: kernel.logits(theta, none, x),
        lambda: kernel.logits(none, phi, x),
        lambda: kernel.logits(theta, phi, none),
        lambda: kernel.count_correct(theta, none, x, y),
        lambda: kernel.count_correct(theta, phi, x, none),
        lambda: train(kernel, none, phi, x, y, order, bounds, lr_theta=0.1),
        lambda: train(kernel, theta, none, x, y, order, bounds, lr_theta=0.1),
        lambda: train(kernel, theta, phi, x, none, order, bounds, lr_theta=0.1),
        lambda: train(kernel, theta, phi, x, y, none, bounds, lr_theta=0.1),
        lambda: train(kernel, theta, phi, x, y, order, none, lr_theta=0.1),
    ):
        with pytest.raises(InputError, match="must be"):
            call()
