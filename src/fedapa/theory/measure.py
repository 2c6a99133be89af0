"""Play a problem several times from one start and set the measured changes against the bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.core.weights import Sign
from fedapa.methods.fedapa import FedAPA
from fedapa.rounds.round_plan import Plan
from fedapa.theory import bound
from fedapa.theory.bound import Constants, Numbers, Steps
from fedapa.theory.problem import BATCH, SAMPLES, Problem
from fedapa.theory.trace import play

SURE = 3.0  # standard errors by which a mean must exceed a bound on an expectation before we call it broken


@dataclass(frozen=True)
class Measured:
    """All visits of all repeats; ``repeat`` says which of them a visit belongs to."""

    problem: Problem
    method: FedAPA
    constants: Constants
    steps: Steps
    repeat: npt.NDArray[np.int64]

    @property
    def broken(self) -> int:
        """Visits in which the corrected bound does not hold: none, or there is a mistake in it or in us."""
        return int(
            (self.steps.change > bound.corrected(self.steps, self.constants) + bound.slack(self.constants)).sum()
        )

    def by_round(self) -> list[dict[str, Any]]:
        """One row per round, means over clients and repeats. The theorem bounds an expectation, hence the repeats."""
        s, c = self.steps, self.constants
        over = s.change - bound.chance(s, c) - bound.printed(s, c)
        columns = {
            "change": s.change,
            "corrected": bound.corrected(s, c),
            "printed": bound.printed(s, c),
            "mixing": s.gap,
            "corrected_mixing": bound.corrected_server(s, c),
            "coarse_mixing": bound.coarse_server(s, c),
            "printed_mixing": bound.printed_server(s, c),
            "share": s.share,
        }
        rows = []
        for t in range(int(s.round.max()) + 1):
            now = s.round == t
            means = {name: float(column[now].mean()) for name, column in columns.items()}
            rows.append({"round": t + 1, **means, "printed_broken": bool(_exceeds(over[now], self.repeat[now]))})
        return rows

    def summary(self) -> dict[str, Any]:
        s, c = self.steps, self.constants
        rounds = self.by_round()
        ways = {"bare step": s.descended, "step as printed": s.ascended, "step as run": s.processed}
        lowered = {name: float((after < s.proxy).mean()) for name, after in ways.items()}
        return {
            "problem": self.problem.name,
            "eta": c.eta,
            "alpha": c.alpha,
            "L1": c.L1,
            "L1_seen": float(s.bend.max()),
            "L2": c.L2,
            "L2_seen": float(s.steep.max()),
            "variance": c.variance,
            "max_norm": c.largest,
            "visits": len(s.change),
            "corrected_broken": self.broken,
            "rounds": len(rounds),
            "printed_broken": sum(row["printed_broken"] for row in rounds),
            "proxy_lowered": lowered,
        }


def measure(
    problem: Problem,
    eta: float = 0.01,
    clients: int = 4,
    rounds: int = 30,
    seed: int = 0,
    repeats: int = 4,
    sign: Sign = "descend",
    progress: Callable[[], None] = lambda: None,
) -> Measured:
    """``repeats`` runs from one start that differ in their batches."""
    method = FedAPA(eta=eta, sign=sign)
    data = problem.data(clients, seed)
    task = problem.task(data, rounds)
    found = []
    for repeat in range(repeats):
        plan = Plan(rounds, (1.0, 1.0), seed=seed * 1000 + repeat, evaluate_every=rounds)
        found.append(bound.steps(method, task, data, play(method, task, data, plan, start=seed)))
        progress()
    steps = Steps(*(np.concatenate(column) for column in zip(*found, strict=True)))
    L1, L2 = problem.constants(data, float(steps.head.max()))
    variance = bound.batch_variance(float(steps.noise.max()), SAMPLES, BATCH)
    constants = Constants(L1, L2, variance, float(steps.norm.max()), task.training.lr, eta)
    return Measured(problem, method, constants, steps, np.repeat(np.arange(repeats), clients * rounds))


def _exceeds(over: Numbers, repeat: npt.NDArray[np.int64]) -> bool:
    """Whether the mean over clients is above zero by more than the repeats' errors explain."""
    each = np.array([over[repeat == k].mean() for k in np.unique(repeat)])
    error = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else 0.0
    return bool(each.mean() > SURE * error + bound.ROUNDING)
