"""Report and dashboard at three widths, light and dark, beside stored pictures; broken pages are told from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the dashboard is not installed: pip install 'fedapa[dashboard]'")

from matplotlib import get_data_path
from PIL import Image
from serving import serving

import browser as browsers
from browser import FAINT, OVERFLOW, Looker, launched
from fedapa.report.page import write
from made_runs import make_run
from pictures import LOOKS, MOST, STORED, compared, difference, opened, taken, turned

PAGES = {
    "overview": "overview",
    "clients": "clients?run=large-seed0&client=3",
    "collaboration": "collaboration?run=fedapa-seed0",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of a report and of a dashboard on the same runs."""
    top = tmp_path_factory.mktemp("pictured") / "runs"
    for seed in (0, 1, 2):
        for label, more in (("local", 0), ("fedavg", -1), ("fedapa", 1)):
            right = [[min(10, max(0, 3 + t + more * (i % 3) + (i * seed) % 2)) for i in range(12)] for t in range(4)]
            make_run(top / f"{label}-seed{seed}", label, right, seed=seed, weights=label == "fedapa")
    write(top, top.parent / "report.html")
    names = [f"clinic {i}" for i in range(1000)]
    make_run(top / "large-seed0", "fedavg", [[i % 11 for i in range(1000)]], names=names, alpha=0.7)
    with serving(top) as found:
        pages = {page: found + path for page, path in PAGES.items()}
        yield {**pages, "report": browsers.address(top.parent / "report.html")}


def shown(tab: Any, page: str) -> None:
    tab.locator("figure svg" if page == "report" else ".chart[data-drawn]").first.wait_for(timeout=30_000)


@pytest.mark.parametrize("page", [*PAGES, "report"])
def test_pages_look_as_stored(places: dict[str, str], browser: Looker, page: str) -> None:
    """And nothing sticks out or is faint."""
    wrong = []
    with opened(browser, places[page]) as tab:
        shown(tab, page)
        for width, scheme in LOOKS:
            turned(tab, width, scheme)
            wrong.append(compared(taken(tab), f"{page}-{width}-{scheme}"))
            assert tab.evaluate(OVERFLOW) <= 0, (width, scheme)
            assert tab.evaluate(FAINT) == [], (width, scheme)
    assert list(filter(None, wrong)) == []


BREAKS = {
    "a missing figure": ("report", "light", "figure:first-of-type svg { visibility: hidden }"),
    "columns on top of each other": ("report", "light", ".pair { grid-template-columns: 1px 1px !important }"),
    "dark text on dark": ("report", "dark", ":root { --ink: #1f2328 !important; --muted: #1f2328 !important }"),
    "no colour of the page": ("report", "dark", "body { background: white !important }"),
    "a chart without lines": ("overview", "light", ".chart .lines { display: none }"),
    "a table without its rows": ("overview", "light", "tbody { display: none }"),
    "a page without a style": ("overview", "light", "* { all: revert !important }"),
}


@pytest.mark.parametrize("page", ["overview", "report"])
def test_a_broken_page_is_told_from_its_picture(places: dict[str, str], browser: Looker, page: str) -> None:
    """Each way to break it by itself, and the page as it is in between."""
    with opened(browser, places[page]) as tab:
        shown(tab, page)
        for what, (where, scheme, style) in BREAKS.items():
            if where != page:
                continue
            turned(tab, 1280, scheme)
            stored = Image.open(STORED / f"{page}-1280-{scheme}.png")
            broken = tab.add_style_tag(content=style)
            assert difference(taken(tab), stored) > MOST, what
            broken.evaluate("style => style.remove()")
        assert difference(taken(tab), stored) < 0.7 * MOST


def test_fonts_of_another_machine_do_not_matter(places: dict[str, str], browser: Looker, tmp_path: Path) -> None:
    """The browser finds a single font, with serifs, which none of our pages asks for."""
    fonts = tmp_path / "fonts"
    fonts.mkdir()
    (fonts / "serif.ttf").symlink_to(Path(get_data_path()) / "fonts" / "ttf" / "STIXGeneral.ttf")
    config = tmp_path / "fonts.conf"
    config.write_text(f"<fontconfig><dir>{fonts}</dir><cachedir>{tmp_path}</cachedir></fontconfig>")
    kind = browser.browser.browser_type
    with launched(kind, FONTCONFIG_FILE=str(config)) as other, opened(other, places["overview"]) as tab:
        shown(tab, "overview")
        turned(tab, 1280, "light")
        assert compared(taken(tab), "overview-1280-light") == ""
