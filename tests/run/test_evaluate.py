"""The five numbers of a round, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedapa.run.evaluate import summarise


def test_five_numbers_of_three_clients() -> None:
    found = summarise(np.array([9, 1, 10]), np.array([10, 2, 40]))  # 90 %, 50 %, 25 %
    assert found.pooled == pytest.approx(100 * 20 / 52)
    assert found.mean == pytest.approx(55)
    assert found.std == pytest.approx(math.sqrt((35**2 + 5**2 + 30**2) / 3))
    assert found.worst == 25
    assert found.worst10 == 25


@pytest.mark.parametrize(("clients", "tenth"), [(9, 1), (19, 1), (20, 2), (50, 5)])
def test_worst_tenth_is_the_mean_of_the_worst_clients(clients: int, tenth: int) -> None:
    correct = np.arange(clients)[::-1]
    found = summarise(correct, np.full(clients, 100))
    assert found.worst10 == pytest.approx(np.arange(tenth).mean())


def test_clients_without_test_samples_count_in_no_mean() -> None:
    assert summarise(np.array([5, 0]), np.array([10, 0])) == summarise(np.array([5]), np.array([10]))


def test_no_test_samples_at_all() -> None:
    assert math.isnan(summarise(np.array([0]), np.array([0])).pooled)
