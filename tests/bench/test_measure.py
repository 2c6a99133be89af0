"""The arithmetic of measuring, by hand."""

from __future__ import annotations

import json

import pytest
import torch

from fedapa.bench import side_by_side
from fedapa.bench.side_by_side import Row, Spread, Times


def test_ways_are_called_in_turn_after_one_round_of_warming_up() -> None:
    calls: list[str] = []
    found = side_by_side.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert "".join(calls) == "ababab"
    assert {name: len(times) for name, times in found.items()} == {"a": 2, "b": 2}


def test_a_ratio_is_taken_repeat_by_repeat() -> None:
    slow = [Times(6.0, 1.0), Times(40.0, 1.0), Times(8.0, 9.0)]
    fast = [Times(2.0, 1.0), Times(10.0, 2.0), Times(4.0, 3.0)]
    assert side_by_side.ratio(slow, fast) == Spread(3.0, 2.0, 4.0)
    assert side_by_side.ratio(slow, fast, "wall") == Spread(1.0, 0.5, 3.0)


def test_a_rate_is_work_over_time() -> None:
    assert side_by_side.rate(12.0, [Times(3.0, 1.0), Times(4.0, 1.0), Times(6.0, 1.0)]) == Spread(3.0, 2.0, 4.0)


def test_both_clocks_run() -> None:
    found = side_by_side.timed(lambda: sum(range(300_000)))
    assert 0 < found.cpu < 10 * found.wall


@pytest.mark.parametrize(
    ("median", "target", "at_most", "holds"),
    [
        (5.0, 5.0, False, True),
        (4.9, 5.0, False, False),
        (8.1, 8.0, True, False),
        (8.0, 8.0, True, True),
        (1.0, None, False, None),
    ],
)
def test_a_row_knows_whether_its_target_is_met(median: float, target: float, at_most: bool, holds: bool | None) -> None:
    row = Row("suite", "what", side_by_side.known(median), "x", target, at_most)
    assert row.holds is holds
    assert json.loads(json.dumps(row.as_dict()))["found"] == {"median": median, "low": median, "high": median}


@pytest.mark.parametrize(("at_most", "target"), [(True, 2.5), (False, 1.5)])
def test_one_repeat_spoils_a_row_in_which_every_one_counts(at_most: bool, target: float) -> None:
    assert Row("s", "w", Spread(2.0, 1.0, 3.0), "x", target, at_most).holds is True
    assert Row("s", "w", Spread(2.0, 1.0, 3.0), "x", target, at_most, every=True).holds is False


def test_exponents_of_a_power_law_are_found() -> None:
    sizes = [(float(a), float(b)) for a in (2, 4, 8) for b in (10, 30)]
    found = side_by_side.exponents(sizes, [7 * a**2 * b**0.5 for a, b in sizes])
    assert found == pytest.approx([2.0, 0.5])


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with side_by_side.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_the_peak_of_memory_counts_what_was_freed_since() -> None:
    memory = side_by_side.Memory()
    if memory.peak() is None:
        pytest.skip("this system does not tell the peak of a process's memory")
    block = torch.ones(16 * 2**20)  # 64 MB
    del block
    beyond, whole = memory.beyond(), memory.peak()
    assert beyond is not None
    assert whole is not None
    assert 60 < beyond < 200
    assert whole > beyond


def test_a_product_counts_its_operations() -> None:
    product, flops = side_by_side.gemm(4)
    product()
    assert flops == 2 * 4**3
