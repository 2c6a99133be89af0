"""Write docs/leaderboard.md from stored results: python docs/make_leaderboard.py"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapa.analysis import collected, comparison, result_sets, standings
from fedapa.analysis.method_rows import MethodRow
from fedapa.analysis.pairing import LOCAL

HERE = Path(__file__).parent
RESULTS = HERE.parent / "experiments" / "results"
FILES = ("recipes.json", "submitted.json")
INTRO = """# Leaderboard

Which personalized method on which data, measured the same way: the scenarios of `experiments/recipes.toml`, the same
allocations for everybody, the last round. Made by `python docs/make_leaderboard.py` from stored results. The interval
is over allocations; *level* means that the difference to the highest can be chance. Differences are taken on the
allocations that both have, so rows with another number of allocations are not compared by their means.

To add a method, play it on the board and hand the runs in. The command checks them and adds the rows; a pull request
with `experiments/results/submitted.json` brings them here.

```console
$ fedapa sweep experiments/recipes.toml --method my.py:MyMethod --out runs/mine
$ fedapa submit runs/mine --board experiments/recipes.toml --to experiments/results/submitted.json --by "Your name"
```

Whoever merges runs the second line with `--replay 1`: a run chosen by chance then must come out the same.
"""
HEAD = "| | method | {score} | 95 % | over Local | allocations | KiB per client and round | commit | by |\n|{lines}"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for name in FILES if (folder / name).is_file() for row in collected.read(folder / name)]


def page(rows: Sequence[dict[str, Any]]) -> str:
    about = {(row["scenario"], row["label"]): row for row in rows}
    table = comparison.table(result_sets.from_dicts(rows))
    scenarios = sorted({row.scenario for row in table})
    return INTRO + "".join(section(name, [row for row in table if row.scenario == name], about) for name in scenarios)


def section(name: str, rows: Sequence[MethodRow], about: dict[tuple[str, str], dict[str, Any]]) -> str:
    rows = sorted(rows, key=lambda row: -row.score.sign * row.headline.last)
    head = HEAD.format(score=rows[0].score.heading, lines="---|" * 9)
    lines = [line(k, row, about[row.scenario, row.method]) for k, row in enumerate(rows, 1)]
    return f"\n## {name}\n\n" + "\n".join([head, *lines]) + f"\n\n{standings.who_wins(rows)}\n"


def line(place: int, row: MethodRow, run: dict[str, Any]) -> str:
    now, score = row.headline, row.score
    interval = "–" if now.low is None else f"{score.number(now.low)} to {score.number(now.high)}"
    level = " (level)" if row.standing.verdict == "not distinguishable" else ""
    gain = "–" if row.gain is None or row.method == LOCAL else score.number(row.gain.points, signed=True)
    commit = run["provenance"]["commit"][:9]
    cells = (f"{place}{level}", f"{row.method}{recipe(run)}", score.number(now.last), interval, gain)
    rest = (str(row.allocations), f"{row.kib:,.0f}", commit, run.get("by") or "fedapa")
    return f"| {' | '.join(cells + rest)} |"


def recipe(run: dict[str, Any]) -> str:
    """Settings of training that differ from the board's."""
    own = run.get("recipe") or {}
    return f" ({', '.join(f'{key} = {value}' for key, value in own.items())})" if own else ""


if __name__ == "__main__":
    (HERE / "leaderboard.md").write_text(page(rows_of(RESULTS)), encoding="utf-8")
