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
from fedapa.site.measures import Measure, Threshold, at_threshold
from fedapa.site.model_card import Facts, cell
from fedapa.site.silo_scores import shown

FEWEST_ROWS = 50  # of a test set, for a calibration curve
BINS = 5
MOST_LEVELS = 10  # of a column of subgroups; numbers with more are cut at the median


def with_details(
    facts: Facts,
    client: ClientData,
    p: Floats,
    threshold: Threshold | None,
    names: Sequence[str],
    rows: Table | None,
    subgroups: Sequence[str],
) -> Facts:
    """The facts with the threshold in the recall, and the paragraphs that the data allow."""
    y, details, measures = client.test.y.numpy(), list[str](), list(facts.measures)
    if threshold is not None:
        measures = at_threshold(measures, threshold.value)
        details.append(_at_threshold(y, p, threshold, names[-1]))
    if p.shape[1] == 2 and len(y) >= FEWEST_ROWS:
        details.append(calibration(y, p, names[-1]))
    if rows is not None:
        details += [by_subgroup(name, rows, y, p, measures[0]) for name in subgroups if name in rows.columns]
    own = {measure.name: measure.own(y, p) for measure in measures}
    return facts._replace(own=own, details=details, measures=measures)


def _at_threshold(y: npt.NDArray[Any], p: Floats, threshold: Threshold, name: str) -> str:
    positive, flagged = y == 1, p[:, 1] >= threshold.value
    found, alarms = int((positive & flagged).sum()), int((~positive & flagged).sum())
    held = "" if threshold.is_held_out else "; `validation = 0.2` in `[sites]` holds rows out for it"
    return (
        f"## At a threshold\n\nA row counts as {name} from a probability of {threshold.value:.3g} on, chosen on"
        f" {threshold.chosen_on}{held}. On the test rows this finds {found} of {int(positive.sum())} and flags {alarms}"
        f" of the {int((~positive).sum())} others. `fedapa predict` uses it (model.json: `threshold`);"
        " `--threshold 0.5` names the likelier class, which the accuracy above is of."
    )


def calibration(y: npt.NDArray[Any], p: Floats, name: str) -> str:
    """Predicted and observed shares of the second class, in bins of equally many rows."""
    order = np.argsort(p[:, 1], kind="stable")
    lines = ["## Calibration", "", f"Rows by predicted probability of {name}, and how many are of it:", ""]
    lines += ["| rows | predicted | observed |", "|---|---|---|"]
    for part in np.array_split(order, BINS):
        lines.append(f"| {len(part)} | {p[part, 1].mean():.3f} | {(y[part] == 1).mean():.3f} |")
    return "\n".join(lines)


def by_subgroup(name: str, rows: Table, y: npt.NDArray[Any], p: Floats, measure: Measure) -> str:
    """The primary measure for the rows of every value; numbers with many values are cut at their median."""
    lines = [f"## By {name}", "", "Of the test rows, at this site alone; few rows show little.", ""]
    lines += [f"| {cell(name)} | rows | {measure.title} |", "|---|---|---|"]
    for level, mask in _levels(rows.column(name)):
        found = measure.own(y[mask], p[mask]) if mask.sum() > 1 else None
        lines.append(f"| {cell(level)} | {int(mask.sum())} | {shown(measure, found)} |")
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
