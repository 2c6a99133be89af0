"""Write docs/performance.md from the files under benchmarks/: python docs/make_performance.py

`fedapa bench` makes DATE.json, the newest counts; `fedapa bench --only SUITE --out benchmarks/DATE-SUITE.json` measures
one suite again, and takes its place where it is newer. DATE-others.json is made by benchmarks/beside_others.py. Nothing
on the page is typed by hand but the words around the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
INTRO = """# Performance

How fast training, evaluation, whole runs and the server's step are, against the loop that everybody writes, what they
take in memory, and which target each figure meets or misses.

Made by `python docs/make_performance.py` from `{source}`; `make bench` measures again. Ratios are medians of repeats
that were taken in turn in one run, with the lowest and the highest beside them. *Plain loop* is the loop that everybody
writes: a DataLoader over a list of normalised (x, y), autograd, torch.optim.SGD. One-core ratios compare processor
time, ratios of rounds and runs the clock on the wall.

{machine}
"""
HEADINGS = {
    "train": "Training one client",
    "methods": "Methods with losses of their own",
    "recipes": "Other recipes",
    "vmap": "Many small clients",
    "evaluate": "Evaluation",
    "workers": "Two cores",
    "run": "A whole run",
    "others": "Beside PFLlib and the released FedAPA code",
    "overhead": "What is left over",
    "loops": "Any model, against a hand-written loop",
    "server": "The server",
    "exact": "FedAPA-exact among many clients",
    "clients": "Many clients",
    "flat": "Disk and memory of long runs",
    "start": "Cold start",
    "numerics": "Do the engines agree?",
}


WHOLE = "[0-9]" * 4 + "-[0-9][0-9]-[0-9][0-9].json"


def newest(folder: Path) -> Path:
    """The newest file of all suites: its name is a date, so the last name is the newest."""
    found = sorted(folder.glob(WHOLE))
    if not found:
        raise SystemExit(f"there is nothing in {folder}; run `fedapa bench` first")
    return found[-1]


def gathered(folder: Path) -> tuple[dict[str, Any], str]:
    """The newest file of all suites, and its name; suites that were measured alone since then take their places."""
    path = newest(folder)
    whole = json.loads(path.read_text(encoding="utf-8"))
    suites = {suite: [row for row in whole["rows"] if row["suite"] == suite] for suite in HEADINGS}
    since = {suite: whole["machine"]["date"] for suite, rows in suites.items() if rows}
    alone = [(json.loads(file.read_text(encoding="utf-8")), file.name) for file in folder.glob("*-*-*-*.json")]
    for report, name in sorted(alone, key=lambda one: one[0]["machine"]["date"]):
        said = f"Measured alone, `benchmarks/{name}`. {machine(report)}"
        rows = [{**row, "from": " ".join([said, report.get("about", "")]).strip()} for row in report["rows"]]
        newer = {row["suite"] for row in rows if report["machine"]["date"] > since.get(row["suite"], "")}
        suites |= {suite: [row for row in rows if row["suite"] == suite] for suite in newer}
    return {**whole, "rows": [row for rows in suites.values() for row in rows]}, f"benchmarks/{path.name}"


def page(report: dict[str, Any], source: str) -> str:
    suites = list(dict.fromkeys(row["suite"] for row in report["rows"]))
    parts = [section(suite, [row for row in report["rows"] if row["suite"] == suite]) for suite in suites]
    return "\n".join([INTRO.format(source=source, machine=machine(report)), *parts, *shortfalls(report["rows"])])


def machine(report: dict[str, Any]) -> str:
    facts, packages = report["machine"], report["machine"]["packages"]
    line = f"{facts['processor']}, {facts['cores']} cores; Python {facts['python']}, torch {packages['torch']}, fedapa "
    line += f"{packages['fedapa']}; {facts['date'][:10]}; load before the start {facts['load before']}."
    return line + (" **Tiny sizes (`--quick`): these numbers mean nothing.**" if report["quick"] else "")


def section(suite: str, rows: list[dict[str, Any]]) -> str:
    head = ["| | target | measured | lowest, highest | met |", "|---|---|---|---|---|"]
    told = [rows[0]["from"], ""] if "from" in rows[0] else []
    return "\n".join([f"## {HEADINGS.get(suite, suite)}", "", *told, *head, *map(line, rows), "", *notes(rows)])


def line(row: dict[str, Any]) -> str:
    found, unit = row["found"], row["unit"]
    sign = "≤" if row["at_most"] else "≥"
    target = "" if row["target"] is None else f"{sign} {row['target']:g} {unit}"
    met = {True: "yes", False: "**no**", None: ""}[row["holds"]]
    low, high = number(found["low"]), number(found["high"])
    return f"| {row['what']} | {target} | {number(found['median'])} {unit} | {low}, {high} | {met} |"


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """Everything else that was measured beside the ratio."""
    found = [f"- {row['what']}: {describe(row['detail'])}" for row in rows if row["detail"]]
    return [*found, ""] if found else []


def describe(detail: Any) -> str:
    if isinstance(detail, dict):
        return "; ".join(f"{key} {describe(value)}" for key, value in detail.items())
    if isinstance(detail, list):
        return ", ".join(f"({describe(one)})" if isinstance(one, dict) else describe(one) for one in detail)
    return str(detail) if isinstance(detail, str) else number(detail)


def number(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def shortfalls(rows: list[dict[str, Any]]) -> list[str]:
    """What falls short, said aloud."""
    missed = [row for row in rows if row["holds"] is False]
    if not missed:
        return ["All targets are met in this run.", ""]
    lines = [
        f"- {row['what']}: {number(row['found']['median'])} instead of {row['target']:g} {row['unit']}"
        for row in missed
    ]
    return ["## Not met", "", *lines, ""]


if __name__ == "__main__":
    report, source = gathered(HERE.parent / "benchmarks")
    (HERE / "performance.md").write_text(page(report, source), encoding="utf-8")
