"""Write docs/picture.svg, the picture of the README, from a run that it makes: python docs/make_picture.py

Forty clients with a few handwritten digits each, half of them of one kind, half of another; two minutes. Left: whose
models a client's own model is mixed from. Right: how much better every client is served than by training alone.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np

import fedapa as fa
from fedapa.analysis.client_similarity import clustered, off_diagonal, similarity
from fedapa.analysis.run_reader import Scenario, gather, label_counts, title_of
from fedapa.report import drawing, figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
METHODS = ("local", "fedavg", "fedper", "fedapa", "fedapa-exact")
MIXER = "fedapa-exact"


def make_runs(folder: Path, clients: int = 40, rounds: int = 30, methods: Sequence[str] = METHODS) -> Scenario:
    """Digits in two groups of clients with the same five classes, once with every method."""
    for name in methods:
        data = fa.load("digits", "pathological", clients, classes_per_client=5, min_train=10, min_test=2)
        fa.fit(name, data, "cnn8", rounds, lr=0.02, batch=8, out=folder / name)
    (scenario,) = gather(folder).scenarios
    return scenario


def draw(scenario: Scenario) -> Figure:
    figure = drawing.new(3.0, 8.4)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.35))
    _mixture(left, scenario)
    _gains(right, scenario)
    return figure


def _mixture(axes: Axes, scenario: Scenario) -> None:
    """The last matrix of weights without its diagonal, clients of the same digits side by side."""
    (run,) = scenario.of(MIXER)
    A, counts = run.matrices[-1][1], label_counts(run.clients)
    assert counts is not None
    order = clustered(similarity(counts))
    shown = np.ma.masked_array(A, np.eye(len(A), dtype=bool))[np.ix_(order, order)]
    axes.imshow(shown, cmap="Blues", vmin=0, vmax=float(np.percentile(off_diagonal(A), 97)), interpolation="none")
    marks = range(len(order))
    names = ["".join(str(c) for c in np.flatnonzero(counts[i])) for i in order]  # the digits that it has
    shown_names = [name if k % 4 == 0 else "" for k, name in enumerate(names)]
    axes.set_xticks(marks, shown_names, rotation=90, fontsize=6)
    axes.set_yticks(marks, shown_names, fontsize=6)
    axes.tick_params(length=0, pad=1.5)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="client, by its digits", ylabel="client, by its digits")
    axes.set_title(f"Who learns from whom ({title_of(MIXER)})", loc="left", fontweight="bold")


def _gains(axes: Axes, scenario: Scenario) -> None:
    """A dot per client, a bar for the mean, best method on top; clients with equal gains are drawn side by side."""
    methods = [run.label for run in scenario.runs if run.label != "local"]
    gains = {label: np.concatenate([found for _, found in figures.gains_of(scenario, label)]) for label in methods}
    order = sorted(gains, key=lambda label: float(gains[label].mean()))
    for k, label in enumerate(order):
        values = gains[label]
        colours = np.where(values > 0, drawing.ONE, np.where(values < 0, drawing.TWO, drawing.MUTED))
        axes.scatter(values, k + _beside(values), s=12, c=colours, linewidths=0)
        axes.plot([values.mean()] * 2, [k - 0.36, k + 0.36], color=drawing.INK, linewidth=1.6)
        told = f"{drawing.signed(float(values.mean()), 1)}   {int((values > 0).sum())}▲ {int((values < 0).sum())}▼"
        axes.annotate(
            told, (1.02, k), xycoords=axes.get_yaxis_transform(), va="center", fontsize=8, annotation_clip=False
        )
    axes.axvline(0, color=drawing.INK, linewidth=0.8)
    reach = float(np.abs(np.concatenate(list(gains.values()))).max())
    axes.set_xscale("symlog", linthresh=10)
    marks = [mark for mark in (-50, -10, -5, 0, 5, 10, 50) if abs(mark) <= 1.2 * reach]
    axes.set_xticks(marks, [drawing.signed(mark, 0) if mark else "0" for mark in marks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(order)), [title_of(label) for label in order])
    axes.set(xlabel="percentage points more than Local, per client", ylim=(-0.6, len(order) - 0.4))
    axes.grid(visible=False, axis="y")
    axes.set_title("Who gains over training alone", loc="left", fontweight="bold")


def _beside(values: np.ndarray) -> np.ndarray:
    """How far up or down a dot is moved so that equal values do not hide each other."""
    places = np.zeros(len(values))
    for value in np.unique(values):
        same = np.flatnonzero(values == value)
        places[same] = (np.arange(len(same)) - (len(same) - 1) / 2) * min(0.1, 0.7 / len(same))
    return places


def as_picture(figure: Figure) -> str:
    """The figure as an SVG file of its own, in the colours of a light or a dark page."""
    body = drawing.inline(drawing.as_svg(figure, "picture"), "picture", "Who learns from whom, who gains over Local")
    start = body.index(">") + 1
    light = " ".join(f"--{name}: {colours[0]};" for name, colours in drawing.COLOURS.items())
    dark = " ".join(f"--{name}: {colours[1]};" for name, colours in drawing.COLOURS.items())
    font = "--font: system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif;"
    style = f"<style>:root {{ {light} {font} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}</style>"
    return f"{body[:start]}\n{style}\n{body[start:].strip()}\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context(drawing.RC):
        figure = draw(make_runs(Path(folder)))
        (HERE / "picture.svg").write_text(as_picture(figure), encoding="utf-8")
    print(f"the picture is in {HERE / 'picture.svg'}", file=sys.stderr)


if __name__ == "__main__":
    main()
