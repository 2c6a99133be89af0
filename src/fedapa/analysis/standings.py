"""Who is best in a scenario, who is not distinguishable from it, and mean ranks over scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedapa.analysis import statistics
from fedapa.analysis.method_rows import MethodRow, Standing
from fedapa.analysis.run_results import RunResult

LEVEL = 0.05  # of every test


def standings(rows: Sequence[MethodRow]) -> list[Standing]:
    """Every row's gap to the best method by the accuracies that the table shows, paired by allocation.

    The p of a gap is multiplied by the number of rivals (Bonferroni), which allows for the best having been chosen by
    the same numbers: the methods that are not rejected hold the truly best one in 95 of 100 tables.
    """
    best = _best(rows)
    rivals = sum(row.round == best.round for row in rows) - 1 if best else 0
    return [_standing(row, best, rivals) for row in rows]


def _best(rows: Sequence[MethodRow]) -> MethodRow | None:
    """The highest mean over the allocations that all share; methods on fewer than three stand back if others can."""
    furthest = max((row.round for row in rows), default=0)
    level = [row for row in rows if row.round == furthest and row.score == rows[0].score]
    level = [row for row in level if np.isfinite(list(row.scores.values())).all()]
    enough = [row for row in level if row.allocations >= statistics.FEWEST]
    level = enough if len(enough) > 1 else level
    shared = set.intersection(*(set(row.scores) for row in level)) if level else set()
    return max(level, key=lambda row: row.score.sign * sum(row.scores[a] for a in shared)) if shared else None


def _standing(row: MethodRow, best: MethodRow | None, rivals: int) -> Standing:
    if row is best:
        return Standing("best", 0.0)
    if best is not None and (row.round, row.score) != (best.round, best.score):
        return Standing(f"not compared: at round {row.round}")
    top = {} if best is None else best.scores
    gaps = [row.score.sign * (top[a] - row.scores[a]) for a in row.scores if a in top]
    if not gaps:
        return Standing("not compared: no allocation in common")
    p = statistics.paired_p(gaps, row.overlap)
    adjusted = None if p is None else min(1.0, rivals * p)
    return Standing(_verdict(gaps, adjusted), float(np.mean(gaps)), adjusted)


def _verdict(gaps: Sequence[float], p: float | None) -> str:
    if not np.any(np.round(gaps, 9)):
        return "equal"
    if p is None:
        return f"not tested: {too_few(len(gaps))}"
    return "behind" if p < LEVEL and np.mean(gaps) > 0 else "not distinguishable"


def too_few(allocations: int) -> str:
    """Why there is no interval and no p."""
    if allocations >= statistics.FEWEST:
        return "all allocations alike, no spread to judge by"
    return f"{allocations} allocation{'s' if allocations > 1 else ''}, {statistics.FEWEST} are needed"


def who_wins(rows: Sequence[MethodRow], name: Callable[[str], str] = str) -> str:
    """One scenario in a few sentences: the best, who is not distinguishable from it, who was not compared."""
    best = next((row for row in rows if row.standing.verdict == "best"), None)
    if best is None or len(rows) < 2:
        return ""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row.standing.verdict, []).append(name(row.method))
    score = best.score
    first = "Highest" if score.better == "higher" else f"Lowest {score.name}"
    told = [f"{first}: {name(best.method)} with {score.text(best.headline.last)}"]
    told += [_told(verdict, names, len(rows) - 1) for verdict, names in groups.items() if verdict != "best"]
    return ". ".join(told) + "."


def _told(verdict: str, names: Sequence[str], others: int) -> str:
    said = {"not distinguishable": "not distinguishable from it", "behind": "behind it"}.get(verdict, verdict)
    if len(names) == others and said.startswith("not tested"):
        return said.capitalize()
    verdict, _, why = said.capitalize().partition(": ")
    return f"{verdict}{f' ({why})' if why else ''}: {', '.join(names) if len(names) < others else 'all others'}"


def left_out(runs: Sequence[RunResult], rows: Sequence[MethodRow]) -> list[str]:
    """The unfinished runs that do not count beside finished ones of the same row."""
    places = {(row.scenario, row.method) for row in rows if row.unfinished}
    return [
        f"{run.label} seed {run.seed} ({run.rounds_done}/{run.rounds})"
        for run in runs
        if run.status != "finished" and (run.scenario, run.label) in places
    ]


def ranks(rows: Sequence[MethodRow]) -> statistics.Ranks | None:
    """Mean ranks over scenarios, by the last round of the model that each method is evaluated by.

    Of the methods that are in every scenario at its last round; every ranked number is a mean over equally many
    allocations, the same ones for all methods of a scenario. None where there are fewer than two scenarios or methods.
    """
    scenarios = sorted({row.scenario for row in rows})
    furthest = {s: max(row.round for row in rows if row.scenario == s) for s in scenarios}
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row.round == furthest[row.scenario]:
            signed = {name: row.score.sign * value for name, value in row.scores.items()}  # ranked from high to low
            scores.setdefault(row.method, {})[row.scenario] = signed
    whole = {name: found for name, found in scores.items() if len(found) == len(scenarios)}
    if len(scenarios) < 2 or len(whole) < 2:
        return None
    shared = {s: _in_all(found[s] for found in whole.values()) for s in scenarios}
    count = min(len(names) for names in shared.values())
    if not count:
        return None
    means = {
        method: [float(np.mean([found[s][a] for a in shared[s][:count]])) for s in scenarios]
        for method, found in whole.items()
    }
    return statistics.ranks(means)._replace(allocations=count)


def _in_all(found: Iterable[dict[str, float]]) -> list[str]:
    """The allocations that are in all of them, in the order of the first."""
    first, *others = found
    return [name for name in first if all(name in other for other in others)]
