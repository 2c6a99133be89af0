"""The figures of a report. Each takes a scenario and gives a Figure, or says in one line why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fedapa.analysis import pairing
from fedapa.analysis.client_similarity import (
    Index,
    clustered,
    groups,
    moved,
    off_diagonal,
    partners,
    rank_correlation,
    similarity,
)
from fedapa.analysis.run_reader import (
    LARGEST_MATRIX,
    TEST_LOSS,
    TRAIN_LOSS,
    Curve,
    Floats,
    Run,
    Scenario,
    class_names,
    label_counts,
    mean_curve,
    seed_band,
    title_of,
)
from fedapa.analysis.statistics import Ranks
from fedapa.core.scores import LOSS, Score
from fedapa.data.inspect import draw_bubbles, ticks
from fedapa.report import drawing
from fedapa.report.drawing import FOUR, GRID, INK, MAP, MUTED, ONE, OTHER, THREE, TWO

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn: TypeAlias = "Figure | str"
LANDMARKS = {"fedapa": (ONE, "-"), "local": (TWO, "--"), "fedavg": (THREE, "-.")}
CLOSE = 8.0  # points; methods that end further below the best are shown apart
MANY_CLIENTS = 40  # more are shown as a histogram, not one by one
MANY_BUBBLES = 200  # clients; of more, a bubble is smaller than a pixel
WHOLE_NAME = 12  # letters of a client's name that a figure has room for
FEW_CLIENTS = 12  # that figures name
HALF_BINS = 15  # bars of a histogram on either side of zero


class Look(NamedTuple):
    colour: str
    style: str
    width: float

    @property
    def is_strong(self) -> bool:
        return self.colour != OTHER


def looks(scenario: Scenario) -> dict[str, Look]:
    """FedAPA, Local and FedAvg stand out, and the best of the rest; with few methods all of them do."""
    labels = [row.method for row in scenario.rows]
    found = {label: Look(*LANDMARKS[label], 2.0) for label in labels if label in LANDMARKS}
    rest = sorted((label for label in labels if label not in found), key=lambda label: place(scenario, label))
    for label, colour in zip(rest, [FOUR, INK] if len(labels) < 6 else [FOUR], strict=False):
        found[label] = Look(colour, ":" if colour == INK else (0, (5, 1, 1, 1, 1, 1)), 1.7)  # type: ignore[arg-type]
    return {label: found.get(label, Look(OTHER, "-", 0.9)) for label in labels}


def last(scenario: Scenario, label: str) -> float:
    """The score of the last round, of the model that the method is evaluated by; NaN where it is not finite."""
    row = next(row for row in scenario.rows if row.method == label)
    value = row.headline.last
    return value if np.isfinite(value) else float("nan")


def place(scenario: Scenario, label: str) -> float:
    """What methods are sorted by, the best first; those without a finite score come last."""
    value = last(scenario, label)
    return float("inf") if np.isnan(value) else -scenario.score.sign * value


def focus(scenario: Scenario) -> str:
    """The method that the report looks at closely: FedAPA, else the best that is not Local."""
    labels = [row.method for row in scenario.rows]
    fedapa = [label for label in labels if label.split(" ")[0] == "fedapa"]
    rest = [label for label in labels if label != "local"] or labels
    return fedapa[0] if fedapa else min(rest, key=lambda label: place(scenario, label))


def short(label: str, most: int = 22) -> str:
    title = title_of(label)
    return title if len(title) <= most else f"{title[: most - 1]}…"


# ---------------------------------------------------------------------------------------------------------- scores


def convergence(scenario: Scenario) -> Drawn:
    """All methods, the landmarks in front, every name at the end of its line."""
    curves = {label: mean_curve(scenario.of(label)) for label in looks(scenario)}
    drawn = {label: curve for label, curve in curves.items() if np.isfinite(curve.pooled).any()}
    if not drawn:
        return "No score is a finite number."
    ends, kinds = {label: _end(curve) for label, curve in drawn.items()}, looks(scenario)

    def draw(axes: Any) -> None:
        for label, curve in drawn.items():
            band = seed_band(scenario.of(label)) if kinds[label].is_strong else None
            if band is not None:
                axes.fill_between(curve.rounds, *band, color=kinds[label].colour, alpha=0.13, linewidth=0)
            _line(axes, curve, kinds[label])
        axes.margins(x=0.01)
        _count_rounds(axes)

    values = np.concatenate([c.pooled for c in drawn.values()])
    return _panels(draw, ends, kinds, values, "round", scenario.score, with_values=True)


def _panels(
    draw: Callable[[Any], None], ends: dict[str, tuple[float, float]], kinds: dict[str, Look], values: Floats,
    below: str, score: Score, with_values: bool = False,
) -> Figure:  # fmt: skip
    """Scores with every name at the right of its point; where some end far below the rest, in two panels."""
    groups = _near_and_far(ends) if score.is_share else [list(ends)]
    heights = [max(2.8 - 1.4 * k, 0.155 * len(group) + 0.3) for k, group in enumerate(groups)]
    figure = drawing.new(sum(heights) + 0.5)
    panels = figure.subplots(len(groups), 1, sharex=True, height_ratios=heights, squeeze=False).ravel()
    for axes, group, height in zip(panels, groups, heights, strict=True):
        draw(axes)
        top = max(ends[label][1] for label in group)
        is_zoomed = len(groups) > 1 and group is groups[0]
        axes.set_ylim(*((top - 1.1 * CLOSE, top + 0.1 * CLOSE) if is_zoomed else _room(values, score)))
        digits = 1 if score.is_share else score.digits
        names = [f"{short(label)} {ends[label][1]:.{digits}f}" if with_values else short(label) for label in group]
        colours = [kinds[label].colour for label in group]
        drawing.label_right(axes, [ends[label] for label in group], names, colours, height)
    panels[-1].set_xlabel(below)
    figure.supylabel(axis_of(score), fontsize=8.5)
    return figure


def _near_and_far(ends: dict[str, tuple[float, float]]) -> list[list[str]]:
    """Where some methods end far below the rest, the rest gets a panel of its own, which looks at the top alone."""
    floor = max(y for _, y in ends.values()) - CLOSE
    near = [label for label in ends if ends[label][1] >= floor]
    far = [label for label in ends if label not in near]
    return [near, far] if far and len(near) > 2 else [list(ends)]


def _end(curve: Curve) -> tuple[float, float]:
    seen = np.flatnonzero(np.isfinite(curve.pooled))[-1]
    return float(curve.rounds[seen]), float(curve.pooled[seen])


def _line(axes: Any, curve: Curve, look: Look) -> None:
    axes.plot(
        curve.rounds, curve.pooled, color=look.colour, linestyle=look.style, linewidth=look.width,
        marker="o" if len(curve.rounds) == 1 else None, zorder=3 if look.is_strong else 2,
    )  # fmt: skip


def _count_rounds(axes: Any) -> None:
    """There is no round 1.5."""
    _count_whole(axes.xaxis)


def _count_whole(axis: Any) -> None:
    axis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def axis_of(score: Score) -> str:
    return f"test {score.name}{f', {score.unit}' if score.unit else ''}"


def _room(values: Floats, score: Score) -> tuple[float, float]:
    """From just beside where most of the action is to just beyond the best."""
    seen = values[np.isfinite(values)]
    low, high = float(np.percentile(seen, 2, method="lower")), float(seen.max())
    if score.better == "lower":
        low, high = float(seen.min()), float(np.percentile(seen, 98, method="higher"))
    margin = max(0.01 * score.scale if score.is_share else 1e-9, 0.05 * (high - low))
    return max(score.low, low - margin), min(score.high, high + margin)


class Stroke(NamedTuple):
    """One line of a small panel: which curve, how it is drawn and what the legend calls it."""

    curve: str
    colour: str
    style: Any
    word: str


def phases(scenario: Scenario) -> Drawn:
    """Every method in a panel of its own: before and after local training, Local behind them."""
    labels = [label for label in looks(scenario) if np.isfinite(mean_curve(scenario.of(label)).pooled).any()]
    if not labels:
        return "No score is a finite number."
    strokes = (Stroke("after", ONE, "-", "after local training"), Stroke("before", TWO, (0, (3, 1.2)), "before"))
    return _small_panels(scenario, labels, strokes, scenario.score, axis_of(scenario.score), "after")


def losses(scenario: Scenario) -> Drawn:
    """Every method in a panel of its own: the loss of the batches that it trained on, and that on test data."""
    known = {label: mean_curve(scenario.of(label), TRAIN_LOSS) for label in looks(scenario)}
    labels = [label for label, curve in known.items() if np.isfinite(curve.pooled).any()]
    if not labels:
        return "No train loss was recorded."
    strokes = (Stroke(TEST_LOSS, ONE, "-", "test loss"), Stroke(TRAIN_LOSS, TWO, (0, (3, 1.2)), "train loss"))
    return _small_panels(scenario, labels, strokes, LOSS, "loss")


def _small_panels(
    scenario: Scenario, labels: Sequence[str], strokes: Sequence[Stroke], score: Score, beside: str, behind: str = ""
) -> Figure:
    """Panels of methods, the best first, with these lines; ``behind`` is the curve of Local that lies behind them."""
    from matplotlib.lines import Line2D

    labels = sorted(labels, key=lambda label: place(scenario, label))
    columns = 3
    rows = -(-len(labels) // columns)
    figure = drawing.new(0.92 * rows + 0.75)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    local = mean_curve(scenario.of("local"), behind) if behind and scenario.of("local") else None
    everything = [local.pooled] if local else []
    for axes, label in zip(panels, labels, strict=False):
        if local:
            axes.plot(local.rounds, local.pooled, color=OTHER, linewidth=2.2)
        for stroke in reversed(strokes):
            curve = mean_curve(scenario.of(label), stroke.curve)
            everything.append(curve.pooled)
            axes.plot(curve.rounds, curve.pooled, color=stroke.colour, linestyle=stroke.style, linewidth=1.2)
        axes.set_title(short(label, 17), fontsize=7.5, loc="left", pad=2)
        axes.tick_params(labelsize=7, length=2)
    for axes in panels[len(labels) :]:
        axes.set_axis_off()
    panels[0].set_ylim(*_room(np.concatenate(everything), score))
    _count_rounds(panels[0])
    figure.supxlabel("round", fontsize=8)
    figure.supylabel(beside, fontsize=8)
    keys = [Line2D([], [], color=stroke.colour, linestyle=stroke.style) for stroke in strokes]
    words = [stroke.word for stroke in strokes]
    if local:
        keys, words = [*keys, Line2D([], [], color=OTHER, linewidth=2.2)], [*words, "Local"]
    figure.legend(keys, words, loc="outside upper center", ncols=3)
    return figure


# ------------------------------------------------------------------------------------------------------------ gains


def gains_of(scenario: Scenario, label: str) -> list[tuple[Run, Floats]]:
    """How much better off every client is than with Local, for every seed with a Local run; NaN without tests, or if
    it is malicious.

    In the last round that both runs evaluated.
    """
    everyone = [run.result for run in scenario.runs]
    found = []
    for run in scenario.of(label):
        for mine, local in pairing.pairs([run.result], everyone, "local"):
            found.append((run, np.where(run.result.honest, pairing.gaps(mine, local), np.nan)))
    return found


def points(score: Score) -> str:
    """What gains are counted in, the better to the right."""
    return "percentage points" if score.unit == "%" else f"{'less' if score.better == 'lower' else 'more'} {score.name}"


def gains(scenario: Scenario) -> Drawn:
    """One row per method, one dot per client and seed."""
    every = {label: gains_of(scenario, label) for label in looks(scenario) if label != "local"}
    pooled = {label: np.concatenate([g for _, g in pairs]) for label, pairs in every.items() if pairs}
    pooled = {label: values[np.isfinite(values)] for label, values in pooled.items()}
    pooled = {label: values for label, values in pooled.items() if len(values)}
    if not pooled:
        return "No run of Local on the same allocation to compare with (add local to the methods)."
    order = sorted(pooled, key=lambda label: float(pooled[label].mean()))
    figure = drawing.new(0.21 * len(order) + 0.95)
    axes = figure.add_subplot()
    for k, label in enumerate(order):
        values = pooled[label]
        colours = np.where(values > 0, ONE, np.where(values < 0, TWO, MUTED))
        axes.scatter(values, np.full(len(values), k), s=11, c=colours, alpha=0.55, linewidths=0)
        axes.plot([values.mean()] * 2, [k - 0.36, k + 0.36], color=INK, linewidth=1.6, solid_capstyle="butt")
        better, worse = int((values > 0).sum()), int((values < 0).sum())
        axes.annotate(
            f"{better}▲ {worse}▼", (1.02, k), xycoords=axes.get_yaxis_transform(), va="center", fontsize=7.5, color=INK,
            annotation_clip=False,
        )  # fmt: skip
    axes.axvline(0, color=INK, linewidth=0.8)
    reach = float(np.abs(np.concatenate(list(pooled.values()))).max())
    if scenario.score.is_share:
        reach = max(5.0, reach)
        axes.set_xscale("symlog", linthresh=10, linscale=1.0)
        marks = [m for m in (-50, -10, -5, 0, 5, 10, 50) if abs(m) <= reach]
        axes.set_xticks(marks, [drawing.signed(m, 0) if m else "0" for m in marks])
        axes.set_xticks([], minor=True)
    axes.set_xlim(-1.2 * reach, 1.2 * reach)
    axes.set_yticks(range(len(order)), [short(label) for label in order])
    axes.set(xlabel=f"gain over Local, {points(scenario.score)}", ylim=(-0.7, len(order) - 0.3))
    axes.grid(visible=True, axis="y")
    return figure


def who(scenario: Scenario) -> Drawn:
    """The clients of one method from the largest gain to the largest loss, with their sizes."""
    label = focus(scenario)
    pairs = gains_of(scenario, label)
    if not pairs or label == "local":
        return "No run of Local on the same allocation to compare with (add local to the methods)."
    several = len(pairs) > 1
    entries = [
        (float(gain), f"{client.name}{f' (seed {run.result.seed})' if several else ''}", client.train)
        for run, values in pairs
        for gain, client in zip(values, run.clients, strict=False)
        if np.isfinite(gain)
    ]
    if not entries:
        return "No client has test samples."
    entries.sort(key=lambda entry: entry[0])
    if len(entries) > MANY_CLIENTS:
        return _gain_histogram([entry[0] for entry in entries], label, scenario.score)
    figure = drawing.new(min(max(0.15 * len(entries) + 0.8, 2.0), 9.0))
    axes = figure.add_subplot()
    values, places = [entry[0] for entry in entries], range(len(entries))
    axes.barh(places, values, height=0.75, color=[ONE if value >= 0 else TWO for value in values])
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel=f"gain of {short(label)} over Local, {points(scenario.score)}", ylim=(-0.7, len(entries) - 0.3))
    texts = [f"{name[:18]} · {train:,}" for _, name, train in entries]
    axes.set_yticks(places, texts, fontsize=7 if len(entries) <= 30 else 5.5)
    axes.set_ylabel("client · train samples")
    axes.grid(visible=False, axis="y")
    return figure


def _gain_histogram(values: Sequence[float], label: str, score: Score) -> Figure:
    """How the gains of many clients are spread; zero is the edge of two bars and those who stay equal have their own.

    So a colour means gain, loss or neither.
    """
    moved = [value for value in values if value]
    equal = len(values) - len(moved)
    reach = max(1e-9, float(np.abs(values).max()))
    edges = np.linspace(-reach, reach, 2 * HALF_BINS + 1)
    figure = drawing.new(2.6)
    axes = figure.add_subplot()
    counts, _ = np.histogram(moved, edges)
    centres, width = (edges[:-1] + edges[1:]) / 2, edges[1] - edges[0]
    axes.bar(centres, counts, width=0.92 * width, color=[ONE if centre > 0 else TWO for centre in centres])
    if equal:
        axes.bar(0, equal, width=0.4 * width, color=OTHER)
        axes.annotate(  # above all bars, which would cover it
            f"{equal:,} equal", (0, 1), (5, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
            va="top", fontsize=8,
        )  # fmt: skip
        axes.set_ylim(0, 1.15 * max(equal, *counts))
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel=f"gain of {short(label)} over Local, {points(score)}", ylabel=f"of {len(values):,} clients")
    _count_whole(axes.yaxis)
    return figure


# ------------------------------------------------------------------------------------------------------------- cost


def bytes_score(scenario: Scenario) -> Drawn:
    """What a round costs one client on the wire, and what it gets for it."""
    kinds = looks(scenario)
    rows = [row for row in scenario.rows if np.isfinite(last(scenario, row.method))]
    if not rows:
        return "No score is a finite number."
    ends = {row.method: (row.kib, last(scenario, row.method)) for row in rows}
    positive = [x for x, _ in ends.values() if x > 0] or [1.0]
    small, large = min(positive) / 2, max(positive) * 2  # below the smallest the axis runs straight to zero
    ticks = [0.0, *_ticks(small, large)]

    def draw(axes: Any) -> None:
        for label, (x, y) in ends.items():
            strong = kinds[label].is_strong
            axes.scatter(x, y, s=34 if strong else 20, color=kinds[label].colour, zorder=3 if strong else 2)
        axes.set_xscale("symlog", linthresh=small, linscale=0.4)
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlim(-0.2 * small, large)

    values = np.array([y for _, y in ends.values()])
    return _panels(draw, ends, kinds, values, "KiB down and up, per client and round", scenario.score)


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two numbers; with 2 and 5 times them where that leaves fewer than three."""
    powers = [10.0**k for k in range(-3, 9) if low <= 10.0**k <= high]
    return (
        powers
        if len(powers) > 2
        else [n * 10.0**k for k in range(-3, 9) for n in (1, 2, 5) if low <= n * 10.0**k <= high]
    )


def time_split(scenario: Scenario) -> Drawn:
    """Seconds of the clock in one round, by what they went into."""
    labels = [row.method for row in scenario.rows]
    spent = {label: np.mean([list(run.spent) for run in scenario.of(label)], axis=0) for label in labels}
    if not any(np.isfinite(parts).all() and parts.sum() > 0 for parts in spent.values()):
        return "These runs recorded no times."
    order = sorted(labels, key=lambda label: -float(spent[label].sum()))
    figure = drawing.new(0.19 * len(order) + 1.1)
    axes, left = figure.add_subplot(), np.zeros(len(order))
    for part, (name, colour) in enumerate((("training", ONE), ("receiving, evaluating", OTHER), ("server", TWO))):
        widths = np.array([spent[label][part] for label in order])
        axes.barh(range(len(order)), widths, left=left, height=0.72, color=colour, label=name)
        left += widths
    for k, whole in enumerate(left):
        axes.annotate(f"{whole:.2g} s", (whole, k), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.set_yticks(range(len(order)), [short(label) for label in order])
    axes.set(xlabel="seconds per round", ylim=(-0.7, len(order) - 0.3), xlim=(0, float(left.max()) * 1.14 or 1))
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


# ------------------------------------------------------------------------------------------------ clients and weights


def partition(scenario: Scenario) -> Drawn:
    """Clients times classes; the area of a bubble is the number of train samples."""
    counts = label_counts(scenario.first.clients)
    if counts is None:
        return _sizes(scenario.first)
    if len(counts) > MANY_BUBBLES:
        return _holdings(counts)
    names = class_names(scenario.first)
    figure = drawing.new(float(np.clip(0.23 * len(names) + 1.1, 2.6, 8.5)))
    axes = figure.add_subplot()
    draw_bubbles(axes, counts, [name[:14] for name in names], ONE)
    axes.tick_params(labelsize=7)
    _name_clients(axes, scenario.first)
    return figure


def _sizes(run: Run) -> Drawn:
    """Of clients without classes: how many train samples they have."""
    samples = [client.train for client in run.clients]
    if not any(samples):
        return "These runs did not record what their clients hold."
    figure = drawing.new(2.2)
    axes = figure.add_subplot()
    if len(samples) > MANY_CLIENTS:
        axes.hist(samples, bins=20, color=ONE)
        axes.set(xlabel="train samples", ylabel=f"of {len(samples):,} clients")
    else:
        axes.bar(range(len(samples)), samples, color=ONE)
        axes.set(xlabel="client", ylabel="train samples")
    _count_whole(axes.xaxis)
    _count_whole(axes.yaxis)
    _name_clients(axes, run)
    return figure


def _name_clients(axes: Any, run: Run) -> None:
    """Names instead of numbers, of sites that have some and are few."""
    names = [client.name for client in run.clients]
    if len(names) <= FEW_CLIENTS and not all(name.isdigit() for name in names):
        axes.set_xticks(range(len(names)), distinct(names), rotation=30, ha="right")


def _holdings(counts: Index) -> Figure:
    """Of many clients: how many train samples and how many classes they have."""
    figure = drawing.new(2.6)
    left, right = figure.subplots(1, 2, sharey=False)
    left.hist(counts.sum(1), bins=20, color=ONE)
    left.set(xlabel="train samples", ylabel=f"of {len(counts):,} clients")
    held = (counts > 0).sum(1)
    right.bar(*np.unique(held, return_counts=True), color=ONE)
    right.set(xlabel="classes")
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        _count_whole(axis)
    return figure


def watched(scenario: Scenario) -> Run | None:
    """The run whose weights are drawn: the one in focus, else the first method that shows its weights."""
    candidates = [*scenario.of(focus(scenario)), *scenario.runs]
    return next((run for run in candidates if run.matrices), None)


def _unwatched(scenario: Scenario, otherwise: str) -> str:
    """Why there are no weights to draw."""
    if all(len(run.clients) <= LARGEST_MATRIX for run in scenario.runs):
        return otherwise
    return f"Weights between more than {LARGEST_MATRIX} clients are not drawn here; `fedapa watch` sums them up."


def weights(scenario: Scenario) -> Drawn:
    """A at a few rounds, and beside it how similar the clients' labels are; all in the same order of clients."""
    from matplotlib import ticker

    run = watched(scenario)
    if run is None:
        return _unwatched(scenario, "No run recorded a matrix of weights (FedAPA and FedAMP do).")
    counts = label_counts(run.clients)
    similar = None if counts is None else similarity(counts)
    order = np.arange(len(run.clients)) if similar is None else clustered(similar)
    shown = [run.matrices[k] for k in moments(len(run.matrices))]
    top = max(float(np.percentile(off_diagonal(A), 99.5)) for _, A in shown) or 1.0
    rows = -(-(len(shown) + (similar is not None)) // 2)
    figure = drawing.new(2.25 * rows + 0.6)
    panels = figure.subplots(rows, 2, squeeze=False).ravel()
    for axes, (t, A) in zip(panels, shown, strict=False):
        image = _heat(axes, A, order, run, top)
        axes.set_title(f"round {t} (own {np.mean(np.diag(A)):.2f})", loc="left")
    used = list(panels[: len(shown)])
    bar: dict[str, Any] = {"location": "bottom", "shrink": 0.6, "aspect": 40, "pad": 0.02}
    bar["ticks"] = ticker.MaxNLocator(4)
    figure.colorbar(image, ax=used, label="weight of the column's client in the row's mixture", **bar)
    if similar is not None:
        axes = panels[len(shown)]
        image = _heat(axes, similar, order, run, 1.0)
        axes.set_title("labels in common", loc="left")
        figure.colorbar(image, ax=axes, location="right", shrink=0.8, aspect=20)
    for axes in panels[len(shown) + (similar is not None) :]:
        axes.set_axis_off()
    return figure


def distinct(names: Sequence[str], most: int = 6) -> list[str]:
    """Short names whole, else few letters of every name: the first, or the last where many begin alike."""
    if max(map(len, names), default=0) <= WHOLE_NAME:
        return list(names)
    first = [name[:most] for name in names]
    if len(set(first)) == len(set(names)):
        return first
    return [name if len(name) <= most else f"…{name[-most:]}" for name in names]


def _heat(axes: Any, matrix: Floats, order: Index, run: Run, top: float) -> Any:
    off = np.ma.masked_array(matrix, np.eye(len(matrix), dtype=bool))[np.ix_(order, order)]
    image = axes.imshow(off, cmap=MAP, vmin=0, vmax=top, interpolation="none", aspect="equal")
    marks = ticks(len(order))
    names = distinct([run.clients[order[k]].name for k in marks])
    axes.set_xticks(marks, names, rotation=90, fontsize=6.2)
    axes.set_yticks(marks, names, fontsize=6.2)
    axes.tick_params(length=0, pad=1.5)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return image


def moments(n: int, most: int = 5) -> list[int]:
    """The first and the last of n rounds and a few between, denser at the start where weights move most."""
    return sorted({round(float(k)) - 1 for k in np.geomspace(1, n, min(n, most))})


def course(scenario: Scenario) -> Drawn:
    """Round by round: how much a client keeps of its own, and whether weight follows similar labels."""
    run = watched(scenario)
    if run is None or len(run.matrices) < 2:
        return _unwatched(scenario, "No run recorded its weights over several rounds.")
    counts = label_counts(run.clients)
    rounds = [t for t, _ in run.matrices]
    own = np.array([np.diag(A) for _, A in run.matrices])
    figure = drawing.new(3.0 if counts is not None else 1.9)
    top, *rest = figure.subplots(1 if counts is None else 2, 1, sharex=True, squeeze=False).ravel()
    top.fill_between(rounds, own.min(1), own.max(1), color=ONE, alpha=0.15, linewidth=0)
    top.plot(rounds, own.mean(1), color=ONE, linewidth=1.8)
    top.set(ylabel="own weight", ylim=(0, None))
    if counts is not None:
        similar = off_diagonal(similarity(counts))
        follows = [rank_correlation(off_diagonal(A), similar) for _, A in run.matrices]
        rest[0].axhline(0, color=MUTED, linewidth=0.8)
        rest[0].plot(rounds, follows, color=THREE, linewidth=1.8)
        rest[0].set(ylabel="rank correlation", ylim=(min(-0.1, np.nanmin([*follows, 0]) - 0.05), 1))
    figure.axes[-1].set_xlabel("round")
    _count_rounds(figure.axes[-1])
    return figure


def mixing(scenario: Scenario) -> list[Run]:
    """The first run of every method that shows its weights."""
    first = {run.label: run for run in reversed(scenario.runs) if run.matrices}
    return [first[row.method] for row in scenario.rows if row.method in first]


def collaborators(scenario: Scenario) -> Drawn:
    """Round by round: with how many others a client works, and how much of A moves; the weight on malicious ones."""
    runs = [run for run in mixing(scenario) if len(run.matrices) > 1]
    if not runs:
        return _unwatched(scenario, "No run recorded its weights over several rounds.")
    attacked = any(run.result.attacker_weight for run in runs)
    kinds, several = looks(scenario), len(runs) > 1
    figure = drawing.new(2.9 + 1.2 * attacked + 0.18 * several)
    panels = figure.subplots(2 + attacked, 1, sharex=True)
    for run in runs:
        look, rounds = kinds[run.label], [t for t, _ in run.matrices]
        counted = np.array([partners(A) for _, A in run.matrices])
        style = {"color": look.colour, "linestyle": look.style, "linewidth": look.width}
        if not several:
            panels[0].fill_between(rounds, counted.min(1), counted.max(1), color=look.colour, alpha=0.15, linewidth=0)
        panels[0].plot(rounds, counted.mean(1), **style, label=short(run.label))
        panels[1].plot(rounds[1:], [100 * change for change in changes(run)], **style)
        if run.result.attacker_weight:
            panels[2].plot(rounds, 100 * np.array(run.result.attacker_weight), **style)
    panels[0].set(ylabel="effective others", ylim=(0, None))
    panels[1].set(ylabel="weight moved, %", ylim=(0, min(panels[1].get_ylim()[1], 100.0)))  # more: a run that diverged
    if attacked:
        panels[2].set(ylabel="for malicious, %", ylim=(0, None))
    panels[-1].set_xlabel("round")
    _count_rounds(panels[-1])
    if several:
        figure.legend(loc="outside upper center", ncols=3)
    return figure


def found_groups(scenario: Scenario) -> Drawn:
    """Round by round: how well every method found the planted groups; mean over seeds."""
    labels = [row.method for row in scenario.rows if any(run.result.groups_found for run in scenario.of(row.method))]
    if not labels:
        return "No groups were planted in these allocations, or no method shows weights or clusters."
    kinds = looks(scenario)
    figure = drawing.new(2.4 + 0.06 * len(labels))
    axes, ends = figure.add_subplot(), []
    for label in labels:
        courses = [run.result.groups_found for run in scenario.of(label) if run.result.groups_found]
        mean = np.mean([course[: min(map(len, courses))] for course in courses], axis=0)
        look, rounds = kinds[label], np.arange(1, len(mean) + 1)
        axes.plot(rounds, mean, color=look.colour, linestyle=look.style, linewidth=look.width)
        ends.append((float(rounds[-1]), float(mean[-1])))
    axes.set(xlabel="round", ylabel="adjusted Rand index", ylim=(min(-0.05, min(y for _, y in ends) - 0.05), 1.05))
    _count_rounds(axes)
    names = [f"{short(label)} {y:.2f}" for label, (_, y) in zip(labels, ends, strict=True)]
    drawing.label_right(axes, ends, names, [kinds[label].colour for label in labels], 2.4)
    return figure


def changes(run: Run) -> list[float]:
    """How much of A moved since the round before."""
    return [moved(before, after) for (_, before), (_, after) in pairwise(run.matrices)]


class Ties(NamedTuple):
    """Who works with whom at the end of a run."""

    run: Run
    round: int
    own: float
    partners: Floats
    moved: float | None
    groups: list[list[str]]


def ties(scenario: Scenario) -> list[Ties]:
    found = []
    for run in mixing(scenario):
        t, A = run.matrices[-1]
        named = [[run.clients[i].name for i in members] for members in groups(A)]
        change = changes(run)[-1] if len(run.matrices) > 1 else None
        found.append(Ties(run, t, float(np.diag(A).mean()), partners(A), change, named))
    return found


# --------------------------------------------------------------------------------------------------- over scenarios


def mean_ranks(found: Ranks) -> Figure:
    """Average rank over scenarios, best on top; a bar joins methods that are not told apart."""
    ranks = found.mean_rank
    order = sorted(ranks, key=lambda label: -ranks[label])
    figure = drawing.new(0.19 * len(order) + 0.8)
    axes = figure.add_subplot()
    for k, group in enumerate(found.alike()):
        ends = [order.index(group[-1]) - 0.25, order.index(group[0]) + 0.25]
        axes.plot([len(order) + 1.2 + 0.45 * k] * 2, ends, color=INK, linewidth=2, clip_on=False)
    for k, label in enumerate(order):
        colour = LANDMARKS.get(label, (MUTED, "-"))[0]
        axes.plot([1, ranks[label]], [k, k], color=GRID, linewidth=1)
        axes.scatter(ranks[label], k, s=30, color=colour, zorder=3)
        axes.annotate(
            f"{ranks[label]:.1f}", (ranks[label], k), (6, 0), textcoords="offset points", va="center", fontsize=7.5
        )
    axes.set_yticks(range(len(order)), [short(label) for label in order])
    right = len(order) + 1.2 + 0.45 * len(found.alike())
    axes.set(xlabel="mean rank over scenarios (1 is best)", xlim=(0.7, right), ylim=(-0.7, len(order) - 0.3))
    _count_whole(axes.xaxis)
    axes.grid(visible=False, axis="y")
    return figure
