"""One column per step size; above, the change of the loss against its bounds, below, the same for what mixing costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapa.data.inspect import save_figure
from fedapa.theory.measure import Measured

FORMATS = ("svg", "pdf", "png")
MEASURED, CORRECTED, COARSE, PRINTED = "#222222", "#2a7f4f", "#7fbf9b", "#c0392b"


def draw(found: Sequence[Measured], folder: Path) -> list[Path]:
    """theory.svg, .pdf and .png in ``folder``."""
    figure = _figure(found)
    paths = [folder / f"theory.{form}" for form in FORMATS]
    for path in paths:
        save_figure(figure, path)
    return paths


def _figure(found: Sequence[Measured]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 4.6 * len(found), 6.4), layout="constrained")
    axes = figure.subplots(2, len(found), squeeze=False, sharex=True)
    for (above, below), one in zip(axes.T, found, strict=True):
        rows = one.by_round()
        _changes(above, rows, f"η = {one.constants.eta:g}")
        _mixing(below, rows)
    figure.suptitle(f"{found[0].problem.name}: means over clients and repeats", fontsize=10)
    for k, label in enumerate(("change of the loss in a round", "part of it that mixing causes")):
        axes[k, 0].set_ylabel(label)
        axes[k, -1].legend(fontsize=8, frameon=False)
    return figure


def _changes(axes: Any, rows: Sequence[dict[str, Any]], title: str) -> None:
    """Bounds may be a hundred times what they bound: the axis is linear around zero and logarithmic beyond."""
    rounds = [row["round"] for row in rows]
    axes.axhline(0, color="#bbbbbb", linewidth=0.8)
    axes.plot(rounds, [row["corrected"] for row in rows], color=CORRECTED, label="corrected bound")
    axes.plot(rounds, [row["printed"] for row in rows], color=PRINTED, linestyle="--", label="Theorem 1 as printed")
    axes.plot(rounds, [row["change"] for row in rows], color=MEASURED, marker=".", label="measured")
    broken = [row for row in rows if row["printed_broken"]]
    if broken:
        at = [row["round"] for row in broken], [row["change"] for row in broken]
        axes.plot(*at, "x", color=PRINTED, label="above the printed bound")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_title(title, fontsize=10)
    _plain(axes)


def _mixing(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    """From nothing over many orders of magnitude; mixing may also help, which is below zero."""
    rounds = [row["round"] for row in rows]
    axes.plot(rounds, [row["corrected_mixing"] for row in rows], color=CORRECTED, label="corrected bound")
    axes.plot(rounds, [row["coarse_mixing"] for row in rows], color=COARSE, label="$L_2$ · others' share · distance")
    axes.plot(
        rounds,
        [row["printed_mixing"] for row in rows],
        color=PRINTED,
        linestyle="--",
        label="$2 L_2 η (t+1) Max^3$, printed",
    )
    axes.plot(rounds, [row["mixing"] for row in rows], color=MEASURED, marker=".", label="measured")
    axes.set_yscale("symlog", linthresh=1e-4)
    axes.set_xlabel("round")
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
