"""Pages measured, not only looked at: whole rounds, a thousand clients, tabs on a phone, contrast, Local over Local."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the dashboard is not installed: pip install 'fedapa[dashboard]'")

from serving import serving

from browser import FAINT, PHONE, Looker
from made_runs import make_run

TICKS = "() => [...document.querySelectorAll('.chart .xaxislayer-above .xtick text')].map((t) => t.textContent)"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    top = tmp_path_factory.mktemp("many") / "runs"
    for seed in (0, 1):
        for label, more in (("local", 0), ("fedapa", 1)):
            right = [[4 + more + t % 3, 5 + more, 6 + seed] for t in range(4)]
            make_run(top / f"{label}-seed{seed}", label, right, seed=seed, weights=label == "fedapa")
    names = [f"clinic {i}" for i in range(1000)]
    make_run(top / "large-seed0", "fedavg", [[i % 11 for i in range(1000)]], names=names, alpha=0.7)
    with serving(top) as found:
        yield found


def shown(tab: Any, charts: int = 1) -> None:
    tab.locator("main[data-version]").wait_for(timeout=30_000)
    tab.locator(".chart[data-drawn]").nth(charts - 1).wait_for(timeout=30_000)


def test_faint_text_would_be_seen(address: str, browser: Looker) -> None:
    with browser.look(address) as tab:
        shown(tab)
        tab.add_style_tag(content=".tile span { color: #bbb !important }")
        assert tab.evaluate(FAINT)


def test_rounds_are_whole_and_told_once(address: str, browser: Looker) -> None:
    with browser.look(address, 1280) as tab:
        shown(tab)
        assert tab.evaluate(TICKS) == ["1", "2", "3", "4"]


def test_local_is_not_compared_with_itself(address: str, browser: Looker) -> None:
    with browser.look(address, 1280) as tab:
        shown(tab)
        assert "Local over Local" not in tab.locator("main").inner_text()
        row = tab.locator("section", has_text="Methods").locator("tbody tr", has_text="Local").last
        assert row.locator("td").nth(7).inner_text() == "–"


def test_a_thousand_clients_are_paged_searched_and_summed_up(address: str, browser: Looker) -> None:
    with browser.look(f"{address}clients?run=large-seed0", 1280) as tab:
        shown(tab)
        assert tab.locator(".split tbody tr").count() == 50
        assert tab.evaluate("document.scrollingElement.scrollHeight") < 3000  # it was 14,496 pixels
        assert tab.locator(".chart[aria-label*='spread']").count() == 1
        tab.get_by_role("button", name="next ›").click()
        tab.get_by_text("page 2 of 20").wait_for()
        assert tab.locator(".split tbody th").first.inner_text() == "clinic 50"
        tab.get_by_label("Find a client").fill("clinic 77")
        tab.get_by_text("11 of 1,000 clients").wait_for()  # 77 and 770 to 779
        assert tab.evaluate("document.activeElement.type") == "search"
        assert tab.locator(".split tbody tr").count() == 11
        tab.locator(".split tbody tr").nth(1).click()
        tab.locator(".detail h2", has_text="Client clinic 770").wait_for()


def test_every_tab_can_be_touched_on_a_phone(address: str, browser: Looker) -> None:
    with browser.look(address, PHONE) as tab:
        shown(tab)
        boxes = [one.bounding_box() for one in tab.locator("nav a").all()]
        assert len(boxes) == 6
        for box in boxes:
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= PHONE
            assert box["height"] >= 36


def test_paper_has_no_buttons(address: str, browser: Looker) -> None:
    with browser.look(address, 1280, "light") as tab:
        shown(tab)
        tab.emulate_media(media="print")
        assert not tab.locator("nav").is_visible()
        assert tab.locator(".tile").first.is_visible()
