"""The page on groups is made from the results, and says no more than they do."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedapa.analysis.run_results import Phase, RunResult
from fedapa.core.summaries import Summary
from maker import load_maker

DOCS = Path(__file__).parents[1] / "docs"
page = load_maker("make_groups")


def run_of(label: str, value: float, allocation: int) -> RunResult:
    phase = Phase(value, value, 1, value, None, Summary(value, value, 0.0, value, value), (value,))
    stood, cost = ("finished", 1, 1, "before"), (1.0, 1.0, np.array([[value, 100.0]]))
    return RunResult(Path(label), "planted", label, allocation, *stood, phase, phase, *cost, str(allocation))


def verdict(**values: tuple[float, ...]) -> str:
    named = {name.replace("_", "-"): found for name, found in values.items()}
    return str(page._verdict([run_of(n, v, k) for n, found in named.items() for k, v in enumerate(found)]))


def test_the_pages_are_current() -> None:
    text = (DOCS / "beyond.md").read_text(encoding="utf-8")
    assert page.beyond(text) == text, "run: python docs/make_groups.py"
    assert (DOCS / "groups.md").read_text(encoding="utf-8") == page.page(), "run: python docs/make_groups.py"


def test_the_goal_by_hand() -> None:
    ours, level = (80.0, 81.0, 82.0), (80.1, 81.1, 81.9)
    assert verdict(fedapa_exact=ours, oracle=level, local=(70.0, 71.0, 73.0), cfl=level).endswith(": met.")
    ahead = tuple(value + 2 for value in level)
    assert verdict(fedapa_exact=ours, oracle=level, local=(70.0, 71.0, 73.0), cfl=ahead).endswith(": not met.")
    assert verdict(fedapa_exact=ours, oracle=ahead, local=(70.0, 71.0, 73.0), cfl=level).endswith(": not met.")
    assert verdict(fedapa_exact=ours, oracle=level, local=ahead, cfl=level).endswith(": not met.")
    assert verdict(fedapa_exact=ours[:2], oracle=ahead[:2], local=level[:2]).endswith(": cannot be told yet.")


def test_who_is_told_the_groups_is_no_rival() -> None:
    told = verdict(fedapa_exact=(80.0,), ifca_true=(99.0,), exact_tested=(99.0,), even=(99.0,), cfl=(70.0,))
    assert "vs cfl" in told
    assert "99" not in told
    assert "-" not in told.split(" vs ")[0]


def test_only_shared_allocations_are_paired() -> None:
    mine = [run_of("fedapa-exact", 80.0, 0), run_of("fedapa-exact", 90.0, 1), run_of("cfl", 79.0, 0)]
    assert page._ahead(mine, "cfl")[0] == pytest.approx(1.0)
    apart = [mine[0], replace(mine[2], partition="9")]
    assert page._ahead(apart, "cfl")[2] == "few"


def test_rivals_are_led_by_pairs_and_held_by_holm() -> None:
    """Ours is 1, 2 and 3 ahead of fedper, and 1.0, 1.1 and 0.9 ahead of fedala: only the second is sure."""
    values = {"fedapa-exact": (81.0, 82.0, 83.0), "fedper": (80.0, 80.0, 80.0), "fedala": (80.0, 80.9, 82.1)}
    runs = [run_of(f"{n}+ema", v, k) for n, found in values.items() for k, v in enumerate(found)]
    told = page._led([*runs, run_of("fedper", 99.0, 0)], list(values), "+ema")
    assert told["fedapa-exact"] == ("82.00", page.NONE)
    assert told["fedper"] == ("80.00", "+2.00 [-0.48, +4.48] n. d.")
    assert told["fedala"] == ("81.00", "+1.00 [+0.75, +1.25]")
