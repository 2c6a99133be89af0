"""The page on own data is made from stored numbers, and says where a gain flatters."""

import json
from pathlib import Path

from maker import load_maker

DOCS = Path(__file__).parents[1] / "docs"
page = load_maker("make_own_data")


def row(method: str, gain: float) -> dict:
    value = {"mean": gain, "low": None, "high": None}
    return {"method": method, "RMSE": value, "RMSE gain": value, "gain": 0, "lose": 0, "unclear": 1}


def test_the_page_is_current() -> None:
    stored = json.loads(page.STORED.read_text(encoding="utf-8"))
    assert {"schools", "caravan"} <= set(stored) == set(page.TITLES)
    assert page.PAGE.read_text(encoding="utf-8") == page.page(stored), "run: python docs/make_own_data.py"


def test_a_gain_that_a_plain_model_has_too_is_called_so() -> None:
    joined = [row("fedper", 0.04), row("alone", 0.0)]
    (said,) = page._remarks([*joined, row("plain model", 0.05)], "RMSE")
    assert "fedper, -0.01 beside the plain model" in said
    assert "flatter" in said
    (said,) = page._remarks([*joined, row("plain model", -0.05)], "RMSE")
    assert "flatter" not in said
