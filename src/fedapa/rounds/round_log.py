"""What a round leaves behind, and where a run stands between two rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fedapa.core.summaries import Sums
from fedapa.core.tree import Tree, count_bytes
from fedapa.rounds.membership import Newcomer
from fedapa.training.job import LossSum

WATCHED_BYTES = 128 * 2**20  # of a run's watched tensors, beside the last round's


class Event(NamedTuple):
    round: int
    client: int | None
    kind: str
    text: str


@dataclass
class RoundLog:
    """Everything one round leaves behind; rows are clients."""

    round: int
    trained: list[int]
    before: Sums | None = None  # [M, S, 4]: see core/summaries.py
    after: Sums | None = None
    final: Sums | None = None  # of the last round: what the last aggregation would send, which no round scores
    down_bytes: dict[int, int] = field(default_factory=dict)
    up_bytes: dict[int, int] = field(default_factory=dict)
    train_loss: dict[int, LossSum] = field(default_factory=dict)  # of the clients that trained, where it is known
    client_seconds: dict[int, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    watched: Tree = field(default_factory=dict)
    joined: list[Newcomer] = field(default_factory=list)  # before this round; the last of all clients
    gone: frozenset[int] = frozenset()  # who left for good before this round, or before another


def watched_stride(log: RoundLog, rounds: int) -> int:
    """Watched tensors (weights: 4 M^2 bytes a round) are kept of every so many rounds, and of the last."""
    return max(1, math.ceil(count_bytes(log.watched) * rounds / WATCHED_BYTES))


class State(NamedTuple):
    """Where a run stands between two rounds, beside the clients' own records."""

    round: int  # rounds done
    server: Tree
    last: Sums  # [M, S, 4] scores of every client's last trained state; UNKNOWN where it was not measured yet


class Sink(Protocol):
    def __call__(self, log: RoundLog, state: State) -> None: ...
