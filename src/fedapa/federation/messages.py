"""Requests and replies between a coordinator and its sites: plain values beside the tensors, checked on both ends.

Messages do not depend on the transport. A transport sends an ``Outgoing`` as a message of its own, and returns a reply
as an ``Incoming``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_type_hints

from fedapa.errors import FedapaError, InputError

if TYPE_CHECKING:  # the SuperLink reads plain values alone, and torch would double its memory
    from fedapa.core.tree import Tree

T = TypeVar("T")
LONGEST_TEXT, LONGEST_LIST = 1_000_000, 100_000

FailureKind = Literal["away", "too large", "unreadable", "failed"]


class Unsound(ValueError):
    """An invalid message, with the reason."""


class Disclosed(FedapaError):
    """An error whose text may be sent to the coordinator: it names no rows, columns or folders of the site."""


class Withheld(Disclosed):
    """An error in two texts: ``message`` is sent, ``here`` stays in the site's own log."""

    def __init__(self, message: str, here: str) -> None:
        super().__init__(message)
        self.here = here


class Refused(Disclosed, InputError):
    """The site refuses to do or to send this."""


class Failure(NamedTuple):
    """Why there is no reply: the site is away, its reply is too large or unreadable, or the site failed."""

    kind: FailureKind
    reason: str


class Outgoing(NamedTuple):
    """A message to a site: records of plain values and trees of tensors, by name."""

    place: int  # the transport's number of the site
    kind: Literal["train", "query"]
    records: dict[str, dict[str, Any]]
    trees: dict[str, Tree]
    seconds: float  # timeout
    group: str = ""


class Incoming(Protocol):
    """A reply, or why there is none. Its parts are untrusted: an invalid one raises ``Unsound``."""

    @property
    def reply_to(self) -> str: ...

    @property
    def failure(self) -> Failure | None: ...

    def record(self, name: str) -> object:
        """Plain values, not checked yet: see ``read``."""

    def tree(self, name: str, most_bytes: float) -> Tree:
        """Tensors with checked names, dtypes, shapes and sizes."""


@dataclass(frozen=True)
class Terms:
    """What all sites of a run agree on. Every request carries it, so sites need not remember it."""

    run: str  # id of the run, the same after a resume
    config: str  # TOML: one method, one seed
    names: list[str]  # the sites, in the order of their numbers
    sizes: list[int]  # their training samples
    engine: str
    classes: int
    shape: list[int]
    mean: list[float]
    std: list[float]
    target: list[float]  # mean and standard deviation of targets that are numbers; empty: classes


@dataclass(frozen=True)
class TrainRequest:
    """One visit. ``accepted`` and ``digest`` name the state that the site must start from."""

    site: str
    client: int
    round: int
    train: bool
    evaluate: bool
    evaluate_last: bool
    accepted: int  # rounds done when the server last accepted an upload of this site; 0: the common start
    digest: str  # of that state; empty: the common start
    keep_from: int  # no older state will ever be asked for


@dataclass(frozen=True)
class TrainReply:
    run: str
    site: str
    round: int
    fault: str  # why there is no valid upload; empty if there is one
    trained: bool  # the reply has an upload
    digest: str  # of the state that the upload came from
    before: list[float]  # sum, count, and both on validation data, of every score of the objective; empty: none
    after: list[float]
    train_loss: list[float]  # sum and count over the batches that it trained on; empty: not known, or withheld
    seconds: float
    train_seconds: float


@dataclass(frozen=True)
class Question:
    """Asks a site what data it has for a run of this config."""

    site: str
    config: str


@dataclass(frozen=True)
class Description:
    """What a site says about its data: sizes and formats, no statistics of any value."""

    site: str
    fault: str
    train: int
    test: int
    validation: int
    classes: int  # 0: targets are numbers
    shape: list[int]
    dtype: str
    mean: list[float]
    std: list[float]
    target: list[float]  # count, sum and sum of squares of targets that are numbers; empty: classes
    labels: list[int]  # the classes that it has
    fingerprint: str  # of the rows, keyed by a secret of the site
    native: bool  # the native engine can run the model here
    layout: str  # hash of names and kinds of its columns and of its classes; empty: no data of its own


def plain(text: object, most: int = 200) -> str:
    """Untrusted text as one short printable line, for logs and terminals."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:most])


def digest_of(text: str) -> str:
    """Identifies a config in logs; the same at the coordinator and at every site."""
    return hashlib.sha256(text.encode()).hexdigest()


def write(message: Any) -> dict[str, Any]:
    return asdict(message)


def read(kind: type[T], record: object) -> T:
    """Parse an untrusted record: every field must be there, of its type, and of sensible size."""
    if not isinstance(record, Mapping):
        raise Unsound("the reply is empty")
    hints = get_type_hints(kind)
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if names != set(record):
        odd = sorted(names ^ set(record))[0]
        raise Unsound(f"its field {odd[:40]!r} is missing or unknown")
    return kind(**{name: _checked(name, record[name], hints[name]) for name in names})


def _checked(name: str, value: Any, hint: Any) -> Any:
    inner = {list[int]: int, list[str]: str, list[float]: float}.get(hint)
    if inner is not None:
        if not isinstance(value, list) or len(value) > LONGEST_LIST:
            raise Unsound(f"its field {name} is not a list")
        return [_checked(name, item, inner) for item in value]
    if type(value) is not hint:
        raise Unsound(f"its field {name} has the wrong type")
    if (hint is float and not math.isfinite(value)) or (hint is str and len(value) > LONGEST_TEXT):
        raise Unsound(f"its field {name} is out of range")
    return value
