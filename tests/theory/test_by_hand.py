"""Linear losses on a line: every assumption holds with L1 = 0 and sigma = 0, and every round can be worked by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedapa.core import weights
from fedapa.theory.bound import ceiling, next_share

START = 1.0


def bare_round(slopes: list[float], eta: float, sign: weights.Sign) -> tuple[Tensor, Tensor]:
    """One round without post-processing; client i has the loss slopes[i] * theta and trains to 2 * slopes[i] below.

    Returns theta after training and what each client is sent next.
    """
    M = len(slopes)
    theta, A = torch.full((M, 1), START, dtype=torch.float64), torch.eye(M, dtype=torch.float64)
    new = weights.aggregate(A, theta) - 2 * torch.tensor(slopes, dtype=torch.float64)[:, None]
    slope = weights.slopes(new - weights.aggregate(A, theta), theta, sign)
    A, _ = weights.descend(A, torch.zeros_like(A), torch.arange(M), slope, eta)
    return new[:, 0], weights.aggregate(A, new)[:, 0]


@pytest.mark.parametrize("M", [2, 5, 20])
def test_the_largest_column_does_not_bound_the_matrix(M: int) -> None:
    """Bare steps, descending: mixing loses 2 eta M Max^3, M times what Theorem 1 allows."""
    eta = 0.001
    trained, sent = bare_round([1.0] * M, eta, "descend")
    assert trained.tolist() == [-1.0] * M  # so Max = 1 and alpha * sum |gradient|^2 = 2
    change = float(sent[0]) - START
    assert change == pytest.approx(-2 + 2 * eta * M)
    assert change > -2 + 2 * eta  # Theorem 1, t = 0, L2 = Max = 1
    assert change <= -2 + 2 * eta * M + 1e-12  # |Theta| <= sqrt(M) Max twice over, and it is tight


def test_nor_with_the_printed_sign() -> None:
    """One client trains, four stand still: the step as printed loses 2 eta (M - 2)."""
    eta, M = 0.001, 5
    trained, sent = bare_round([1.0, 0.0, 0.0, 0.0, 0.0], eta, "printed")
    assert trained.tolist() == [-1.0, 1.0, 1.0, 1.0, 1.0]
    change = float(sent[0]) - START
    assert change == pytest.approx(-2 + 2 * eta * (M - 2))
    assert change > -2 + 2 * eta


def test_equal_columns_have_the_norm_of_all_of_them() -> None:
    column = torch.randn(7, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for M in (2, 9, 16):
        whole = torch.linalg.matrix_norm(column.expand(7, M), 2)
        assert float(whole / column.norm()) == pytest.approx(math.sqrt(M))


# -------------------------------------------------------------------------------------------- with post-processing


def worst_ratio(eta: float) -> float:
    """Two clients pulled apart by d a round, FedAPA as in Algorithm 1: largest loss by mixing / what is printed."""
    rounds = 2 + math.ceil(math.log(1 / (4 * eta / 1000)) / math.log(4 / 3))
    d = 1 / (2 * rounds)
    theta, A = torch.full((2, 1), START, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    lost, largest = [], START
    for _ in range(rounds):
        bar = weights.aggregate(A, theta)
        new = bar + torch.tensor([[d], [-d]], dtype=torch.float64)  # losses -theta and +theta
        A, _ = weights.descend(A, torch.zeros(2, 2).double(), torch.arange(2), weights.slopes(new - bar, theta), eta)
        A, theta = weights.project(A, torch.arange(2)), new
        largest = max(largest, float(new.abs().max()))
        lost.append(float(theta[0] - weights.aggregate(A, theta)[0]))
    assert torch.equal(A[1], torch.tensor([0.0, 1.0], dtype=torch.float64))  # client 1 is left alone
    return max(gap / (2 * eta * (t + 1) * largest**3) for t, gap in enumerate(lost))


def test_no_constant_saves_the_printed_bound() -> None:
    """The others' share doubles every round however small eta is; the printed term shrinks with eta."""
    ratios = [worst_ratio(eta) for eta in (1e-4, 1e-6, 1e-8, 1e-10)]
    assert ratios[0] > 1
    assert all(later > 30 * earlier for earlier, later in pairwise(ratios))


# ------------------------------------------------------------------------------------------------- rows of weights


def simplex_rows(count: int, M: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand(count, M, generator=random, dtype=torch.float64) ** 6
    return rows / rows.sum(1, keepdim=True)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0])
def test_the_share_of_the_others_grows_no_faster_than_said(mu: float) -> None:
    M, own = 6, torch.zeros(300, dtype=torch.int64)
    rows = simplex_rows(300, M, 1)
    random = torch.Generator().manual_seed(2)
    step = torch.randn(300, M, generator=random, dtype=torch.float64) * torch.logspace(-6, 1, 300)[:, None]
    after = 1 - weights.project(rows + step, own, mu)[:, 0]
    push = step[:, 1:].clamp(min=0).sum(1)
    most = next_share(1 - rows[:, 0], push, mu)
    assert bool((after <= most + 1e-12).all())
    positive = (step[:, 1:] >= 0).all(1) & ((rows + step)[:, 1:] <= 1).all(1)
    assert bool(positive.any())
    assert torch.allclose(after[positive], most[positive])  # tight where nothing is clipped


@pytest.mark.parametrize("mu", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("push", [1e-9, 1e-3, 0.2, 5.0])
def test_the_ceiling_is_reached_and_never_passed(mu: float, push: float) -> None:
    share, top = 0.0, ceiling(push, mu)
    for _ in range(2000):
        share = next_share(share, push, mu)
        assert share <= top + 1e-12
    assert share == pytest.approx(top)
    if push < 1e-6:
        assert top == pytest.approx(1 - mu, abs=1e-6)  # with next to no step the self-share ends at mu, not at 1


def test_post_processing_is_not_non_expansive() -> None:
    """Near e_i the distance of two rows grows by sqrt(M) / mu; anywhere by at most (1 + sqrt(M - 1)) / mu."""
    mu, M = 0.5, 9
    own = torch.zeros(1, dtype=torch.int64)
    e = torch.eye(M, dtype=torch.float64)[:1]
    near = e + 1e-7 * (1 - e)
    grown = (weights.project(near, own, mu) - weights.project(e, own, mu)).norm() / (near - e).norm()
    assert float(grown) == pytest.approx(math.sqrt(M) / mu, rel=1e-4)

    many = torch.zeros(4000, dtype=torch.int64)
    one, other = (torch.rand(4000, M, generator=torch.Generator().manual_seed(k)).double() ** 8 for k in (3, 4))
    other[::2] = one[::2] + 1e-4 * (other[::2] - 0.5)
    ratio = (weights.project(one, many, mu) - weights.project(other, many, mu)).norm(dim=1) / (one - other).norm(dim=1)
    assert float(ratio.max()) > 1
    assert float(ratio.max()) <= (1 + math.sqrt(M - 1)) / mu


@pytest.mark.parametrize("sign", ["descend", "printed"])
def test_the_bare_step_changes_the_proxy_by_the_identity(sign: weights.Sign) -> None:
    """q(A + s eta g) = q(A) - s eta |g|^2 + eta^2/2 |Theta g|^2 with g = Theta^T Delta and s = 1 or, as printed, -1."""
    random = torch.Generator().manual_seed(6)
    theta = torch.randn(5, 8, generator=random, dtype=torch.float64)  # [M, P]
    row, target, eta = simplex_rows(1, 5, 7), torch.randn(1, 8, generator=random, dtype=torch.float64), 0.01
    delta = target - weights.aggregate(row, theta)
    g, s = delta @ theta.T, 1 if sign == "descend" else -1

    def proxy(A: Tensor) -> Tensor:
        return 0.5 * (target - weights.aggregate(A, theta)).square().sum()

    moved = proxy(row + eta * weights.slopes(delta, theta, sign)) - proxy(row)
    assert float(moved) == pytest.approx(float(-s * eta * g.square().sum() + eta**2 / 2 * (g @ theta).square().sum()))
    assert (moved < 0) == (sign == "descend")
