"""Tables of methods: means over allocations, gains against a rival, and who is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedapa.analysis import statistics
from fedapa.analysis.method_rows import Attacked, Gain, MethodRow, PhaseSpread
from fedapa.analysis.pairing import LOCAL, gaps, opponent, pairs
from fedapa.analysis.run_results import Floats, Phase, RunResult, level, values
from fedapa.analysis.standings import standings, too_few
from fedapa.methods.catalogue import METHODS


def table(runs: Sequence[RunResult], rival: str = LOCAL) -> list[MethodRow]:
    """One row per scenario and method: means over allocations, and gains against the rival.

    The numbers of a row are of one round: of the finished runs, or while there are none of the last round that all
    have evaluated. p-values are adjusted over the rows of a scenario.
    """
    groups: dict[str, dict[str, list[RunResult]]] = {}
    for run in sorted(runs, key=lambda run: (run.scenario, _place(run.label), run.seed)):
        groups.setdefault(run.scenario, {}).setdefault(run.label, []).append(run)
    found = ([_row(label, mine, runs, rival) for label, mine in group.items()] for group in groups.values())
    return [row for rows in found for row in _judged(rows)]


def _judged(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Holm over the tests against the rival; then who is best, and who is not distinguishable from it."""
    adjusted = statistics.holm([row.p for row in rows])
    found = zip(rows, adjusted, standings(rows), strict=True)
    return [replace(with_p(row, p), standing=standing) for row, p, standing in found]


def with_p(row: MethodRow, adjusted: float | None) -> MethodRow:
    """The same row with this p of its gain."""
    return row if row.gain is None else replace(row, gain=replace(row.gain, p_adjusted=adjusted))


def _place(label: str) -> int:
    """Methods in the order in which `fedapa ls` has them, variants after them."""
    known = list(METHODS)
    return known.index(label) if label in known else len(known)


def _row(label: str, every: Sequence[RunResult], runs: Sequence[RunResult], rival: str) -> MethodRow:
    whole = _whole(every)
    mine = level(whole) or [run for run in whole if run.round == max(one.round for one in whole)]
    first, account = mine[0], mine[0].privacy
    headline = _by_allocation(mine, [run.headline.last for run in mine])
    gain, note = _gain(mine, runs, rival)
    return MethodRow(
        scenario=first.scenario,
        method=label,
        seeds=len(mine),
        allocations=len(headline),
        rounds_done=min(run.rounds_done for run in mine),
        rounds_planned=first.rounds,
        round=first.round,
        unfinished=len(every) - len(mine),
        evaluated=first.evaluated,
        score=first.score,
        numerics=" and ".join(map(str, sorted({run.provenance.numerics for run in mine}))),
        before=_spread(mine, [run.before for run in mine]),
        after=_spread(mine, [run.after for run in mine]),
        worst_client=_over(mine, [run.headline.summary.worst for run in mine]),
        worst_tenth=_over(mine, [run.headline.summary.worst10 for run in mine]),
        gain=gain,
        gain_note=note,
        attacked=_attacked(mine, runs),
        groups_found=_groups_found(mine),
        kib=_mean([run.kib for run in mine]),
        seconds=_mean([run.seconds for run in mine]),
        epsilon=None if account is None else account.short(),
        scores=headline,
        overlap=first.overlap,
        train_loss=_where_all([run.train_loss for run in mine], mine),
        test_loss=_where_all([run.test_loss for run in mine], mine),
    )


def _whole(runs: Sequence[RunResult]) -> list[RunResult]:
    """The finished runs; while none is finished, all of them."""
    return [run for run in runs if run.status == "finished"] or list(runs)


def _spread(runs: Sequence[RunResult], phases: Sequence[Phase]) -> PhaseSpread:
    last, tail, best = (_over(runs, values) for values in zip(*((p.last, p.tail, p.best) for p in phases), strict=True))
    spread = _interval(runs, [phase.last for phase in phases])
    selected, held = _where_all([p.selected for p in phases], runs), _where_all([p.held for p in phases], runs)
    return PhaseSpread(last, tail, best, spread.sd, spread.low, spread.high, selected, held)


def _where_all(values: Sequence[float | None], runs: Sequence[RunResult]) -> float | None:
    """Mean over allocations of what every run has."""
    known = [value for value in values if value is not None]
    return _over(runs, known) if len(known) == len(values) else None


def _by_allocation(runs: Sequence[RunResult], values: Sequence[float]) -> dict[str, float]:
    """One value per allocation: several runs on one are repeats of the training, and count once, by their mean."""
    found: dict[str, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        found.setdefault(run.partition, []).append(value)
    return {name: _mean(mine) for name, mine in found.items()}


def _over(runs: Sequence[RunResult], values: Sequence[float]) -> float:
    """Mean over allocations."""
    return _mean(list(_by_allocation(runs, values).values()))


def _interval(runs: Sequence[RunResult], values: Sequence[float]) -> statistics.Interval:
    return statistics.interval(list(_by_allocation(runs, values).values()), runs[0].score.bounds, runs[0].overlap)


def _gain(mine: Sequence[RunResult], runs: Sequence[RunResult], rival: str) -> tuple[Gain | None, str]:
    """The gain over the rival, mean over clients and then over allocations; its interval and test are over the latter.

    How many clients gain, stay equal and lose is told, not tested. Where there is no gain or no test, a note says why.
    Nobody gains over itself.
    """
    if mine[0].label == rival:
        return None, ""
    found = [pair for pair in pairs(mine, runs, rival) if (pair[0].honest & pair[1].honest).any()]
    if not found:
        has_rival = any(opponent(run, runs, rival) for run in mine)
        return None, f"not compared: {'rounds differ' if has_rival else f'no {rival} on the same allocation'}"
    honest = [gaps(run, other)[run.honest & other.honest] for run, other in found]
    points = list(_by_allocation([run for run, _ in found], [_mean(gap) for gap in honest]).values())
    first = found[0][0]
    spread = statistics.interval(points, first.score.gap_bounds, first.overlap)
    p = statistics.paired_p(points, first.overlap)
    signs = np.sign(np.concatenate(honest))
    better, equal, worse = (int((signs == sign).sum()) for sign in (1, 0, -1))
    gain = Gain((better, equal, worse), spread.mean, spread.low, spread.high, p, first.round, len(points))
    return gain, too_few(len(points)) if p is None and np.any(signs) else ""


def _attacked(mine: Sequence[RunResult], runs: Sequence[RunResult]) -> Attacked | None:
    if not all(run.attackers for run in mine):
        return None
    costs = [cost for run in mine if (cost := _cost_of_attack(run, runs)) is not None]
    weights = [run.attacker_weight[-1] for run in mine if run.attacker_weight]
    honest = _mean([float(values(run)[run.honest].mean()) for run in mine])
    cost, weight = _mean(costs) if costs else None, _mean(weights) if weights else None
    return Attacked(len(mine[0].attackers), honest, cost, weight)


def _groups_found(runs: Sequence[RunResult]) -> float | None:
    """Mean over allocations of the last round's index; None unless every run has one."""
    found = [run.groups_found[-1] for run in runs if run.groups_found]
    return _over(runs, found) if len(found) == len(runs) else None


def _cost_of_attack(run: RunResult, runs: Sequence[RunResult]) -> float | None:
    """How much better the honest clients are off than the same clients where nobody is malicious; below 0: worse."""
    for other in runs:
        if _setting(other) == _setting(run) and not other.attackers:
            met = level([run, other])
            return float(gaps(met[0], met[1])[run.honest].mean()) if met else None
    return None


def _setting(run: RunResult) -> tuple[Any, ...]:
    return run.label, run.seed, run.partition, run.rounds, run.provenance.numbers


def _mean(values: Sequence[float] | Floats) -> float:
    return float(np.mean(values))
