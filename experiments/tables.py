"""Every stored run as three tables that others can analyse: python experiments/tables.py FOLDER

Reads experiments/results/*.json and writes FOLDER/runs.csv, rounds.csv and clients.csv. docs/results-data.md says what
the columns mean; no run is repeated and no number is rounded beyond what the files hold.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedapa.analysis import result_sets
from fedapa.analysis.run_results import RunResult

RESULTS = Path(__file__).parent / "results"
KEY = ("experiment", "scenario", "method", "seed")
RUNS = (
    *KEY, "rounds", "evaluated", "score", "better", "before_last", "before_best", "before_best_round", "before_mean",
    "before_worst", "before_worst10", "after_last", "after_best", "after_best_round", "after_mean", "after_worst",
    "after_worst10", "kib_per_client_and_round", "seconds", "clients", "malicious", "allocation", "config", "numerics",
    "version", "commit", "engine", "processor", "torch", "date",
)  # fmt: skip
ROUNDS = (*KEY, "rounds_done", "phase", "value")
CLIENTS = (*KEY, "client", "sum", "count", "malicious")
PHASES = ("before", "after")
Row = dict[str, Any]


def stored(folder: Path = RESULTS) -> Iterator[tuple[Row, RunResult, str]]:
    """Every stored run: what names it, its results, and the day it was made."""
    for path in sorted(folder.glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8")).get("runs", [])
        for row, run in zip(kept, result_sets.from_dicts(kept), strict=True):
            values = (path.stem, run.scenario, run.label, run.seed)
            yield dict(zip(KEY, values, strict=True)), run, row["environment"]["date"]


def run_row(key: Row, run: RunResult, date: str) -> Row:
    """One run, one line."""
    made, row = run.provenance, {**key, "rounds": run.rounds, "evaluated": run.evaluated, "date": date}
    for name in PHASES:
        phase = getattr(run, name)
        row |= {f"{name}_last": phase.last, f"{name}_best": phase.best, f"{name}_best_round": phase.best_round}
        row |= {f"{name}_{part}": getattr(phase.summary, part) for part in ("mean", "worst", "worst10")}
    row |= {"score": run.score.name, "better": run.score.better, "clients": len(run.counts)}
    row |= {"kib_per_client_and_round": run.kib, "seconds": run.seconds, "malicious": len(run.attackers)}
    row |= {"allocation": run.partition, "config": made.config, "numerics": made.numerics, "version": made.version}
    return {**row, "commit": made.commit, "engine": made.engine, "processor": made.processor, "torch": made.torch}


def round_rows(key: Row, run: RunResult) -> Iterator[Row]:
    """The curves: the score over all test samples, by round and phase."""
    for name in PHASES:
        for done, value in zip(rounds_done(run, name), getattr(run, name).curve, strict=False):
            yield {**key, "rounds_done": done, "phase": name, "value": value}


def rounds_done(run: RunResult, phase: str) -> list[int]:
    """How many rounds were over when each value of a curve was taken; the last aggregation is scored, too."""
    scored = list(run.evaluated_rounds) or list(range(run.evaluated == "after", run.rounds_done + 1))
    if phase == run.evaluated:
        return scored
    return [done - 1 for done in scored] + scored[-1:] if phase == "before" else [done + 1 for done in scored]


def client_rows(key: Row, run: RunResult) -> Iterator[Row]:
    """What every client's model reached in the last round, as a sum and a count over its test samples."""
    for client, (total, count) in enumerate(run.counts):
        yield {**key, "client": client, "sum": total, "count": count, "malicious": int(client in run.attackers)}


def write(path: Path, columns: Iterable[str], rows: Iterable[Row]) -> int:
    """Returns the number of lines below the head."""
    found = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(columns))
        out.writeheader()
        out.writerows(found)
    return len(found)


def main(folder: Path) -> dict[str, int]:
    folder.mkdir(parents=True, exist_ok=True)
    kept = list(stored())
    rounds = (row for key, run, _ in kept for row in round_rows(key, run))
    clients = (row for key, run, _ in kept for row in client_rows(key, run))
    return {
        "runs.csv": write(folder / "runs.csv", RUNS, (run_row(*one) for one in kept)),
        "rounds.csv": write(folder / "rounds.csv", ROUNDS, rounds),
        "clients.csv": write(folder / "clients.csv", CLIENTS, clients),
    }


if __name__ == "__main__":
    for name, lines in main(Path(sys.argv[1] if len(sys.argv) > 1 else "results")).items():
        print(f"{name}: {lines} rows")
