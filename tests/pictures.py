"""Pictures of pages, small enough to be stored, and compared loosely.

A stored picture has one pixel for a square of the page. It is compared with a new one square by square. A square may
lie one further off, for browsers smooth letters and lines differently. Text is set in a font that comes with
matplotlib, so the fonts of a machine do not matter. `make pictures` stores new ones after a change that was meant.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image

from browser import Looker

STORED = Path(__file__).parent / "stored_pictures"
SQUARE = 10  # pixels of the page on a side
HEIGHT = 2400  # of the window: charts are drawn when they are in sight
FAR = 32  # of 255: how far a square's red, green or blue may be off
MOST = 0.015  # of the squares that show something: how many may be further off
LOOKS = [(width, scheme) for width in (390, 1280, 1920) for scheme in ("light", "dark")]

Pixels = npt.NDArray[np.int16]


@cache
def one_font() -> str:
    """A script that sets every text in DejaVu Sans before anything is drawn."""
    places = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    faces = [
        f"@font-face {{ font-family: pictured; font-weight: {weight}; src: url(data:font/ttf;base64,"
        f"{base64.b64encode((places / name).read_bytes()).decode()}) }}"
        for name, weight in (("DejaVuSans.ttf", "100 599"), ("DejaVuSans-Bold.ttf", "600 900"))
    ]
    style = f"{''.join(faces)} * {{ font-family: pictured !important; caret-color: transparent !important }}"
    return f"""document.addEventListener('readystatechange', () => {{
      if (document.getElementById('pictured')) return;
      const style = document.createElement('style');
      style.id = 'pictured'; style.textContent = {style!r};
      document.documentElement.append(style);
    }});"""


@contextmanager
def opened(browser: Looker, address: str) -> Iterator[Any]:
    """A page that is tall enough to be in sight as a whole."""
    with browser.look(address, height=HEIGHT, script=one_font(), bypass_csp=True) as tab:
        yield tab


def turned(tab: Any, width: int, scheme: str) -> None:
    tab.set_viewport_size({"width": width, "height": HEIGHT})
    tab.emulate_media(color_scheme=scheme)


def taken(tab: Any) -> Image.Image:
    """The page, one pixel per square, as soon as its charts are drawn and it stays as it is."""
    tab.wait_for_function("!document.querySelector('.chart:not([data-drawn]):not([hidden])')", timeout=30_000)
    tab.evaluate("document.fonts.ready")
    now = _take(tab)
    for _ in range(50 if tab.locator(".chart").count() else 0):
        before, now = now, _take(tab)
        if before == now:
            break
    return now


def _take(tab: Any) -> Image.Image:
    return Image.open(io.BytesIO(tab.screenshot(full_page=True))).convert("RGB").reduce(SQUARE)


def difference(one: Image.Image, other: Image.Image) -> float:
    """Of the squares that show something: the share without about its colour near its place in the other picture."""
    height = max(one.height, other.height)
    a, b = _pixels(one, height), _pixels(other, height)
    if a.shape != b.shape:
        return 1.0
    return float(max(_lost(x, y).sum() / max(1, _inked(x).sum()) for x, y in ((a, b), (b, a))))


def _pixels(picture: Image.Image, height: int) -> Pixels:
    """A shorter page goes on in the colour of its last corner."""
    found = np.asarray(picture.convert("RGB"), dtype=np.int16)
    return np.pad(found, ((0, height - len(found)), (0, 0), (0, 0)), mode="edge")


def _inked(a: Pixels) -> npt.NDArray[np.bool_]:
    """The squares that are not of the page's own colour, which is the one in its last corner."""
    found: npt.NDArray[np.bool_] = np.abs(a - a[-1, -1]).max(axis=2) > 4
    return found


def _lost(a: Pixels, b: Pixels) -> npt.NDArray[np.bool_]:
    rows, columns, _ = a.shape
    around = np.pad(b, ((1, 1), (1, 1), (0, 0)), mode="edge")
    near = [
        np.abs(a - around[down : down + rows, right : right + columns]).max(axis=2) <= FAR
        for down in range(3)
        for right in range(3)
    ]
    return ~np.logical_or.reduce(near)


def compared(picture: Image.Image, name: str) -> str:
    """What is wrong with a picture, in a line, or nothing; with FEDAPA_PICTURES=store it is stored instead."""
    path = STORED / f"{name}.png"
    if os.environ.get("FEDAPA_PICTURES") == "store":
        path.parent.mkdir(exist_ok=True)
        picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path, optimize=True)
        return ""
    if not path.is_file():
        return f"{name}: there is no stored picture: make pictures"
    share = difference(picture, Image.open(path))
    if share <= MOST:
        return ""
    return f"{name}: {share:.1%} of it is not as stored; look at it, then mend the page or run make pictures"
