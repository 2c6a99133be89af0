"""Runs beside the rival's on the same allocation, all at one round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedapa.analysis.method_rows import ClientGain
from fedapa.analysis.run_results import Floats, RunResult, level, values

LOCAL = "local"  # the rival of all: training alone
Pair = tuple[RunResult, RunResult]


def opponent(run: RunResult, runs: Sequence[RunResult], rival: str) -> RunResult | None:
    """The rival's run on the same allocation: of the same scenario and seed where there is one, finished if it can be.

    The fingerprint says which allocation it is: runs may share one and differ in the seed of their training.
    """
    found = [o for o in runs if (o.label, o.partition) == (rival, run.partition) and len(o.counts) == len(run.counts)]
    found = [o for o in found if o.provenance.numerics == run.provenance.numerics and o.score.name == run.score.name]
    found.sort(
        key=lambda o: (o.scenario != run.scenario, o.seed != run.seed, o.status != "finished", -o.provenance.revision)
    )
    return found[0] if found else None


def pairs(mine: Sequence[RunResult], runs: Sequence[RunResult], rival: str) -> list[Pair]:
    """Runs beside the rival's on the same allocation, all at one round; pairs of finished runs where there are any."""
    beside = [(run, other) for run in mine if (other := opponent(run, runs, rival)) is not None]
    whole = [pair for pair in beside if len(_whole_of(pair)) == 2] or beside
    flat = level([run for pair in whole for run in pair])
    return list(zip(flat[::2], flat[1::2], strict=True))


def _whole_of(pair: Pair) -> list[RunResult]:
    return [run for run in pair if run.status == "finished"]


def gaps(run: RunResult, other: RunResult) -> Floats:
    """How much better every client is off than in the other run: above 0, whatever the direction of the score."""
    found: Floats = np.round(run.score.sign * (values(run) - values(other)), 9)
    return found


def client_gains(runs: Sequence[RunResult], rival: str = LOCAL) -> list[ClientGain]:
    """Who gains and who loses against the rival, and by how many points, client by client, at the same round."""
    attacked = any(run.attackers for run in runs)
    return [
        row
        for run in runs
        if run.label != rival
        for pair in pairs([run], runs, rival)
        for row in _clients(run, pair, rival, attacked)
    ]


def _clients(run: RunResult, pair: Pair, rival: str, attacked: bool) -> Iterator[ClientGain]:
    mine, other = pair
    found = zip(values(mine).tolist(), values(other).tolist(), gaps(mine, other).tolist(), strict=True)
    for client, (ours, theirs, gain) in enumerate(found):
        malicious = client in run.attackers if attacked else None
        tested = int(run.counts[client, 1])
        yield ClientGain(
            run.scenario,
            run.label,
            run.seed,
            client,
            mine.round,
            malicious,
            tested,
            run.score,
            ours,
            rival,
            theirs,
            gain,
        )
