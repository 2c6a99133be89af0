"""Numbers that can be checked with a table of Student's t and by counting."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedapa.run import statistics
from fedapa.run.statistics import interval, paired, ranks


def test_interval_of_three_allocations() -> None:
    """mean 2, sd 1, t(0.975, 2) = 4.302653, half width 4.302653 / sqrt(3)."""
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.sd) == (2.0, 1.0)
    assert found.low == pytest.approx(2 - 4.302653 / 3**0.5, abs=1e-5)
    assert found.high == pytest.approx(2 + 4.302653 / 3**0.5, abs=1e-5)


def test_one_allocation_has_no_interval() -> None:
    assert interval([81.5]) == (81.5, None, None, None)


def test_paired_counts_and_exact_p() -> None:
    """Five clients, all better by different amounts: the exact two-sided p is 2 / 2^5."""
    found = paired(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.zeros(5))
    assert found[:5] == (5, 3.0, 5, 0, 0)
    assert found.p == pytest.approx(2 / 32)


def test_equal_methods_have_no_p() -> None:
    assert paired(np.ones(4), np.ones(4)) == (4, 0.0, 0, 4, 0, None)


def test_ranks_by_counting() -> None:
    found = ranks({"a": [90, 80, 70], "b": [85, 75, 72], "c": [60, 50, 40]})
    assert found.mean_rank == pytest.approx({"a": 4 / 3, "b": 5 / 3, "c": 3.0})
    assert found.p == pytest.approx(0.097, abs=1e-3)  # chi2 = 14/3, 2 degrees of freedom


def test_ties_share_a_rank() -> None:
    assert ranks({"a": [90.0], "b": [90.0]}).mean_rank == {"a": 1.5, "b": 1.5}


def test_auc_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 2, 50), rng.random((50, 2)).round(1)
    assert statistics.auc(y, p) == pytest.approx(roc_auc_score(y, p[:, 1]))
    y, p = rng.integers(0, 3, 60), rng.dirichlet(np.ones(3), 60)
    assert statistics.auc(y, p) == pytest.approx(roc_auc_score(y, p, multi_class="ovr"))
    assert statistics.auc(np.zeros(5, dtype=np.int64), rng.random((5, 2))) is None


def test_splits_of_the_same_rows_widen_the_interval() -> None:
    values = [0.7, 0.8, 0.9]
    plain, found = statistics.interval(values), statistics.resampled(values, 0.25)
    assert found.mean == pytest.approx(0.8)
    assert found.high - found.mean == pytest.approx((plain.high - plain.mean) * (1 + 3 * (0.25 / 0.75)) ** 0.5)
    assert statistics.resampled([0.7], 0.25).low is None


def test_bootstrap_agrees_with_the_binomial() -> None:
    y = np.array([1] * 80 + [0] * 20)
    p = np.tile([0.0, 1.0], (100, 1))
    found = statistics.bootstrap(y, p, statistics.accuracy, draws=4000)
    assert found.mean == 0.8
    assert found.sd == pytest.approx((0.8 * 0.2 / 100) ** 0.5, rel=0.05)
    assert (found.low, found.high) == pytest.approx((0.72, 0.87), abs=0.011)
