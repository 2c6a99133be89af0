from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from fedapa.core.simplex import drop_small, minimise


def objective(Q, c, a):
    return float(a @ Q @ a - 2 * c @ a)


def random_problem(seed, M, rank):
    random = np.random.default_rng([7, seed, M, rank])
    X = random.standard_normal((rank, M))
    return torch.from_numpy(X.T @ X), torch.from_numpy(random.standard_normal(M))


def oracle(Q, c):
    """Non-negative least squares with the sum as one heavy row: an independent route to the same minimum."""
    values, vectors = np.linalg.eigh(Q.numpy() + 1e-9 * np.eye(len(Q)))
    root = (vectors * np.sqrt(values)) @ vectors.T
    heavy = 1e4
    rows = np.vstack([root, heavy * np.ones(len(Q))])
    a, _ = nnls(rows, np.append(np.linalg.solve(root, c.numpy()), heavy))
    return torch.from_numpy(a / a.sum())


def assert_kkt(Q, c, a, tolerance):
    assert (a >= 0).all()
    assert float(a.sum()) == pytest.approx(1, abs=1e-12)
    slack = Q @ a - c
    slack = slack - slack @ a
    assert float(slack.min()) >= -tolerance
    assert float((slack * a).abs().max()) <= tolerance


def test_two_points_by_hand():
    # minimise a^2 + 3 (1-a)^2: a = 3/4
    assert torch.allclose(minimise(torch.diag(torch.tensor([1.0, 3.0]))), torch.tensor([0.75, 0.25]))
    # a linear term that pulls past the corner: the constraint binds
    assert torch.equal(minimise(torch.eye(2), torch.tensor([9.0, 0.0])), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("M", "rank"), [(2, 2), (5, 5), (8, 3), (20, 20), (20, 4), (12, 1)])
def test_kkt_and_oracle_on_random_problems(seed, M, rank):
    Q, c = random_problem(seed, M, rank)
    a = minimise(Q, c)
    assert_kkt(Q, c, a, 1e-7)
    assert objective(Q, c, a) <= objective(Q, c, oracle(Q, c)) + 1e-7


@pytest.mark.parametrize("seed", range(5))
def test_no_corner_or_random_point_is_better(seed):
    Q, c = random_problem(seed, 6, 2)
    best = objective(Q, c, minimise(Q, c))
    points = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.full(6, 0.3), 500))
    for point in [*torch.eye(6, dtype=torch.float64), *points]:
        assert best <= objective(Q, c, point) + 1e-9


def test_a_linear_program_goes_to_its_best_corner():
    assert minimise(torch.zeros(3, 3), torch.tensor([0.1, 0.7, 0.3])).tolist() == [0.0, 1.0, 0.0]


def test_one_client_and_no_information():
    assert minimise(torch.tensor([[5.0]])).tolist() == [1.0]
    assert minimise(torch.zeros(1, 1)).tolist() == [1.0]
    assert torch.allclose(minimise(torch.zeros(4, 4)), torch.full((4,), 0.25))


def test_identical_rows_share_equally():
    u = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [9.0, 9.0]]).double()
    assert torch.allclose(minimise(u @ u.T), torch.tensor([1, 1, 1, 0]).double() / 3, atol=1e-6)


def test_indefinite_by_rounding():
    Q, _ = random_problem(3, 10, 3)
    Q = Q.float().double() - 1e-7 * torch.eye(10, dtype=torch.float64)
    assert torch.linalg.eigvalsh(Q)[0] < 0
    a = minimise(Q)
    assert torch.isfinite(a).all()
    assert_kkt(Q, torch.zeros(10, dtype=torch.float64), a, 1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e20])
def test_scale_does_not_matter(scale):
    Q, _ = random_problem(1, 7, 7)
    assert torch.allclose(minimise(Q * scale), minimise(Q), atol=1e-9)


def test_deterministic_pure_and_in_the_dtype_of_its_input():
    Q, c = random_problem(2, 9, 4)
    before = Q.clone()
    assert torch.equal(minimise(Q, c), minimise(Q, c))
    assert torch.equal(Q, before)
    assert minimise(Q.float(), c.float()).dtype == torch.float32


def test_drop_small():
    a = drop_small(torch.tensor([0.0005, 0.3, 0.6995]), 1e-3)
    assert torch.allclose(a, torch.tensor([0, 0.3, 0.6995]) / 0.9995)
    assert drop_small(torch.tensor([0.4, 0.6]), 0.9).tolist() == [0.0, 1.0]
