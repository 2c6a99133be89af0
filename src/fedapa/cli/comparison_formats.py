"""Comparisons as CSV with every number, and as a LaTeX table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]
SPECIAL = {char: f"\\{char}" for char in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def as_csv(rows: Rows) -> str:
    """One line per scenario and method; gain becomes three columns, and the scores of allocations stay out."""
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
    kept = {key: value for key, value in row.items() if key not in ("gain", "scores")}
    return kept | {"score": row["score"]["name"]} | counted


def as_latex(rows: Rows) -> str:
    """Methods by scenarios, last round before and after local training, ± over allocations.

    A star marks the model that the method is evaluated by; of these the highest is bold.
    """
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    found = {(row["scenario"], row["method"]): row for row in rows}
    rules = "".join(rf"\cmidrule(lr){{{2 * k}-{2 * k + 1}}}" for k in range(1, len(scenarios) + 1))
    lines = [
        r"% needs \usepackage{booktabs}; * is the model that the method's paper evaluates, bold the highest of these",
        rf"\begin{{tabular}}{{l{'rr' * len(scenarios)}}}",
        r"\toprule",
        _line(["", *(rf"\multicolumn{{2}}{{c}}{{{_escaped(s or _heading(rows))}}}" for s in scenarios)]),
        rules,
        _line(["Method", *["before", "after"] * len(scenarios)]),
        r"\midrule",
        *(_line([_escaped(m), *(cell for s in scenarios for cell in _entries(found.get((s, m))))]) for m in methods),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _heading(rows: Rows) -> str:
    score = rows[0]["score"]
    return f"{score['name']} ({score['unit']})" if score.get("unit") else str(score["name"])


def _entries(row: dict[str, Any] | None) -> list[str]:
    return ["--", "--"] if row is None else [_entry(row, phase) for phase in ("before", "after")]


def _entry(row: dict[str, Any], phase: str) -> str:
    digits, sd = row["score"]["digits"], row[f"{phase}_sd"]
    mean = f"{row[f'{phase}_last']:.{digits}f}"
    is_evaluated = row["evaluated"] == phase
    mean = rf"\textbf{{{mean}}}" if is_evaluated and row["standing"] == "best" else mean
    spread = "" if sd is None else rf" $\pm$ {sd:.{digits}f}"
    done, _, planned = row["rounds"].partition("/")
    return mean + ("$^*$" if is_evaluated else "") + spread + ("" if done == planned else f" (round {row['round']})")


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(char, r"\textbackslash{}" if char == "\\" else char) for char in text)
