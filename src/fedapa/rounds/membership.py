"""Who comes and goes while a run is under way: always between two rounds, and written down before the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Newcomer(NamedTuple):
    """A client that joins a run between two rounds, as it describes itself."""

    name: str
    train: int
    test: int
    validation: int
    labels: str
    classes: frozenset[int] = frozenset()  # that it declared
    fault: str = ""  # why it cannot join after all

    def row(self, number: int) -> tuple[int, str, int, int, int, str]:
        """What run.db says about it."""
        return (number, *self[:5])


class Membership(Protocol):
    """Who comes and goes between two rounds. What was decided about a round stays so: a resumed run asks again."""

    def arrivals(self, round: int) -> Sequence[Newcomer]:
        """Who joins before this round, in the order of their numbers."""

    def admit(self, newcomer: Newcomer, round: int) -> None:
        """It did: this is on the disk before the round is played."""

    def reject(self, newcomer: Newcomer) -> None:
        """It did not: it is at fault, or the method has no room for another client."""

    def members(self, round: int) -> Sequence[Newcomer]:
        """Who had joined before ``round`` rounds were done, in the order of their numbers."""

    def gone(self, round: int) -> frozenset[int]:
        """Who left for good before this round."""
