"""A comparison for other programs: CSV with every number, a LaTeX table for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]
SPECIAL = {char: f"\\{char}" for char in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def as_csv(rows: Rows) -> str:
    """One line per scenario and method; gain becomes three columns."""
    flat = [_flat(row) for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(row["gain"], list | None):
        return row
    gain = row["gain"] or [None, None, None]
    counted = dict(zip(("clients_gain", "clients_equal", "clients_lose"), gain, strict=True))
    return {key: value for key, value in row.items() if key != "gain"} | counted


def as_latex(rows: Rows) -> str:
    """Methods by scenarios, last round of the model that a method is evaluated by, ± over seeds; the best is bold."""
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    found = {(row["scenario"], row["method"]): row for row in rows}
    best = {s: max(_value(row) for row in rows if row["scenario"] == s) for s in scenarios}
    lines = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * len(scenarios)}}}",
        r"\toprule",
        _line(["Method", *(_escaped(s or "accuracy (%)") for s in scenarios)]),
        r"\midrule",
        *(_line([_escaped(m), *(_entry(found.get((s, m)), best[s]) for s in scenarios)]) for m in methods),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _value(row: dict[str, Any]) -> float:
    return float(row[f"{row['evaluated']}_last"])


def _entry(row: dict[str, Any] | None, best: float) -> str:
    if row is None:
        return "--"
    sd = row[f"{row['evaluated']}_sd"]
    mean = f"{_value(row):.2f}"
    mean = rf"\textbf{{{mean}}}" if _value(row) == best else mean
    return mean if sd is None else rf"{mean} $\pm$ {sd:.2f}"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(char, r"\textbackslash{}" if char == "\\" else char) for char in text)
