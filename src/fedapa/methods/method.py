"""A federated method is six pure functions on trees of tensors, plus hyper-parameters that know their legal range."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from torch import Tensor

from fedapa.core.tree import Tree, grown
from fedapa.errors import InputError
from fedapa.training.local import Local
from fedapa.training.task import Task

When = Literal["before", "after"]
Schedule = Literal["parallel", "sequential"]
Surrogate = Callable[[Task, Tree, Tree, int, Tree], Tensor]  # (task, old server, new server, client, upload) -> loss


def hyper(
    default: Any, help: str, low: float = -math.inf, high: float = math.inf, source: str = "", search: str = ""
) -> Any:
    """A hyper-parameter: its default, one line of help, its legal range and where the default comes from.

    ``search`` is what `fedapa tune` tries: "log:0.01..10", "0..0.9" or choices "1,2,5"; nothing keeps the default.
    """
    meta = {"help": help, "low": low, "high": high, "source": source, "search": search}
    return field(default=default, metadata=meta)


class Role(Enum):
    """What a tensor is to code that does not know the method. One without a role is a model or the method's own."""

    SAMPLES = "in an upload: the client's number of samples, which its coordinator knows"
    CLASS_COUNTS = "in an upload: the client's samples of every class"
    SUMS = "in an upload: sums over the client's samples, which grow with their number"
    MOMENTUM = "in the server's state: what a client begins with at rest"
    WEIGHTS = "watched: [M, M], how much of every client's model goes to every other"


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
    def schedule(self) -> Schedule:
        """Clients of one round see the same server (``parallel``) or each sees what the ones before it left."""
        return "parallel"

    def admit(self, task: Task, server: Tree) -> Tree:
        """The server's state with room for one more client, the last of ``task``; nobody else's part changes.

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
        hints = get_type_hints(type(self))
        for f in fields(self):
            _check(type(self).__name__, f.name, getattr(self, f.name), hints[f.name], f.metadata)


def _check(owner: str, name: str, value: Any, hint: Any, meta: Any) -> None:
    if choices := [a for a in get_args(hint) if isinstance(a, str)]:
        if value not in choices:
            raise InputError(f"{owner}.{name} is {value!r}", f"choose one of {', '.join(choices)}")
        return
    if isinstance(value, bool) or hint is bool:
        if not (isinstance(value, bool) and hint is bool):
            raise InputError(f"{owner}.{name} is {value!r}", f"it must be {getattr(hint, '__name__', hint)}")
        return
    if isinstance(value, int | float):
        low, high = meta.get("low", -math.inf), meta.get("high", math.inf)
        if not (low <= value <= high) or math.isnan(value):
            raise InputError(f"{owner}.{name} is {value}, outside its legal range", f"choose from {low:g} to {high:g}")
        if hint is int and not isinstance(value, int):
            raise InputError(f"{owner}.{name} is {value}", "it must be a whole number")
    elif hint in (int, float):
        raise InputError(f"{owner}.{name} is {value!r}", "it must be a number")


def named(roles: Roles, wanted: Role) -> list[str]:
    """The tensors that have this role."""
    return [name for name, role in roles.items() if role is wanted]


def mixing_weights(method: Method, server: Tree) -> Tensor | None:
    """[M, M] how much of every client's model goes to every other, where the method tells."""
    watched = method.watch(server)
    return next((watched[name] for name in named(method.roles, Role.WEIGHTS)), None)


def describe(method: type[Method]) -> list[dict[str, Any]]:
    """The hyper-parameters of a method class as rows for listings."""
    hints = get_type_hints(method)
    return [
        {"name": f.name, "default": f.default, "type": _type_name(hints[f.name]), **dict(f.metadata)}
        for f in fields(method)
    ]


def _type_name(hint: Any) -> str:
    choices = [a for a in get_args(hint) if isinstance(a, str)]
    return " | ".join(choices) if choices else str(getattr(hint, "__name__", hint))
