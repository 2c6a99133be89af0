"""Numbers that can be checked with a table of Student's t and by counting."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedapa.analysis import statistics
from fedapa.analysis.statistics import Ranks, critical_difference, exact, holm, interval, paired_p, ranks, share


def test_interval_of_three_allocations() -> None:
    """mean 2, sd 1, t(0.975, 2) = 4.302653, half width 4.302653 / sqrt(3)."""
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.sd) == (2.0, 1.0)
    assert found.low == pytest.approx(2 - 4.302653 / 3**0.5, abs=1e-5)
    assert found.high == pytest.approx(2 + 4.302653 / 3**0.5, abs=1e-5)


def test_one_allocation_has_no_interval() -> None:
    assert interval([81.5]) == (81.5, None, None, None)


def test_two_allocations_have_a_spread_but_no_interval_and_no_p() -> None:
    assert interval([80.0, 82.0]) == (81.0, pytest.approx(2**0.5), None, None)
    assert paired_p([80.0, 82.0]) is None


def test_an_interval_of_accuracies_stays_within_0_and_100() -> None:
    """Student's interval of 99, 100 and 98 reaches 101.5; that of 0, 1 and 5 goes below -4."""
    high, low = interval([99.0, 100.0, 98.0], (0.0, 100.0)), interval([0.0, 1.0, 5.0], (0.0, 100.0))
    assert high.high == 100.0
    assert high.low == pytest.approx(99 - 4.302653 / 3**0.5, abs=1e-5)
    assert low.low == 0.0
    assert low.high is not None
    assert low.high > 5


def test_equal_values_have_no_spread_to_judge_by() -> None:
    assert interval([100.0] * 4, (0.0, 100.0)) == (100.0, 0.0, None, None)
    assert paired_p([1.0] * 4) is None
    assert paired_p([0.1 + 0.2, 0.3, 0.3]) is None  # equal but for rounding


def test_numbers_that_are_not_finite_have_no_interval() -> None:
    assert interval([80.0, float("nan"), 82.0])[2:] == (None, None)
    assert paired_p([80.0, float("nan"), 82.0]) is None


def test_the_paired_test_is_scipys() -> None:
    random = np.random.default_rng(0)
    ours, theirs = random.normal(80, 2, 6), random.normal(79, 2, 6)
    assert paired_p(ours - theirs) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)


def test_the_paired_test_rejects_as_often_as_it_says() -> None:
    """Four allocations without a difference, 2000 times: 5 of 100, give or take three standard deviations."""
    draws = np.random.default_rng(1).normal(size=(2000, 4))
    assert sum(paired_p(row) < 0.05 for row in draws) == pytest.approx(100, abs=30)


def test_splits_of_the_same_rows_widen_the_interval_and_raise_p() -> None:
    values = [0.7, 0.8, 0.9]
    plain, found = interval(values), interval(values, overlap=0.25 / 0.75)
    assert found.mean == pytest.approx(0.8)
    assert found.high - found.mean == pytest.approx((plain.high - plain.mean) * (1 + 3 * (0.25 / 0.75)) ** 0.5)
    t = 0.8 / (0.1 * (1 / 3 + 1 / 3) ** 0.5)
    assert paired_p(values, overlap=1 / 3) == pytest.approx(2 * stats.t.sf(t, 2))


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.03, 0.5 times 4, 3, 2, 1, never falling: 0.04, 0.06, 0.06, 0.5."""
    assert holm([0.03, None, 0.01, 0.5, 0.02]) == pytest.approx([0.06, None, 0.04, 0.5, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([0.011, 0.01]) == pytest.approx([0.02, 0.02])
    assert holm([]) == []


@pytest.mark.parametrize(("correct", "total"), [(69, 69), (0, 12), (68, 69), (30, 60), (1, 2)])
def test_exact_intervals_are_clopper_and_pearsons(correct: int, total: int) -> None:
    wanted = stats.binomtest(correct, total).proportion_ci(0.95, method="exact")
    assert [float(bound) for bound in exact(correct, total)] == pytest.approx([wanted.low, wanted.high])
    assert share(correct, total) == (correct / total, None, pytest.approx(wanted.low), pytest.approx(wanted.high))


def test_no_errors_in_69_rows_leave_five_percent_open() -> None:
    found = share(69, 69)
    assert (found.low, found.high) == (pytest.approx(0.948, abs=5e-4), 1.0)


def test_one_row_has_no_interval() -> None:
    assert share(1, 1) == (1.0, None, None, None)
    low, high = exact([1, 69], [1, 69])
    assert np.isnan([low[0], high[0]]).all()
    assert np.isfinite([low[1], high[1]]).all()


def test_ranks_by_counting() -> None:
    found = ranks({"a": [90, 80, 70], "b": [85, 75, 72], "c": [60, 50, 40]})
    assert found.mean_rank == pytest.approx({"a": 4 / 3, "b": 5 / 3, "c": 3.0})
    assert found.p == pytest.approx(0.097, abs=1e-3)  # chi2 = 14/3, 2 degrees of freedom


def test_critical_difference_of_the_literature() -> None:
    """Demsar (2006): four classifiers on 14 data sets, 2.569 sqrt(4 * 5 / (6 * 14)) = 1.25."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert ranks({"a": [90.0], "b": [90.0]}).difference is None


def test_friedman_and_the_range_are_scipys() -> None:
    table = np.random.default_rng(0).integers(0, 6, (5, 7)).astype(float)  # with ties
    found = ranks({str(k): column for k, column in enumerate(table.T)})
    assert found.p == pytest.approx(stats.friedmanchisquare(*table.T).pvalue, abs=1e-12)
    for methods in (2, 25):
        wanted = stats.studentized_range.isf(0.05, methods, np.inf)
        assert statistics.studentized_range(methods, 0.05) == pytest.approx(wanted, abs=1e-9)


def test_methods_that_are_not_told_apart_by_hand() -> None:
    """Less than 1.5 apart: a with b and c, b with c and d; e stands alone, and c with d is inside another set."""
    found = Ranks({"b": 1.9, "a": 1.0, "c": 2.4, "d": 3.3, "e": 6.0}, 0.01, difference=1.5)
    assert found.alike() == [["a", "b", "c"], ["b", "c", "d"]]
    assert found._replace(difference=None).alike() == []


def test_ties_share_a_rank() -> None:
    assert ranks({"a": [90.0], "b": [90.0]}).mean_rank == {"a": 1.5, "b": 1.5}


def test_auc_by_counting_pairs() -> None:
    """Of the four pairs of a one and a zero three are in order; a tie counts half."""
    scores = np.array([0.1, 0.4, 0.35, 0.8])
    assert statistics.auc(np.array([0, 0, 1, 1]), np.stack([1 - scores, scores], 1)) == 0.75
    assert statistics.auc(np.array([0, 1]), np.full((2, 2), 0.5)) == 0.5


def test_auc_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 2, 50), rng.random((50, 2)).round(1)
    assert statistics.auc(y, p) == pytest.approx(roc_auc_score(y, p[:, 1]))
    y, p = rng.integers(0, 3, 60), rng.dirichlet(np.ones(3), 60)
    assert statistics.auc(y, p) == pytest.approx(roc_auc_score(y, p, multi_class="ovr"))
    assert statistics.auc(np.zeros(5, dtype=np.int64), rng.random((5, 2))) is None


def test_bootstrap_agrees_with_the_binomial() -> None:
    y = np.array([1] * 80 + [0] * 20)
    p = np.tile([0.0, 1.0], (100, 1))
    found = statistics.bootstrap(y, p, statistics.accuracy, draws=4000)
    assert found.mean == 0.8
    assert found.sd == pytest.approx((0.8 * 0.2 / 100) ** 0.5, rel=0.05)
    assert (found.low, found.high) == pytest.approx((0.72, 0.87), abs=0.011)


def test_a_bootstrap_without_spread_has_no_interval() -> None:
    """Perfectly separated rows have AUC 1 in every redraw, which is no proof that it is 1."""
    y, p = np.array([0, 0, 0, 1, 1, 1]), np.array([[0.9, 0.1]] * 3 + [[0.2, 0.8]] * 3)
    assert statistics.bootstrap(y, p, statistics.auc) == (1.0, None, None, None)
