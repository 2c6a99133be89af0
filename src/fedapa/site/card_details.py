"""Details of a model card, made at the site and staying there: threshold, calibration, and scores by subgroup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.analysis.statistics import Floats
from fedapa.data.cell_format import as_number
from fedapa.data.federated import ClientData
from fedapa.data.tables import Cells, Mask, Table
from fedapa.site.measures import RECALL, Measure, at_threshold, threshold_of
from fedapa.site.model_card import Facts
from fedapa.site.silo_scores import shown

FEWEST_ROWS = 50  # of a test set, for a calibration curve
BINS = 5
MOST_LEVELS = 10  # of a column of subgroups; numbers with more are cut at the median


def with_details(
    facts: Facts, client: ClientData, seen: Floats, p: Floats, rows: Table | None, subgroups: Sequence[str]
) -> Facts:
    """The facts with the threshold in the recall, and the paragraphs that the data allow."""
    y, details, measures = client.test.y.numpy(), list[str](), list(facts.measures)
    if p.shape[1] == 2 and any(measure.name == RECALL.name for measure in measures):
        threshold = threshold_of(client.train.y.numpy(), seen)
        measures = at_threshold(measures, threshold)
        details.append(_at_threshold(y, p, threshold))
    if p.shape[1] == 2 and len(y) >= FEWEST_ROWS:
        details.append(calibration(y, p))
    if rows is not None:
        details += [by_subgroup(name, rows, y, p, measures[0]) for name in subgroups if name in rows.columns]
    own = {measure.name: measure.own(y, p) for measure in measures}
    return facts._replace(own=own, details=details, measures=measures)


def _at_threshold(y: npt.NDArray[Any], p: Floats, threshold: float) -> str:
    positive, flagged = y == 1, p[:, 1] >= threshold
    found, alarms = int((positive & flagged).sum()), int((~positive & flagged).sum())
    return (
        f"## At a threshold\n\nRows count as the second class from a probability of {threshold:.3g} on, chosen on train"
        f" rows. On the test rows this finds {found} of {int(positive.sum())} and flags {alarms} of the"
        f" {int((~positive).sum())} others. `fedapa predict` names the likelier class,"
        " from 0.5 on: to use this threshold, or another, compare the probability that it gives with it."
    )


def calibration(y: npt.NDArray[Any], p: Floats) -> str:
    """Predicted and observed shares of the second class, in bins of equally many rows."""
    order = np.argsort(p[:, 1], kind="stable")
    lines = ["## Calibration", "", "Rows by predicted probability of the second class, and how many are of it:", ""]
    lines += ["| rows | predicted | observed |", "|---|---|---|"]
    for part in np.array_split(order, BINS):
        lines.append(f"| {len(part)} | {p[part, 1].mean():.3f} | {(y[part] == 1).mean():.3f} |")
    return "\n".join(lines)


def by_subgroup(name: str, rows: Table, y: npt.NDArray[Any], p: Floats, measure: Measure) -> str:
    """The primary measure for the rows of every value; numbers with many values are cut at their median."""
    lines = [f"## By {name}", "", "Of the test rows, at this site alone; few rows show little.", ""]
    lines += [f"| {name} | rows | {measure.title} |", "|---|---|---|"]
    for level, mask in _levels(rows.column(name)):
        found = measure.own(y[mask], p[mask]) if mask.sum() > 1 else None
        lines.append(f"| {level} | {int(mask.sum())} | {shown(measure, found)} |")
    return "\n".join(lines)


def _levels(cells: Cells) -> list[tuple[str, Mask]]:
    known = sorted({cell for cell in cells if cell is not None})
    missing = [("missing", np.array([cell is None for cell in cells]))]
    values = np.array([np.nan if cell is None or (n := as_number(cell)) is None else n for cell in cells])
    if len(known) > MOST_LEVELS and np.isfinite(values).sum() > len(cells) / 2:
        middle = float(np.nanmedian(values))
        found = [(f"up to {middle:g}", values <= middle), (f"above {middle:g}", values > middle)]
    else:
        found = [(level, np.array([cell == level for cell in cells])) for level in known[:50]]
    return [(level, mask) for level, mask in [*found, *missing] if mask.any()]
