"""Profile of a table: types, missing values, classes, and warnings about suspicious columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.data.cell_format import as_number, date_formats, is_free_text, number_format, unit_of
from fedapa.data.tables import Cells, Table

IDENTIFIER = 0.95  # share of distinct values from which a column of whole numbers or texts is an identifier
PERFECT = 0.99  # how well one column alone predicts the class before it is reported as leakage
ALIKE = 0.5  # of two neighbouring rows' squared distance to that of any two rows, below which they are alike
UPWARDS = 0.95  # share of steps that go up from which a column of whole numbers counts
MOST_CLASSES = 50  # of a label; more are a measurement
RARE = 10  # rows of a class below which neither training nor testing means much
NOTHING = re.compile(r"-1|-?9+")  # numbers that people write for a missing value
PERSONAL = re.compile(
    r"(^|[^a-z])(name|surname|birth|dob|phone|email|mail|ssn|address|street|mrn|patient|id)($|[^a-z])"
)
OWNER = re.compile(r"(^|[^a-z])(patient|person|subject|participant|family|case|mrn|user|writer|animal|id)($|[^a-z])")


class Warned(NamedTuple):
    column: str
    kind: (
        str  # identifier, constant, leakage, missing, nothing, codes, text, free text, date, class, order, group, alike
    )
    text: str


class Profile(NamedTuple):
    rows: int
    columns: list[dict[str, Any]]
    classes: dict[str, int]
    warnings: list[Warned]

    def named(self, *kinds: str) -> list[str]:
        """Columns with a warning of these kinds."""
        return list(dict.fromkeys(w.column for w in self.warnings if w.kind in kinds))


def profile(table: Table, label: str, ignore: tuple[str, ...] = (), is_number: bool = False) -> Profile:
    """Profile every column except the ignored ones; ``is_number``: the label is a measurement, not a class."""
    labels = table.column(label, "label column")
    classes = {} if is_number else dict(sorted(Counter(str(cell) for cell in labels if cell is not None).items()))
    names = [name for name in table.columns if name != label and name not in ignore]
    warnings = [found for name in names for found in _look(name, table.columns[name], labels)]
    warnings += [
        Warned(label, "class", f"class '{name}' has {count} rows only")
        for name, count in classes.items()
        if count < RARE
    ]
    if len(names) and neighbours_alike([table.columns[name] for name in names], None if is_number else labels):
        text = (
            "neighbouring rows are alike (overlapping windows, or a series?): random test rows would be nearly copies"
            " of train rows and flatter every score"
        )
        warnings.append(Warned(label, "alike", text))
    if gone := sum(cell is None for cell in labels):
        warnings.append(Warned(label, "class", f"{gone} rows have no label and would be left out"))
    return Profile(table.rows, [_describe(name, table.columns[name]) for name in names], classes, warnings)


def _describe(name: str, cells: Cells) -> dict[str, Any]:
    filled = [cell for cell in cells if cell is not None]
    values = [v for cell in filled if (v := as_number(cell)) is not None]
    numeric = bool(filled) and len(values) == len(filled)
    shown = (
        f"{min(values):g} to {max(values):g}" if numeric else ", ".join(c for c, _ in Counter(filled).most_common(3))
    )
    kind = "empty" if not filled else "number" if numeric else "text"
    gone = f"{100 * (1 - len(filled) / max(len(cells), 1)):.1f}"
    return {"column": name, "type": kind, "different": len(set(filled)), "missing %": gone, "values": shown[:60]}


def _look(name: str, cells: Cells, labels: Cells) -> list[Warned]:
    filled = [cell for cell in cells if cell is not None]
    if len(set(filled)) < 2:
        value = f"always {filled[0]}" if filled else "never filled"
        return [Warned(name, "constant", f"column '{name}' is {value}")]
    odd = _odd_values(name, filled)
    if _is_owner(name, filled):
        text = f"column '{name}' may name whoever several rows are of: keep these rows on one side, --group {name}"
        odd.append(Warned(name, "group", text))
    if all(w.kind == "group" for w in odd) and _is_identifier(name, filled):
        text = f"column '{name}' identifies a row or a person: leave it out"
        return [Warned(name, "identifier", text), *odd, *_upwards(name, filled)]
    found = [*odd]
    gone = 1 - len(filled) / len(cells)
    if gone > 0.5:
        found.append(Warned(name, "missing", f"column '{name}' is missing in {100 * gone:.0f} % of the rows"))
    power = predictive_power(cells, labels)
    if power >= PERFECT:
        text = f"column '{name}' alone predicts the class ({100 * power:.1f} %): is it known beforehand?"
        found.append(Warned(name, "leakage", text))
    return found


def _is_identifier(name: str, filled: list[str]) -> bool:
    found = [as_number(cell) for cell in filled]
    numbers = [number for number in found if number is not None]
    if len(filled) < 20 or not all(number.is_integer() for number in numbers):
        return False
    different = len(set(filled)) / len(filled)
    personal = bool(PERSONAL.search(name.lower()))
    amounts = len(numbers) == len(filled) and max(numbers) - min(numbers) > 3 * len(numbers)  # money, grams
    counts = not amounts or float(np.mean(np.diff(numbers) > 0)) >= UPWARDS
    return (different >= IDENTIFIER and (counts or personal)) or (personal and different > 0.3)


def _odd_values(name: str, filled: list[str]) -> list[Warned]:
    numbers = [as_number(cell) for cell in filled]
    texts = [cell for cell, number in zip(filled, numbers, strict=True) if number is None]
    if texts and (written := number_format(filled)) is not None:
        hint = f"--decimal '{written.decimal}'" + (f" --thousands '{written.thousands}'" if written.thousands else "")
        return [Warned(name, "text", f"column '{name}' has numbers such as '{texts[0]}': read them with {hint}")]
    if texts and (unit := unit_of(filled)):
        text = f"column '{name}' has numbers with a unit, such as '{texts[0]}': write the numbers alone"
        return [Warned(name, "text", f'{text}, and units = {{ "{name}" = "{unit}" }}')]
    if texts and len(texts) == len(filled) and date_formats(filled):
        text = f"column '{name}' holds dates: test on the latest rows with --time {name}; as an input it is left out"
        return [Warned(name, "date", f"{text}, --dates {name} makes it a number of days")]
    if texts and len(texts) == len(filled) and is_free_text(filled):
        why = "free text, which no model here reads (columns are numbers or categories)"
        return [Warned(name, "free text", f"column '{name}' holds {why}: code what matters in it as columns")]
    if texts and len(texts) < len(filled) / 2:
        return [Warned(name, "text", f"column '{name}' has text such as '{texts[0]}' among numbers: a missing value?")]
    different, found = set(filled), [] if texts else _stands_for_nothing(name, [n for n in numbers if n is not None])
    if not texts and 3 <= len(different) <= 10 and all(n is not None and n.is_integer() for n in numbers):
        text = f"column '{name}' has {len(different)} whole numbers: codes go under categories"
        found.append(Warned(name, "codes", text))
    return found


def _stands_for_nothing(name: str, numbers: list[float]) -> list[Warned]:
    """-1 or nines that several rows have, apart from all other values: below numbers that are never negative, or
    further away than these are from one another."""
    counts = Counter(numbers)
    for value in (min(counts), max(counts)):
        rest = [number for number in counts if number != value]
        gap = min((abs(number - value) for number in rest), default=0.0)
        alone = value < 0 <= min(rest, default=-1.0) or gap > max(rest, default=0.0) - min(rest, default=0.0)
        if NOTHING.fullmatch(f"{value:g}") and counts[value] >= 3 and len(rest) > 1 and alone:
            share = 100 * counts[value] / len(numbers)
            text = f"column '{name}' has {value:g} in {share:.0f} % of its rows, apart from its other values"
            return [Warned(name, "nothing", f"{text}: no value? --missing {name}={value:g}")]
    return []


def _upwards(name: str, filled: list[str]) -> list[Warned]:
    """Whole numbers that count through the file."""
    found = [number for cell in filled if (number := as_number(cell)) is not None]
    if len(found) < len(filled) or np.mean(np.diff(found) > 0) < UPWARDS:
        return []
    text = f"column '{name}' counts upwards through the file: if rows follow in time, test on the later ones"
    return [Warned(name, "order", f"{text}, --time {name}")]


def _is_owner(name: str, filled: list[str]) -> bool:
    different = len(set(filled))
    return bool(OWNER.search(name.lower())) and 3 <= different <= 0.7 * len(filled) and len(filled) >= 20


def neighbours_alike(columns: Sequence[Cells], labels: Cells | None) -> bool:
    """Whether rows resemble the row before them, measured within a class: von Neumann's ratio of every column that
    holds numbers, and their median."""
    ratios = [ratio for cells in columns if (ratio := _neighbour_ratio(cells, labels)) is not None]
    return len(ratios) >= 2 and float(np.median(ratios)) < ALIKE


def _neighbour_ratio(cells: Cells, labels: Cells | None) -> float | None:
    found = [None if cell is None else as_number(cell) for cell in cells]
    if sum(number is None for number in found) > len(found) / 10 or len({*found}) < 10 or len(found) < 50:
        return None
    values = np.array([np.nan if number is None else number for number in found])
    groups = (
        np.zeros(len(values)) if labels is None else np.unique([str(label) for label in labels], return_inverse=True)[1]
    )
    for group in np.unique(groups):
        mine = values[groups == group]
        values[groups == group] -= mine[~np.isnan(mine)].mean() if not np.isnan(mine).all() else 0.0
    together = groups[1:] == groups[:-1]
    spread = float(np.nanvar(values))
    if together.sum() < 25 or not spread > 0:
        return None
    return float(np.nanmean(np.square(np.diff(values))[together]) / (2 * spread))


def predictive_power(cells: Cells, labels: Cells) -> float:
    """How well one column alone predicts the class: the better of ranks (numbers) and majorities (values), 0.5 to 1."""
    both = [(cell, label) for cell, label in zip(cells, labels, strict=True) if label is not None]
    classes = sorted({label for _, label in both})
    if len(classes) < 2 or len(both) < 20:
        return 0.5
    if len(classes) > MOST_CLASSES:
        return _correlated(both)
    numbers = [as_number(cell) if cell is not None else None for cell, _ in both]
    known = np.array([n is not None for n in numbers])
    best = 0.5
    if known.mean() > 0.5 and all(n is not None or cell is None for n, (cell, _) in zip(numbers, both, strict=True)):
        values = np.array([n for n in numbers if n is not None])
        answers = np.array([label for _, label in both], dtype=object)[known]
        best = max((_ranked(values, answers == name) for name in classes), default=0.5)
    by_value: dict[Any, Counter[str]] = {}
    for cell, label in both:
        by_value.setdefault(cell, Counter())[label] += 1
    if len(by_value) <= max(2, len(both) // 10):
        right = sum(counts.most_common(1)[0][1] for counts in by_value.values()) / len(both)
        usual = Counter(label for _, label in both).most_common(1)[0][1] / len(both)
        best = max(best, right if usual < 0.95 else 0.5)
    return best


def _correlated(both: Sequence[tuple[Any, Any]]) -> float:
    """Of a label that is a measurement: the correlation with it, moved to 0.5 to 1."""
    pairs = [(as_number(cell), as_number(label)) for cell, label in both if cell is not None]
    found = np.array([pair for pair in pairs if None not in pair], dtype=np.float64).reshape(-1, 2)
    if len(found) < len(both) / 2 or len(found) < 20 or not (np.ptp(found, axis=0) > 0).all():
        return 0.5
    return 0.5 + 0.5 * float(abs(np.asarray(np.corrcoef(found.T))[0, 1]))


def _ranked(values: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> float:
    """Area under the ROC curve, whichever way round."""
    from sklearn.metrics import roc_auc_score

    if positive.all() or not positive.any():
        return 0.5
    area = float(roc_auc_score(positive, values))
    return max(area, 1 - area)
