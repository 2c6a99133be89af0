"""How figures look, and how they get into a page: colours that follow the page, ids that never collide."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedapa.data.inspect import save_figure
from fedapa.store.atomic_io import PUBLIC, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
WIDTH = 4.7  # inches: two stand side by side on a screen, one fits a phone

# Every colour is a variable of the page with a light and a dark value; files get the light one. The four strong ones
# are told apart with any kind of colour vision, and in grey by their line styles.
COLOURS = {
    "ink": ("#1f2328", "#e8eaed"),
    "muted": ("#5c636c", "#a2a9b2"),
    "grid": ("#e4e7eb", "#31363c"),
    "other": ("#b3b9c1", "#5d656f"),
    "one": ("#0067a8", "#56b4e9"),
    "two": ("#c4500a", "#ff9a52"),
    "three": ("#007d5c", "#36c99b"),
    "four": ("#9a4b86", "#e69bcd"),
}
INK, MUTED, GRID, OTHER, ONE, TWO, THREE, FOUR = (light for light, _ in COLOURS.values())
MAP = "viridis"
SPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
LEADER = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 1, "relpos": (0, 0.5)}
RC: Any = {
    "svg.fonttype": "none",  # text stays text: it can be read, searched and copied
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a name may hold dollars
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.linewidth": 0.7,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def new(height: float, width: float = WIDTH) -> Figure:
    # A Figure of its own, without pyplot: no global state, no window, nothing to close.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def as_svg(figure: Figure, name: str) -> str:
    """The figure as the text of an SVG file; it is laid out here, once for all formats."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({**RC, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    figure.set_layout_engine("none")
    return buffer.getvalue()


def inline(svg: str, name: str, description: str) -> str:
    """The figure as an element of a page: as wide as its place, in the page's colours, with ids of its own."""
    box = re.search(r"viewBox=\"[^\"]+\"", svg)
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)  # the page has its own
    body = re.sub(r"(<image\b[^>]*?) id=\"[^\"]*\"", r"\1", body)  # equal pictures have equal ids, and nobody asks
    body = re.sub(r"font(-family)?: (?P<size>[\d.]+px )?'DejaVu Sans'[^;\"]*", _page_font, body)
    body = re.sub(r"(\bid=\"|href=\"#|url\(#)", rf"\g<1>{name}-", body)
    for variable, (light, _) in COLOURS.items():
        body = body.replace(light, f"var(--{variable})")
    said = html.escape(description, quote=True)
    return f'<svg {SPACES} {box.group() if box else ""} role="img" aria-label="{said}">{body}'


def _page_font(found: re.Match[str]) -> str:
    """The page's own letters, which are no wider than those that the figure was laid out with."""
    return f"font: {found['size']}var(--font)" if found["size"] else "font-family: var(--font)"


def write(figure: Figure, svg: str, stem: Path) -> list[Path]:
    """The figure as .svg and .pdf files."""
    import matplotlib

    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "pdf")]
    write_atomically(paths[0], svg.encode(), PUBLIC)
    with matplotlib.rc_context(RC):
        save_figure(figure, paths[1])
    return paths


def spread(values: Sequence[float], gap: float) -> list[float]:
    """The nearest places to ``values`` that are at least ``gap`` apart, in the same order."""
    order = np.argsort(values, kind="stable")
    blocks: list[list[float]] = []  # [mean, size] of places that push each other
    for k, i in enumerate(order):
        blocks.append([values[i] - k * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            mean, size = blocks.pop()
            blocks[-1] = [(blocks[-1][0] * blocks[-1][1] + mean * size) / (blocks[-1][1] + size), blocks[-1][1] + size]
    flat = [mean for mean, size in blocks for _ in range(int(size))]
    found = [0.0] * len(values)
    for k, i in enumerate(order):
        found[i] = flat[k] + k * gap
    return found


def label_right(
    axes: Any, ends: Sequence[tuple[float, float]], texts: Sequence[str], colours: Sequence[str], height: float
) -> None:
    """Names beside the right edge of axes of this height in inches, each with a line to its point, none over another.

    The axes must have its limits by now.
    """
    low, high = axes.get_ylim()
    places = _within(spread([y for _, y in ends], 10 * (high - low) / (72 * height)), low, high)
    for (x, y), place, text, colour in zip(ends, places, texts, colours, strict=True):
        axes.annotate(
            text, (x, y), (1.06, (place - low) / (high - low)), textcoords="axes fraction", annotation_clip=False,
            va="center", fontsize=7.5, color=MUTED if colour == OTHER else colour,
            arrowprops={**LEADER, "color": colour},
        )  # fmt: skip


def _within(places: list[float], low: float, high: float) -> list[float]:
    """Shifted as a whole where they stick out on one side."""
    if not places:
        return places
    shift = max(low - min(places), 0.0) or min(high - max(places), 0.0)
    return [place + shift for place in places]


def signed(value: float, digits: int = 2) -> str:
    """With a plus or a true minus sign."""
    return f"{value:+.{digits}f}".replace("-", "−")
