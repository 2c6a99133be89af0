"""Profile of a table: types, missing values, classes, and warnings about suspicious columns."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.data.splits import is_date
from fedapa.data.tables import Cells, Table, as_number

IDENTIFIER = 0.95  # share of distinct values from which a column of whole numbers or texts is an identifier
PERFECT = 0.99  # how well one column alone predicts the class before it is reported as leakage
RARE = 10  # rows of a class below which neither training nor testing means much
PERSONAL = re.compile(
    r"(^|[^a-z])(name|surname|birth|dob|phone|email|mail|ssn|address|street|mrn|patient|id)($|[^a-z])"
)


class Warned(NamedTuple):
    column: str
    kind: str  # identifier, constant, leakage, missing, codes, text, date, class
    text: str


class Profile(NamedTuple):
    rows: int
    columns: list[dict[str, Any]]
    classes: dict[str, int]
    warnings: list[Warned]

    def named(self, *kinds: str) -> list[str]:
        """Columns with a warning of these kinds."""
        return list(dict.fromkeys(w.column for w in self.warnings if w.kind in kinds))


def profile(table: Table, label: str, ignore: tuple[str, ...] = ()) -> Profile:
    """Profile every column except the ignored ones."""
    labels = table.column(label, "label column")
    classes = dict(sorted(Counter(str(cell) for cell in labels if cell is not None).items()))
    names = [name for name in table.columns if name != label and name not in ignore]
    warnings = [found for name in names for found in _look(name, table.columns[name], labels)]
    warnings += [
        Warned(label, "class", f"class '{name}' has {count} rows only")
        for name, count in classes.items()
        if count < RARE
    ]
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
    return {"column": name, "type": kind, "different": len(set(filled)), "missing %": gone, "values": shown}


def _look(name: str, cells: Cells, labels: Cells) -> list[Warned]:
    filled = [cell for cell in cells if cell is not None]
    if len(set(filled)) < 2:
        value = f"always {filled[0]}" if filled else "never filled"
        return [Warned(name, "constant", f"column '{name}' is {value}")]
    odd = _odd_values(name, filled)
    if not odd and _is_identifier(name, filled):
        return [Warned(name, "identifier", f"column '{name}' identifies a row or a person: leave it out")]
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
    whole = all((v := as_number(cell)) is None or v.is_integer() for cell in filled)
    different = len(set(filled)) / len(filled)
    personal = bool(PERSONAL.search(name.lower()))
    return whole and len(filled) >= 20 and (different >= IDENTIFIER or (personal and different > 0.3))


def _odd_values(name: str, filled: list[str]) -> list[Warned]:
    numbers = [as_number(cell) for cell in filled]
    texts = [cell for cell, number in zip(filled, numbers, strict=True) if number is None]
    if texts and all(re.fullmatch(r"-?\d+,\d+", text) for text in texts):
        return [Warned(name, "text", f"column '{name}' has decimal commas ('{texts[0]}'): write points")]
    if texts and all(is_date(text) for text in texts):
        return [Warned(name, "date", f"column '{name}' holds dates: split by it (split = \"time\") or leave it out")]
    if texts and len(texts) < len(filled) / 2:
        return [Warned(name, "text", f"column '{name}' has text such as '{texts[0]}' among numbers: a missing value?")]
    different = set(filled)
    if not texts and 3 <= len(different) <= 10 and all(n is not None and n.is_integer() for n in numbers):
        return [Warned(name, "codes", f"column '{name}' has {len(different)} whole numbers: codes go under categories")]
    return []


def predictive_power(cells: Cells, labels: Cells) -> float:
    """How well one column alone predicts the class: the better of ranks (numbers) and majorities (values), 0.5 to 1."""
    both = [(cell, label) for cell, label in zip(cells, labels, strict=True) if label is not None]
    classes = sorted({label for _, label in both})
    if len(classes) < 2 or len(both) < 20:
        return 0.5
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


def _ranked(values: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> float:
    """Area under the ROC curve, whichever way round."""
    from sklearn.metrics import roc_auc_score

    if positive.all() or not positive.any():
        return 0.5
    area = float(roc_auc_score(positive, values))
    return max(area, 1 - area)
