"""Comparisons as CSV with every number, and as a LaTeX table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from fedapa.analysis.method_rows import MethodRow

Rows = Sequence[MethodRow]
SPECIAL = {char: f"\\{char}" for char in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """One line per row, with the columns of the first; nothing where there are no rows."""
    if not rows:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def flat(row: MethodRow) -> dict[str, Any]:
    """A row for CSV: gain becomes three columns, and the scores of allocations stay out."""
    gain = (None, None, None) if row.gain is None else row.gain.clients
    counted = dict(zip(("clients_gain", "clients_equal", "clients_lose"), gain, strict=True))
    kept = {key: value for key, value in row.as_dict().items() if key not in ("gain", "scores")}
    return kept | {"score": row.score.name} | counted


def as_latex(rows: Rows) -> str:
    """Methods by scenarios, last round before and after local training, ± over allocations.

    A star marks the model that the method is evaluated by; of these the highest is bold.
    """
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    found = {(row.scenario, row.method): row for row in rows}
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
    score = rows[0].score
    return f"{score.name} ({score.unit})" if score.unit else score.name


def _entries(row: MethodRow | None) -> list[str]:
    return ["--", "--"] if row is None else [_entry(row, phase) for phase in ("before", "after")]


def _entry(row: MethodRow, name: str) -> str:
    digits, phase, is_evaluated = row.score.digits, row.phase(name), row.evaluated == name
    mean = f"{phase.last:.{digits}f}"
    mean = rf"\textbf{{{mean}}}" if is_evaluated and row.standing.verdict == "best" else mean
    spread = "" if phase.sd is None else rf" $\pm$ {phase.sd:.{digits}f}"
    under_way = "" if row.rounds_done == row.rounds_planned else f" (round {row.round})"
    return mean + ("$^*$" if is_evaluated else "") + spread + under_way


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(char, r"\textbackslash{}" if char == "\\" else char) for char in text)
