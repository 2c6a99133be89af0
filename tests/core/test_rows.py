"""Exact rows: by hand, against independent minimisers, and what must hold for any distances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedapa.core import exact_weights

M, P = 7, 30
ALL = torch.ones(M)


def models(seed: int = 0) -> Tensor:
    """A large common part and small differences, as models that trained from one start have."""
    random = torch.Generator().manual_seed(seed)
    common = 10 * torch.randn(P, generator=random, dtype=torch.float64)
    return common + torch.randn(M, P, generator=random, dtype=torch.float64) * torch.linspace(0.3, 2, M)[:, None]


def gaps_of(theta: Tensor) -> Tensor:
    return (theta[:, None] - theta).square().sum(2)


def proxy(theta: Tensor, i: int, a: Tensor, ridge: float, noise: float) -> float:
    """The objective written with the models themselves."""
    others = gaps_of(theta)[i].sum() / (len(theta) - 1)
    return float((theta[i] - a @ theta).square().sum() + 2 * noise * a[i] + ridge * others * a.square().sum())


def on_simplex(v: np.ndarray) -> np.ndarray:
    """Euclidean projection, by the sorted thresholds."""
    u = np.sort(v)[::-1]
    level = (u.cumsum() - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - level[np.flatnonzero(u > level)[-1]], 0)


def projected_gradient(theta: Tensor, i: int, ridge: float, noise: float, alone: bool) -> Tensor:
    """An independent minimiser: plain steps and projections on the models, without any Gram matrix."""
    members = [j for j in range(len(theta)) if not (alone and j == i)]
    X, price = (theta[members] - theta[i]).numpy(), np.array([noise if j == i else 0.0 for j in members])
    unit = ridge * float(gaps_of(theta)[i].sum()) / (len(theta) - 1)
    step = 1 / (2 * (np.linalg.norm(X, 2) ** 2 + unit))
    a = np.full(len(members), 1 / len(members))
    for _ in range(3000):
        a = on_simplex(a - step * 2 * (X @ (a @ X) + price + unit * a))
    found = torch.zeros(len(theta), dtype=torch.float64)
    found[members] = torch.from_numpy(a)
    return found


def test_gram_matrix_around_a_client() -> None:
    theta = models()
    differences = theta - theta[3]
    torch.testing.assert_close(
        exact_weights.around(gaps_of(theta), 3), differences @ differences.T, atol=1e-9, rtol=1e-9
    )


def test_three_clients_by_hand() -> None:
    """Client 0 at 0, client 1 at 1, client 2 at 3 on a line: from 0 the others look like 1 and 3.

    The best of b 1 + (1 - b) 3 is b = 1. With ridge 1 in units of (1 + 9) / 2 = 5:
    (3 - 2b)^2 + 5 (b^2 + (1-b)^2) has its minimum where -4 (3 - 2b) + 10 (2b - 1) = 0, b = 22/28.
    """
    gaps, known = gaps_of(torch.tensor([[0.0], [1.0], [3.0]]).double()), torch.ones(3)
    assert exact_weights.of_others(gaps, 0, known, 0.0).tolist() == pytest.approx([0, 1, 0], abs=1e-9)
    assert exact_weights.of_others(gaps, 0, known, 1.0).tolist() == pytest.approx([0, 22 / 28, 6 / 28])
    # weight on oneself at a price of 2 V: (1 - s)^2 + 2 V s is least at s = 1 - V, the others' part on client 1
    assert exact_weights.priced(gaps, 0, known, 0.0, 0.25).tolist() == pytest.approx([0.75, 0.25, 0], abs=1e-8)
    assert exact_weights.priced(gaps, 0, known, 0.0, 7.0).tolist() == pytest.approx([0, 1, 0], abs=1e-8)
    assert exact_weights.priced(gaps, 0, known, 0.0, 0.0).tolist() == pytest.approx([1, 0, 0], abs=1e-8)
    assert exact_weights.spread(gaps, 0, known) == 5
    assert exact_weights.nearest(gaps, 2, known) == 4


@pytest.mark.parametrize("ridge", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("i", [0, 4, 6])
def test_rows_are_the_minimisers(i: int, ridge: float) -> None:
    theta = models(i)
    noise = 0.6 * float(exact_weights.nearest(gaps_of(theta), i, ALL))
    for alone, found in (
        (True, exact_weights.of_others(gaps_of(theta), i, ALL, ridge)),
        (False, exact_weights.priced(gaps_of(theta), i, ALL, ridge, noise)),
    ):
        price = 0.0 if alone else noise
        slow = projected_gradient(theta, i, ridge, price, alone)
        torch.testing.assert_close(found, slow, atol=1e-5, rtol=0)
        assert float(found.sum()) == pytest.approx(1)
        assert not alone or found[i] == 0

        def value(a: np.ndarray, price: float = price) -> float:
            return proxy(theta, i, torch.from_numpy(a), ridge, price)

        limits = [(0.0, 0.0 if alone and j == i else 1.0) for j in range(M)]
        start = slow.numpy() * 0.5 + 0.5 * np.array([high for _, high in limits]) / sum(high for _, high in limits)
        sum_is_one = {"type": "eq", "fun": lambda a: a.sum() - 1}
        general = minimize(value, start, method="SLSQP", bounds=limits, constraints=[sum_is_one])
        assert value(found.numpy()) <= general.fun + 1e-7 * abs(general.fun)


def test_directions_are_taken_from_the_mean_of_those_heard_from() -> None:
    theta, known = models(), torch.tensor([1.0, 1, 0, 1, 1, 0, 1])
    ways = theta - theta[known > 0].mean(0)
    torch.testing.assert_close(exact_weights.lengths(gaps_of(theta), known), ways.square().sum(1))
    torch.testing.assert_close(
        exact_weights.directions(gaps_of(theta), known),
        gaps_of(ways / ways.norm(dim=1, keepdim=True)),
        atol=1e-9,
        rtol=1e-9,
    )
    stretched = theta[known > 0].mean(0) + ways * torch.where(known > 0, 1.0, 4.0)[:, None]
    torch.testing.assert_close(
        exact_weights.directions(gaps_of(stretched), known), exact_weights.directions(gaps_of(theta), known)
    )


def test_without_a_way_there_is_no_direction() -> None:
    assert exact_weights.directions(torch.zeros(3, 3).double(), torch.ones(3)).tolist() == [
        [0, 2, 2],
        [2, 0, 2],
        [2, 2, 0],
    ]
    on_a_line = gaps_of(torch.tensor([[-1.0], [0.0], [1.0]]).double())
    assert exact_weights.directions(on_a_line, torch.ones(3)).tolist() == [[0, 2, 4], [2, 0, 2], [4, 2, 0]]


@pytest.mark.parametrize("seed", range(3))
def test_names_of_clients_do_not_matter(seed: int) -> None:
    theta, order = models(seed), torch.randperm(M, generator=torch.Generator().manual_seed(seed))
    for i in range(M):
        place = int((order == i).nonzero())
        for function, settings in ((exact_weights.of_others, (0.1,)), (exact_weights.priced, (0.1, 0.5))):
            plain = function(gaps_of(theta), i, ALL, *settings)
            torch.testing.assert_close(function(gaps_of(theta[order]), place, ALL, *settings), plain[order])


def test_an_endless_ridge_mixes_evenly() -> None:
    gaps = gaps_of(models())
    evenly = exact_weights.of_others(gaps, 2, ALL, float("inf"))
    assert evenly.tolist() == [1 / 6, 1 / 6, 0, 1 / 6, 1 / 6, 1 / 6, 1 / 6]
    row = exact_weights.of_others(gaps, 2, ALL, 1e9)
    torch.testing.assert_close(row, torch.tensor([1, 1, 0, 1, 1, 1, 1]).double() / 6, atol=1e-8, rtol=0)
    torch.testing.assert_close(
        exact_weights.priced(gaps, 2, ALL, 1e9, 1.0), exact_weights.even(2, ALL), atol=1e-8, rtol=0
    )


def test_two_identical_groups_are_found_exactly() -> None:
    first, second = torch.randn(2, P, generator=torch.Generator().manual_seed(1)).double()
    theta = torch.stack([first, second, first, second, second])
    gaps, known = gaps_of(theta), torch.ones(5)
    A = torch.stack([exact_weights.of_others(gaps, i, known, 0.0) for i in range(5)])
    expected = torch.tensor(
        [[0, 0, 1, 0, 0], [0, 0, 0, 0.5, 0.5], [1, 0, 0, 0, 0], [0, 0.5, 0, 0, 0.5], [0, 0.5, 0, 0.5, 0]]
    )
    torch.testing.assert_close(A, expected.double(), atol=1e-7, rtol=0)
    assert exact_weights.groups(A).tolist() == [0, 1, 0, 1, 1]


def test_a_group_of_noisy_copies_is_averaged_and_nobody_else() -> None:
    """Copies of one model with independent noise: the price that the nearest neighbour sets gives about 1/n to each."""
    random = torch.Generator().manual_seed(3)
    centres = 5 * torch.randn(2, 20_000, generator=random).double()
    theta = centres[[0, 0, 0, 0, 1, 1, 1]] + torch.randn(7, 20_000, generator=random)
    gaps = gaps_of(theta)
    row = exact_weights.priced(gaps, 0, ALL, 0.0, float(exact_weights.nearest(gaps, 0, ALL)) / 2)
    torch.testing.assert_close(row, torch.tensor([0.25] * 4 + [0.0] * 3).double(), atol=0.03, rtol=0)


def test_companions_are_before_the_first_clear_jump() -> None:
    gaps, known = gaps_of(torch.tensor([[0.0], [1.0], [1.5], [4.0], [5.0]]).double()), torch.ones(5)
    # squared distances from client 0: 1, 2.25, 16, 25; the largest jump is 16 / 2.25 = 7.1
    assert exact_weights.companions(gaps, 0, known, 7.0).tolist() == [0, 1, 1, 0, 0]
    assert exact_weights.companions(gaps, 0, known, 7.2).tolist() == [1, 1, 1, 1, 1]
    assert exact_weights.companions(gaps, 0, torch.tensor([1.0, 0, 1, 1, 1]), 3.0).tolist() == [0, 0, 1, 0, 0]
    assert exact_weights.companions(gaps, 0, torch.tensor([1.0, 1, 0, 0, 0]), 3.0).tolist() == [1, 1, 0, 0, 0]
    assert exact_weights.companions(torch.zeros(3, 3).double(), 1, torch.ones(3), 3.0).tolist() == [1, 1, 1]
    copies = gaps_of(torch.tensor([[0.0], [0.0], [0.0], [4.0]]).double())
    assert exact_weights.companions(copies, 0, torch.ones(4), 3.0).tolist() == [0, 1, 1, 0]


def test_a_model_far_away_from_all_does_not_hide_the_groups() -> None:
    """Squared distances from client 0: 1, 16 to the other group and a million to client 4: both jumps are clear."""
    gaps = gaps_of(torch.tensor([[0.0], [1.0], [4.0], [4.0], [1000.0]]).double())
    assert exact_weights.companions(gaps, 0, torch.ones(5), 3.0).tolist() == [0, 1, 0, 0, 0]
    assert exact_weights.companions(gaps, 0, torch.ones(5), 17.0).tolist() == [0, 1, 1, 1, 0]
    further = gaps_of(torch.tensor([[0.0], [1.0], [4.0], [4.0], [10_000.0]]).double())
    assert exact_weights.companions(further, 0, torch.ones(5), 3.0).tolist() == [0, 1, 0, 0, 0]


def test_differences_that_are_rounding_are_no_jumps() -> None:
    """Gaps are measured in float32 around the mean: 1e-9 and 4e-8 beside 16 are both nothing."""
    gaps = gaps_of(torch.tensor([[0.0], [3e-5], [2e-4], [4.0]]).double())
    assert exact_weights.companions(gaps, 0, torch.ones(4), 3.0).tolist() == [0, 1, 1, 0]


def test_only_who_was_heard_from_is_mixed() -> None:
    gaps, known = gaps_of(models()), torch.tensor([1.0, 0, 1, 0, 0, 0, 0])
    assert exact_weights.of_others(gaps, 0, known, 0.5).tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert exact_weights.of_others(gaps, 1, torch.zeros(M), 0.5).tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert exact_weights.priced(gaps, 1, torch.zeros(M), 0.5, 1.0).tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert exact_weights.even(1, known).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0, 0, 0])
    assert exact_weights.spread(gaps, 1, torch.zeros(M)) == exact_weights.nearest(gaps, 1, torch.zeros(M)) == 0


def test_equal_models_and_no_noise_are_mixed_evenly() -> None:
    assert torch.allclose(
        exact_weights.priced(torch.zeros(4, 4).double(), 1, torch.ones(4), 0.0, 0.0), torch.full((4,), 0.25).double()
    )


def test_how_far_a_mixture_is_from_a_point() -> None:
    theta, row = models(), torch.softmax(torch.arange(M).double(), 0)
    point = models(9)[0]
    ahead = (theta - point).square().sum(1)
    assert float(exact_weights.miss(row, ahead, gaps_of(theta))) == pytest.approx(
        float((point - row @ theta).square().sum())
    )


def test_shares_and_collaborators() -> None:
    assert exact_weights.shared(torch.tensor([0.0, 0.5, 0.5]).double(), 0, 0.2).tolist() == pytest.approx(
        [0.2, 0.4, 0.4]
    )
    A = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25], [0, 0, 0.5, 0.5]])
    assert exact_weights.collaborators(A).tolist() == pytest.approx([1, 2, 4, 2])


def test_groups_need_weight_on_both_sides() -> None:
    one_sided = torch.tensor(
        [[0.1, 0.9, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0.1, 0.9, 0], [0, 0, 0.45, 0.1, 0.45], [0, 0, 0, 0.9, 0.1]]
    )
    assert exact_weights.groups(one_sided).tolist() == [0, 1, 2, 2, 2]
