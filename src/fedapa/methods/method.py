"""A federated method is six pure functions on trees of tensors, plus hyper-parameters that know their legal range."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedapa.core.settings import check_settings, hyper
from fedapa.core.tree import Tree, grown
from fedapa.training.local import Local
from fedapa.training.task import Task

__all__ = ["Method", "Schedule", "When", "hyper"]

When = Literal["before", "after"]
Schedule = Literal["parallel", "sequential"]


@dataclass(frozen=True)
class Method(ABC):
    """The protocol. A method owns no loop, no socket, no device and no file, and changes none of its arguments."""

    # What the law suite has to know about a method.
    regularisers: ClassVar[tuple[str, ...]] = ()  # hyper-parameters that weigh a regulariser: 0 must change training
    renamed: ClassVar[Mapping[str, str]] = {}  # old names of hyper-parameters, and what they are called now
    resting: ClassVar[tuple[str, ...]] = ()  # parts of the server's state that need not move in every run
    together: ClassVar[bool] = False  # ``send_many`` costs less than as many times ``send``
    adapts: ClassVar[bool] = False  # training starts from something made of what arrived (FedALA), not from it as it is

    @abstractmethod
    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        """The server's state, and the state that every client starts with."""

    @abstractmethod
    def send(self, task: Task, server: Tree, i: int) -> Tree:
        """What goes to client i; depends on the server's state alone."""

    @abstractmethod
    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        """Install what arrived."""

    @abstractmethod
    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        """Learn from own data, starting from what ``receive`` installed: the new state, and what goes up."""

    @abstractmethod
    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        """What the server learns from whoever answered; ``server`` is the state that ``downs`` were made from."""

    @abstractmethod
    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        """Logits of the personalized model, as used on site."""

    def send_many(self, task: Task, server: Tree, ids: Sequence[int]) -> list[Tree]:
        """What goes to each of ``ids``, as ``send`` makes it, to float tolerance.

        A method that makes it cheaper for many clients in one go says so by ``together``; its messages are then about
        as large as a model, and its ``absorb`` does not read ``downs``, which may come from either.
        """
        return [self.send(task, server, i) for i in ids]

    def phase(self, down: Tree) -> int:
        """Messages of one phase have the same shapes. One phase is the rule; DBE's first round differs."""
        return 0

    def watch(self, server: Tree) -> Tree:
        """Small parts of the server's state worth keeping for every round, such as FedAPA's weights."""
        return {}

    @property
    def evaluated(self) -> When:
        """The model that the method's paper reports: as it arrived, or after local training. Runs record both."""
        return "after"

    @property
    def needs_classes(self) -> bool:
        """Whether it learns something per class, such as prototypes: then it cannot predict numbers."""
        return False

    @property
    def schedule(self) -> Schedule:
        """Clients of one round see the same server (``parallel``) or each sees what the ones before it left."""
        return "parallel"

    @property
    def ordered(self) -> bool:
        """``absorb`` plays uploads one after another, so the loop's ascending order is part of the method."""
        return False

    @property
    def jumps(self) -> bool:
        """Uploads are coded (rounded, or the largest chosen): a tiny difference between two engines may move one by a
        whole step, and whole numbers in it are codes whose values stand beside them as floats."""
        return False

    def admit(self, task: Task, server: Tree) -> Tree:
        """The server's state with room for one more client, the last of ``task``; nobody else's part changes.

        It starts from the mean of the others' rows, with itself alone in a matrix of weights.
        """
        return grown(server, self.init(task, 0)[0])

    def surrogate(self, task: Task, old: Tree, new: Tree, i: int, up: Tree) -> Tensor | None:
        """The loss that a server step claims to descend: the trainables of ``new`` on everything else of ``old``."""
        return None

    def bare(self) -> Method:
        """This method with a tiny server step and nothing behind the step, for checking that it descends."""
        return self

    def limits(self) -> dict[str, Method]:
        """Settings in which this method must equal another one, by that one's name."""
        return {}

    def __post_init__(self) -> None:
        check_settings(self)
