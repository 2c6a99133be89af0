"""FedAPA's three functions: hand-computed numbers, the released optimiser as an oracle, laws of the projection."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedapa.core.weights import aggregate, descend, project, slopes

THETA = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # three clients, two parameters


def test_three_clients_by_hand() -> None:
    """Client 0 mixes (0.5, 0.25, 0.25), trains to (1.25, 0.5), eta = 0.1."""
    row = torch.tensor([[0.5, 0.25, 0.25]])
    sent = aggregate(row, THETA)
    assert sent.tolist() == [[0.75, 0.5]]  # 0.5 (1,0) + 0.25 (0,1) + 0.25 (1,1)
    delta = torch.tensor([[1.25, 0.5]]) - sent  # (0.5, 0)
    assert slopes(delta, THETA).tolist() == [[0.5, 0.0, 0.5]]  # inner products with each client's parameters
    A, velocity = descend(torch.eye(3).index_put((torch.tensor([0]),), row), torch.zeros(3, 3), torch.tensor([0]),
                          slopes(delta, THETA), eta=0.1)  # fmt: skip
    assert A[0].tolist() == pytest.approx([0.55, 0.25, 0.30])
    assert A[1:].tolist() == torch.eye(3)[1:].tolist()
    assert velocity[0].tolist() == [0.5, 0.0, 0.5]
    # own entry becomes 0.5, the sum is 0.5 + 0.25 + 0.30 = 1.05
    assert project(A[:1], torch.tensor([0]))[0].tolist() == pytest.approx([0.5 / 1.05, 0.25 / 1.05, 0.30 / 1.05])


def surrogate(A: Tensor, theta: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (target - A @ theta).square().sum(1)


@given(st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_descending_sign_descends_and_printed_sign_ascends(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    theta, A = torch.randn(5, 7, generator=random).double(), torch.rand(5, 5, generator=random).double()
    target = torch.randn(5, 7, generator=random).double()
    ids, delta = torch.arange(5), target - A @ theta
    for sign, factor in (("descend", 1), ("printed", -1)):
        moved, _ = descend(A, torch.zeros(5, 5).double(), ids, slopes(delta, theta, sign), 1e-5)
        change = surrogate(moved, theta, target) - surrogate(A, theta, target)
        assert (factor * change < 0).all()


def test_slope_is_minus_the_gradient_that_autograd_finds() -> None:
    random = torch.Generator().manual_seed(1)
    theta, target = torch.randn(4, 9, generator=random), torch.randn(4, 9, generator=random)
    A = torch.rand(4, 4, generator=random).requires_grad_()
    (gradient,) = torch.autograd.grad(surrogate(A, theta, target).sum(), A)
    assert torch.allclose(slopes(target - A.detach() @ theta, theta), -gradient, atol=1e-5)


def test_shared_buffer_is_the_released_codes_one_sgd_over_the_matrix() -> None:
    """torch.optim.SGD with momentum 0.9 on the whole matrix, a gradient in one row per step."""
    weights = torch.nn.Parameter(torch.eye(3))
    optimiser = torch.optim.SGD([weights], lr=0.01, momentum=0.9)
    A, velocity = torch.eye(3), torch.zeros(3, 3)
    for step, i in enumerate((2, 0, 1, 0)):
        slope = torch.arange(3.0)[None] + step
        weights.grad = torch.zeros(3, 3)
        weights.grad[i] = -slope[0]
        optimiser.step()
        A, velocity = descend(A, velocity, torch.tensor([i]), slope, 0.01, 0.9, "shared")
        assert torch.allclose(A, weights.detach(), atol=1e-7)


def test_row_buffers_leave_idle_rows_alone() -> None:
    A, velocity = descend(torch.eye(3), torch.ones(3, 3), torch.tensor([1]), torch.full((1, 3), 2.0), 0.1, 0.5)
    assert velocity[1].tolist() == [2.5, 2.5, 2.5]
    assert velocity[[0, 2]].tolist() == [[1.0] * 3] * 2
    assert A[[0, 2]].tolist() == torch.eye(3)[[0, 2]].tolist()


weight = st.floats(-2, 2, width=32, allow_subnormal=False)
rows_of_weights = st.integers(1, 6).flatmap(
    lambda m: st.lists(st.lists(weight, min_size=m, max_size=m), min_size=m, max_size=m)
)


@given(rows_of_weights, st.floats(0, 1, width=32))
@settings(max_examples=200, deadline=None)
def test_projected_rows_are_distributions(rows: list[list[float]], mu: float) -> None:
    A, own = torch.tensor(rows), torch.arange(len(rows))
    for mode in ("raw", "share", "off"):
        found = project(A, own, mu, mode)
        assert torch.allclose(found.sum(1), torch.ones(len(rows)), atol=1e-5)
        assert (found >= 0).all()
        assert (found <= 1 + 1e-6).all()


@given(rows_of_weights, st.floats(0.015625, 1, width=32))
@settings(max_examples=200, deadline=None)
def test_self_weight_rules(rows: list[list[float]], mu: float) -> None:
    A, own = torch.tensor(rows), torch.arange(len(rows))
    rest = A.clamp(0, 1).fill_diagonal_(0).sum(1)
    raw, share = project(A, own, mu).diagonal(), project(A, own, mu, "share").diagonal()
    assert torch.allclose(raw, mu / (mu + rest), atol=1e-5)
    assert torch.allclose(share, torch.where(rest > 0, torch.tensor(mu), torch.tensor(1.0)), atol=1e-5)


@given(rows_of_weights, st.floats(0, 1, width=32))
@settings(max_examples=100, deadline=None)
def test_share_and_off_are_idempotent(rows: list[list[float]], mu: float) -> None:
    """raw is not: writing mu again changes the share unless the row was e_own."""
    A, own = torch.tensor(rows), torch.arange(len(rows))
    for mode in ("share", "off"):
        once = project(A, own, mu, mode)
        assert torch.allclose(project(once, own, mu, mode), once, atol=1e-5)


def test_raw_is_not_idempotent_but_keeps_the_identity() -> None:
    own = torch.arange(3)
    assert torch.equal(project(torch.eye(3), own), torch.eye(3))
    once = project(torch.full((3, 3), 1.0), own)
    assert once[0].tolist() == pytest.approx([0.2, 0.4, 0.4])
    assert project(once, own)[0].tolist() == pytest.approx([0.5 / 1.3, 0.4 / 1.3, 0.4 / 1.3])


def test_a_row_without_weight_becomes_its_own_client() -> None:
    nothing = torch.zeros(3, 3)
    for mode in ("raw", "share", "off"):
        assert torch.equal(project(nothing, torch.arange(3), 0.0, mode), torch.eye(3))
    assert torch.equal(project(-torch.ones(3, 3), torch.arange(3), 0.0), torch.eye(3))


def test_steps_can_be_left_out() -> None:
    row, own = torch.tensor([[1.5, -0.5]]), torch.tensor([0])
    assert project(row, own, 0.5, "off", clip=False, normalise=False).tolist() == [[1.5, -0.5]]
    assert project(row, own, 0.5, "off", clip=True, normalise=False).tolist() == [[1.0, 0.0]]
    assert project(row, own, 0.25, "raw", clip=True, normalise=False).tolist() == [[0.25, 0.0]]


def test_arguments_are_left_alone() -> None:
    A, velocity, slope = torch.eye(2), torch.ones(2, 2), torch.ones(1, 2)
    for buffer in ("row", "shared"):
        descend(A, velocity, torch.tensor([0]), slope, 0.1, 0.9, buffer)
    project(A, torch.arange(2))
    assert torch.equal(A, torch.eye(2))
    assert torch.equal(velocity, torch.ones(2, 2))
