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
    assert set(stored) - {page.FEDERATION} == set(page.TITLES)
    assert page.PAGE.read_text(encoding="utf-8") == page.page(stored), "run: python docs/make_own_data.py"


def test_a_federation_is_shown_beside_its_simulation() -> None:
    overall = [row(method, 0.0) for method in ("local", "fedapa", "plain model", "alone")]
    same = {"numbers": 8, "difference": 0.0, "delivered difference": 0.0}
    methods = [
        {**same, "method": "local", "delivered": {"a": 1.5, "b": 2}},
        {**same, "method": "fedapa", "delivered": {"a": 1, "b": 3}, "delivered difference": 2e-9},
    ]
    found = {"primary": "RMSE", "splits": 3, "rounds": 5, "seconds": 120, "sites": ["a", "b"], "notes": []}
    text = page.page({page.FEDERATION: {"housing": {**found, "overall": overall, "methods": methods}}})
    assert "### Texas housing at four sites" in text
    assert "| local | 1.5; 2 | 0 |" in text
    assert "| fedapa | 1; 3 | 2e-09 |" in text
    assert "16 scores were told by the sites" in text


def test_a_gain_that_a_plain_model_has_too_is_called_so() -> None:
    joined = [row("fedper", 0.04), row("alone", 0.0)]
    (said,) = page._remarks([*joined, row("plain model", 0.05)], "RMSE")
    assert "fedper, -0.01 beside the plain model" in said
    assert "flatter" in said
    (said,) = page._remarks([*joined, row("plain model", -0.05)], "RMSE")
    assert "flatter" not in said
