"""A federated method is six pure functions on trees of tensors, plus hyper-parameters that know their legal range."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Literal

from torch import Tensor

from fedapa.core.hyper_parameters import check_settings
from fedapa.core.hyper_parameters import hyper as hyper
from fedapa.core.tree import Tree, grown
from fedapa.training.local import Local
from fedapa.training.task import Task

__all__ = [
    "COUNTS",
    "Claims",
    "Method",
    "Role",
    "Roles",
    "Schedule",
    "Surrogate",
    "When",
    "hyper",
    "mixing_weights",
    "named",
]

When = Literal["before", "after"]
Schedule = Literal["parallel", "sequential"]
Surrogate = Callable[[Task, Tree, Tree, int, Tree], Tensor]  # (task, old server, new server, client, upload) -> loss


class Role(Enum):
    """What a tensor is to code that does not know the method. One without a role is a model or the method's own."""

    SAMPLES = "in an upload: the client's number of samples, which its coordinator knows"
    CLASS_COUNTS = "in an upload: the client's samples of every class"
    SUMS = "in an upload: sums over the client's samples, which grow with their number"
    MOMENTUM = "in the server's state: what a client begins with at rest"
    WEIGHTS = "watched: [M, M], how much of every client's model goes to every other"
    CLUSTERS = "watched: [M], the cluster of every client, of a method that puts clients into some"


Roles = Mapping[str, Role]
COUNTS = (Role.SAMPLES, Role.CLASS_COUNTS)  # what a coordinator can check by what a client declared


@dataclass(frozen=True)
class Claims:
    """What a method says about itself for the laws to check, by default nothing. Nothing else reads it."""

    regularisers: tuple[str, ...] = ()  # hyper-parameters that weigh a regulariser: 0 must change training
    resting: tuple[str, ...] = ()  # parts of the server's state that need not move in every run
    adapts: bool = False  # training starts from something made of what arrived (FedALA), not from it as it is
    ordered: bool = False  # ``absorb`` plays uploads one after another: the loop's ascending order is part of it
    # Uploads are coded (rounded, or the largest chosen): a tiny difference between two engines may move one by a whole
    # step, and whole numbers in it are codes whose values stand beside them as floats.
    jumps: bool = False
    # The loss that a server step descends: the trainables of the new state on everything else of the old one.
    surrogate: Surrogate | None = None
    bare: Method | None = None  # the method with a tiny server step and nothing behind it, to check that; None: itself
    limits: Mapping[str, Method] = field(default_factory=dict)  # settings that must equal another method, by its name


@dataclass(frozen=True)
class Method(ABC):
    """The protocol. A method owns no loop, no socket, no device and no file, and changes none of its arguments."""

    roles: ClassVar[Roles] = {}  # of tensors in uploads, in the server's state and watched, by name
    renamed: ClassVar[Mapping[str, str]] = {}  # old names of hyper-parameters, and what they are called now
    together: ClassVar[bool] = False  # ``send_many`` costs less than as many times ``send``

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
        """The new server state from the uploads of ``ids``; ``server`` is the state that ``downs`` were made from."""

    @abstractmethod
    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        """Logits of the personalized model, as used on site."""

    def shown(self, client: Tree) -> Tree:
        """What ``predict`` reads of a client's state; it is scored again only when that changed."""
        return client

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
    def relative_cost(self) -> float:
        """Time of a client's training beside Local's, about, by which a sweep orders and expects its runs.

        Measured for CIFAR-10, LeNet-5 and the native engine where it is a bare number; else counted in passes, forward
        and back as 1 and forward alone as 1/3, at two epochs.
        """
        return 1.0

    @property
    def revision(self) -> int:
        """Raised by one whenever a change alters the numbers of this method alone, in the last digit or more.

        What every raise changed: docs/decisions/0009-numerics-version.md.
        """
        return 0

    @property
    def needs_classes(self) -> bool:
        """Whether it learns something per class, such as prototypes: then it cannot predict numbers."""
        return False

    @property
    def needs_head(self) -> bool:
        """Whether it computes features or treats the head as one: then the model must be cut at its head."""
        return False

    @property
    def mixes_architectures(self) -> bool:
        """Whether clients may have different models, because nothing that it sends depends on the extractor."""
        return False

    @property
    def schedule(self) -> Schedule:
        """Clients of one round see the same server (``parallel``) or each sees what the ones before it left."""
        return "parallel"

    def admit(self, task: Task, server: Tree) -> Tree:
        """The server's state with one more client, the last of ``task``; the parts of the others do not change.

        It starts from the mean of the others' rows, with itself alone in a matrix of weights.
        """
        return grown(server, self.init(task, 0)[0], named(self.roles, Role.MOMENTUM))

    def remarks(self, task: Task) -> list[str]:
        """What is to be said before a run on this task; empty where the method fits it."""
        return []

    def claims(self) -> Claims:
        """What the law suite has to know about this method."""
        return Claims()

    def __post_init__(self) -> None:
        check_settings(self)


def named(roles: Roles, wanted: Role) -> list[str]:
    """The tensors that have this role."""
    return [name for name, role in roles.items() if role is wanted]


def mixing_weights(method: Method, server: Tree) -> Tensor | None:
    """[M, M] how much of every client's model goes to every other, where the method tells."""
    watched = method.watch(server)
    return next((watched[name] for name in named(method.roles, Role.WEIGHTS)), None)
