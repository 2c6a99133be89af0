"""What goes to the clients of a round: made when asked for, kept while it is small, made again when it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from threading import Lock
from typing import overload

from fedapa.core.tree import Tree, count_bytes
from fedapa.methods.method import Method
from fedapa.training.devices import at
from fedapa.training.task import Task

KEEP_SENT = 256 * 2**20  # bytes of sent messages kept at hand; the rest is computed again when needed
SEND_TOGETHER, TOGETHER_BYTES = 64, 128 * 2**20  # most clients, and most bytes, that are sent to in one go


@dataclass
class Mailing:
    """Messages that are made in one go, each waiting for its client to ask."""

    ids: Sequence[int]
    lock: Lock = field(default_factory=Lock)
    made: dict[int, Tree] = field(default_factory=dict)


class Sent(Sequence[Tree]):
    """What was sent to each client: kept while it is small, computed again by ``send`` when it is not.

    Clients of a cohort may be sent to together, where the method gains by it. Who shares a mailing depends on the
    cohort alone, never on timing, and nor do its bits.
    """

    def __init__(self, method: Method, task: Task, server: Tree, *cohorts: Sequence[int]) -> None:
        self._method, self._task, self._server = method, task.placed(task.server_device), server
        self._ids = [i for cohort in cohorts for i in cohort]
        self._mailings = {i: mail for cohort in cohorts for mail in _mailings(method, task, cohort) for i in mail.ids}
        self._kept, self._room = dict[int, Tree](), KEEP_SENT
        self.bytes: dict[int, int] = {}
        self.phases: dict[int, int] = {}

    def only(self, ids: Sequence[int]) -> Sent:
        """The same messages, of these clients alone."""
        chosen = copy(self)
        chosen._ids = list(ids)
        return chosen

    def to(self, i: int) -> Tree:
        mail = self._mailings[i]
        with mail.lock:
            if i not in self._kept and i not in mail.made:
                mail.made |= self._make(mail, i)
            return self._kept[i] if i in self._kept else self._hand_out(i, mail.made.pop(i))

    def _make(self, mail: Mailing, i: int) -> dict[int, Tree]:
        with at(self._task.device):
            if len(mail.ids) == 1:
                return {i: self._method.send(self._task, self._server, i)}
            made = dict(zip(mail.ids, self._method.send_many(self._task, self._server, mail.ids), strict=True))
        return {i: made[i]} if i in self.bytes else made  # asked again: the same bits, and nothing for the others

    def _hand_out(self, i: int, down: Tree) -> Tree:
        self.bytes[i], self.phases[i] = count_bytes(down), self._method.phase(down)
        if self.bytes[i] <= self._room:
            self._room -= self.bytes[i]
            self._kept[i] = down
        return down

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, k: int) -> Tree: ...
    @overload
    def __getitem__(self, k: slice) -> list[Tree]: ...
    def __getitem__(self, k: int | slice) -> Tree | list[Tree]:
        return [self.to(i) for i in self._ids[k]] if isinstance(k, slice) else self.to(self._ids[k])


def _mailings(method: Method, task: Task, cohort: Sequence[int]) -> Iterator[Mailing]:
    """Largest clients first, as transports visit them, so that few messages wait at a time."""
    model = 4 * (task.P + task.Q)
    size = max(1, min(SEND_TOGETHER, TOGETHER_BYTES // model)) if method.together else 1
    order = sorted(cohort, key=lambda i: (-int(task.sizes[i]), i))
    return (Mailing(order[k : k + size]) for k in range(0, len(order), size))
