"""Numbers that can be checked with a table of Student's t and by counting."""

import numpy as np
import pytest

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
