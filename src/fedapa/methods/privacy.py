"""The privacy account of noised uploads: epsilon, how it is worded, and what it does not cover.

Every listing, card and page that shows a run with noised uploads takes all three from here. Needs no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

# All that a real site sends the server besides its noised tensors, as federation/messages.py and site_agent.py send it.
NOT_COVERED = (
    "once per run: the site's name, its numbers of train, test and validation rows, which classes it has, shape, type"
    " and scaling of a sample, names of columns and classes or a hash of them, with federated scaling also count, sum"
    " and sum of squares of every numeric column, and always those of targets that are numbers",
    "in every round: that it takes part, the number of train rows (n) where the method sends it, that a training failed"
    " and how long it took",
    "in every evaluated round: scores on test and validation rows before and after training (right answers, losses,"
    " errors, and how many rows), which are those of the model without noise",
    "the model in use at the site, and what it says about rows",
    "other runs: every run spends its own epsilon, and several runs on the same rows add up",
)


class Account(NamedTuple):
    """What noised uploads of one run protect, for a site that takes part in all of its rounds."""

    epsilon: float  # infinite without noise
    delta: float
    norm: float
    noise: float
    rounds: int
    simulated: bool  # the noise comes from the run's seed, which everybody knows

    def short(self) -> str:
        """For a table."""
        found = f"{self.epsilon:.3g}" if math.isfinite(self.epsilon) else "none"
        return f"{found} (simulated)" if self.simulated else found

    def lines(self) -> list[str]:
        """For a card, a page or a terminal; what is not covered comes last."""
        clipped = f"Uploads are clipped to norm {self.norm:g} and carry noise of {self.noise:g} norms"
        if not math.isfinite(self.epsilon):
            return [f"{clipped}: without noise nothing is protected."]
        spent = f"epsilon {self.epsilon:.3g} at delta {self.delta:g} over {self.rounds} rounds"
        whom = "for a site's whole contribution to its uploads, against everybody who sees them, the server included"
        real = f"{clipped}: {spent}, {whom}."
        if self.simulated:
            real = (
                "Simulated noise: it is drawn from the run's seed and protects nobody. At the sites of a real"
                f" federation the same settings mean: {real[0].lower()}{real[1:]}"
            )
        return [real, *(f"Not covered by epsilon: {part}." for part in NOT_COVERED)]

    def to_json(self) -> str:
        """For run.db and wire.json; None stands for no protection."""
        finite = math.isfinite(self.epsilon)
        return json.dumps(self._asdict() | {"epsilon": float(f"{self.epsilon:.8g}") if finite else None})


def from_json(text: str) -> Account:
    found: dict[str, Any] = json.loads(text)
    return Account(**found | {"epsilon": math.inf if found["epsilon"] is None else found["epsilon"]})


def told(accounts: Mapping[str, Account]) -> list[str]:
    """The lines of several methods by name; what is the same for all of them is said once."""
    names: dict[str, list[str]] = {}
    for name, account in accounts.items():
        names.setdefault(account.lines()[0], []).append(name)
    first = [f"{', '.join(same)}: {line[0].lower()}{line[1:]}" for line, same in names.items()]
    return first + list(dict.fromkeys(line for account in accounts.values() for line in account.lines()[1:]))


def epsilon(noise: float, rounds: int, delta: float) -> float:
    """The smallest epsilon for this delta, after so many rounds of Gaussian noise of ``noise`` sensitivities.

    Exact: k rounds are one round of noise / sqrt(k), and for one round Balle and Wang (ICML 2018, theorem 8) give delta
    as a function of epsilon. Sampling of clients counts for nothing, since the server knows who took part.
    """
    if noise == 0.0 or rounds == 0:
        return math.inf if rounds else 0.0
    from scipy import optimize, special

    sigma = noise / math.sqrt(rounds)

    def excess(eps: float) -> float:
        one, other = (float(special.log_ndtr(side * 0.5 / sigma - eps * sigma)) for side in (1, -1))
        return math.exp(one) - math.exp(min(eps + other, one)) - delta

    if excess(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-9, rtol=1e-9))
