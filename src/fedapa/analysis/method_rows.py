"""Rows of comparisons. Inside the package they have attributes; ``as_dict`` has the names that JSON and CSV have."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fedapa.core.scores import Score


@dataclass(frozen=True)
class PhaseSpread:
    """The score before or after local training, mean over allocations, and how far the last round's is spread."""

    last: float
    tail: float  # mean of the last rounds
    best: float  # best round
    sd: float | None  # None for a single allocation
    low: float | None  # the 95 % interval; None from too few allocations
    high: float | None
    selected: float | None  # at the round with the best score on validation data, where all runs have some
    held: float | None  # on validation data, mean of the last rounds


@dataclass(frozen=True)
class Gain:
    """How much better clients are off than with the rival, on the same allocations and at the same round."""

    clients: tuple[int, int, int]  # that gain, stay equal and lose
    points: float
    low: float | None
    high: float | None
    p_unadjusted: float | None
    round: int
    allocations: int
    p_adjusted: float | None = None  # over the rows of a scenario


@dataclass(frozen=True)
class Attacked:
    """What is left for honest clients where others are malicious."""

    attackers: int
    honest: float
    points: float | None  # above or below the same run without an attack
    weight: float | None  # that honest rows of A give to malicious clients, in the last round


@dataclass(frozen=True)
class Standing:
    """A row beside the best of its scenario."""

    verdict: str = "not compared"  # best, equal, behind, not distinguishable, or why nobody can say
    behind: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class MethodRow:
    """One method in one scenario: means over allocations, all of one round."""

    scenario: str
    method: str
    seeds: int
    allocations: int
    rounds_done: int
    rounds_planned: int
    round: int  # that the numbers are of
    unfinished: int  # runs beside finished ones, which do not count until they are done
    evaluated: str  # before or after: the model that the method's paper reports
    score: Score
    numerics: str
    before: PhaseSpread
    after: PhaseSpread
    worst_client: float
    worst_tenth: float
    gain: Gain | None
    gain_note: str  # why there is no gain, or no test of it
    attacked: Attacked | None
    groups_found: float | None  # adjusted Rand index with the planted groups, in the last round
    kib: float  # down and up, per trained client and round
    seconds: float
    epsilon: str | None  # of noised uploads
    scores: dict[str, float]  # of the evaluated model, by allocation
    overlap: float
    train_loss: float | None = None  # of the batches that clients trained on in the last round
    test_loss: float | None = None  # of the evaluated model
    standing: Standing = Standing()

    @property
    def headline(self) -> PhaseSpread:
        """Of the model that the method is evaluated by."""
        return self.phase(self.evaluated)

    def phase(self, name: str) -> PhaseSpread:
        return self.before if name == "before" else self.after

    @property
    def rounds(self) -> str:
        return f"{self.rounds_done}/{self.rounds_planned}"

    @property
    def p(self) -> float | None:
        """Of the gain, before it is adjusted."""
        return None if self.gain is None else self.gain.p_unadjusted

    def as_dict(self) -> dict[str, Any]:
        """For JSON, CSV and the dashboard: flat, with these names in this order."""
        names = ("scenario", "method", "seeds", "allocations", "rounds", "round", "unfinished", "evaluated")
        found = {name: getattr(self, name) for name in names}
        found |= {"score": self.score.as_dict(), "numerics": self.numerics}
        for phase in ("before", "after"):
            found |= {f"{phase}_{key}": value for key, value in asdict(self.phase(phase)).items()}
        found |= {"worst_client": self.worst_client, "worst_tenth": self.worst_tenth}
        found |= self._gain() | self._attacked()
        found |= {
            name: getattr(self, name)
            for name in ("groups_found", "kib", "seconds", "epsilon", "scores", "overlap", "train_loss", "test_loss")
        }
        found["gain_p_adjusted"] = None if self.gain is None else self.gain.p_adjusted
        standing = self.standing
        return found | {"standing": standing.verdict, "behind": standing.behind, "behind_p": standing.p}

    def _gain(self) -> dict[str, Any]:
        gain = self.gain
        names = ("points", "low", "high", "p_unadjusted", "round")
        counts = {"gain": None if gain is None else list(gain.clients)}
        numbers = {f"gain_{name}": None if gain is None else getattr(gain, name) for name in names}
        rest = {"gain_allocations": 0 if gain is None else gain.allocations, "gain_note": self.gain_note}
        return {**counts, **numbers, **rest}

    def _attacked(self) -> dict[str, Any]:
        if (found := self.attacked) is None:
            return {"attackers": 0, "honest": None, "attack_points": None, "attacker_weight": None}
        told = {"attackers": found.attackers, "honest": found.honest}
        return {**told, "attack_points": found.points, "attacker_weight": found.weight}


@dataclass(frozen=True)
class ClientGain:
    """One client of one run beside the same client with the rival."""

    scenario: str
    method: str
    seed: int
    client: int
    round: int
    malicious: bool | None  # None where nobody is
    test_samples: int
    score: Score
    value: float
    rival: str
    rivals_value: float
    gain: float

    def as_dict(self) -> dict[str, Any]:
        """The columns of the two values are called by the score and by the rival."""
        found = {name: getattr(self, name) for name in ("scenario", "method", "seed", "client", "round")}
        found |= {} if self.malicious is None else {"malicious": self.malicious}
        values = {self.score.name: self.value, self.rival: self.rivals_value, "gain": self.gain}
        return {**found, "test_samples": self.test_samples, **values}
