"""A real browser that looks at a page and tells everything that is wrong with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE, PHONE = 1400, 390


@dataclass
class Looker:
    """One browser for many looks; every look opens a tab of its own."""

    browser: Any
    faults: list[str] = field(default_factory=list)

    @contextmanager
    def look(
        self, address: str, width: int = WIDE, scheme: str = "light", height: int = 900, script: str = "", **more: Any
    ) -> Iterator[Any]:
        """The loaded page; whatever scripts, console or network complain about is in ``faults``."""
        self.faults = []
        tab = self.browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, **more)
        if script:
            tab.add_init_script(script)
        tab.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        tab.on("console", lambda said: self.faults.append(f"console: {said.text}") if said.type in ALARMS else None)
        tab.on("requestfailed", self._failed)
        tab.on("request", lambda request: self._count(request.url, address))
        try:
            tab.goto(address, wait_until="load")
            yield tab
        finally:
            tab.close()

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # given up because the page was left
            self.faults.append(f"request: {request.url[-80:]}")

    def _count(self, url: str, address: str) -> None:
        if not url.startswith((address, "data:")):
            self.faults.append(f"asked the network for {url[-80:]}")


ALARMS = ("error", "warning")
# How far the page sticks out to the right, and the pictures and references that lead nowhere.
OVERFLOW = "document.scrollingElement.scrollWidth - document.documentElement.clientWidth"
BROKEN = """() => [
  ...[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.outerHTML.slice(0, 80)),
  ...[...document.querySelectorAll('use')].map(u => u.getAttribute('href') || u.getAttribute('xlink:href'))
    .filter(h => !document.getElementById(h.slice(1))),
  ...[...document.querySelectorAll('[clip-path]')].map(e => e.getAttribute('clip-path').slice(5, -1))
    .filter(h => !document.getElementById(h)),
]"""
REPEATED = """() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  return [...new Set(ids.filter((id, k) => ids.indexOf(id) !== k))] }"""

# Every text with less than 4.5 : 1 (3 : 1 where it is large) between its colour and what lies behind it.
FAINT = """() => {
  const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 };
  const light = ([r, g, b]) => {
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b) };
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const behind = (node) => { for (let n = node; n; n = n.parentElement) {
    const c = rgb(getComputedStyle(n).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c } return [255, 255, 255] };
  const found = new Set();
  for (const node of document.querySelectorAll("body *")) {
    if (node.closest("svg, [hidden], .hidden, .skip, dialog:not([open])") || node.disabled) continue;
    const words = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    if (!words || !node.getClientRects().length) continue;
    const style = getComputedStyle(node), [a, b] = [light(rgb(style.color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.add(`${node.className || node.tagName} ${ratio.toFixed(2)} ${style.color}`);
  }
  return [...found];
}"""


@contextmanager
def open_browser() -> Iterator[Looker]:
    """Debian's Chromium through Playwright; a test without it is skipped, and says why."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    with playwright.sync_playwright() as driver, launched(driver.chromium) as found:
        yield found


@contextmanager
def launched(kind: Any, **environment: str) -> Iterator[Looker]:
    """A browser of this kind with more in its environment."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: make browser")
    browser = kind.launch(executable_path=program, headless=True, args=FLAGS, env={**os.environ, **environment})
    try:
        yield Looker(browser)
    finally:
        browser.close()


def address(path: Path) -> str:
    return path.absolute().as_uri()
