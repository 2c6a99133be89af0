"""Who belongs to a run: what was agreed with every site, who joined later and when, who left for good.

Between two rounds the registry is looked at. A new site is asked what it has, and nobody waits for its answer: it joins
before the round that follows it. What was decided is in the run's federation.json before that round is played, so a
resumed run decides the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedapa.errors import InputError, RunError
from fedapa.federation import messages
from fedapa.federation.messages import Description, Incoming, Outgoing, Question, Terms, Unsound
from fedapa.federation.remote_transport import Session, SessionLost
from fedapa.rounds.membership import Newcomer
from fedapa.store.checkpoint import write_json

if TYPE_CHECKING:
    from fedapa.federation.registry import Enrolled  # which needs the extra for its keys

AGREED = "federation.json"
NEVER = -1
MOST, MOST_CLASSES = 2**40, 100_000  # samples and classes that a site may say it has
LARGEST_TARGET = 1e100  # a sum whose square is still a number
FEWEST = 3  # sites among which one can be called too large
PATIENCE = 60.0  # seconds after which a question without an answer is asked again
Members: TypeAlias = "Callable[[], Sequence[Enrolled]]"  # of the federation, now


@dataclass(frozen=True)
class Agreement:
    """What was agreed with the sites of a run: with the first of them when it began, with others when they joined."""

    terms: Terms  # with all sites
    descriptions: list[Description]
    since: list[int]  # rounds that were done when a site joined; 0: it was there from the start
    until: list[int]  # rounds that were done when it left for good; NEVER while it belongs to the run

    def first(self) -> tuple[Terms, list[Description]]:
        """The terms of those who were there from the start."""
        count = self.since.count(0)
        terms = replace(self.terms, names=self.terms.names[:count], sizes=self.terms.sizes[:count])
        return terms, self.descriptions[:count]

    def with_site(self, found: Description, round: int) -> Agreement:
        names, sizes = [*self.terms.names, found.site], [*self.terms.sizes, found.train]
        terms = replace(self.terms, names=names, sizes=sizes)
        return Agreement(terms, [*self.descriptions, found], [*self.since, round], [*self.until, NEVER])


def read_agreement(folder: Path) -> Agreement | None:
    path = folder / AGREED
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        terms = messages.read(Terms, found["terms"])
        rows = [{"layout": "", **row} for row in found["descriptions"]]  # older runs told no layout
        described, count = [messages.read(Description, row) for row in rows], len(terms.names)
        return Agreement(terms, described, found.get("since", [0] * count), found.get("until", [NEVER] * count))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}", "restore it, or run again in a new folder") from None


def write_agreement(folder: Path, agreement: Agreement) -> None:
    write_json(folder / AGREED, asdict(agreement))


class Enrolment:
    """The membership of a run with real sites."""

    def __init__(
        self,
        session: Session,
        members: Members,
        folder: Path,
        agreement: Agreement,
        is_open: bool = True,
        max_share: float = 1.0,
    ) -> None:
        self.session, self.members_now, self.folder = session, members, folder
        self.agreement, self.is_open, self.max_share = agreement, is_open, max_share
        self._asked: dict[str, tuple[Enrolled, float]] = {}  # by message
        self._started: dict[str, float] = {}  # when the node that was asked had come online, by name
        self._answers: dict[str, Description] = {}  # by name
        self._refused: dict[str, float] = {}  # the start of the node that was turned away, by name

    def arrivals(self, round: int) -> list[Newcomer]:
        agreed = self.agreement
        if any(since > round for since in agreed.since):  # rounds that are played again: nobody else came then
            return self._joined(lambda since: since == round)
        self._note_leavers(round)
        if round == 0:
            return []
        return [*self._joined(lambda since: since == round), *(self._new() if self.is_open else ())]

    def members(self, round: int) -> list[Newcomer]:
        return self._joined(lambda since: 0 < since < round)

    def admit(self, newcomer: Newcomer, round: int) -> None:
        if newcomer.name not in self.agreement.terms.names:
            self._agree(self.agreement.with_site(self._answers[newcomer.name], round))

    def reject(self, newcomer: Newcomer) -> None:
        self._refused[newcomer.name] = self._started.get(newcomer.name, 0.0)

    def gone(self, round: int) -> frozenset[int]:
        return frozenset(i for i, until in enumerate(self.agreement.until) if NEVER < until <= round)

    def _joined(self, when: Callable[[int], bool]) -> list[Newcomer]:
        both = zip(self.agreement.descriptions, self.agreement.since, strict=True)
        return [newcomer(found) for found, since in both if when(since)]

    def _agree(self, agreement: Agreement) -> None:
        self.agreement = agreement
        write_agreement(self.folder, agreement)

    def _note_leavers(self, round: int) -> None:
        names, until = {site.name for site in self.members_now()}, list(self.agreement.until)
        for i, name in enumerate(self.agreement.terms.names):
            if name not in names and until[i] == NEVER:
                until[i] = round
        if until != self.agreement.until:
            self._agree(replace(self.agreement, until=until))

    def _new(self) -> list[Newcomer]:
        """Those that are here and were not asked yet are asked now; whose answer has come, joins."""
        try:
            self._ask()
            return self._heard()
        except SessionLost:
            self.session.renew()
            self._asked.clear()
            return []

    def _heard(self) -> list[Newcomer]:
        found = []
        for message in self.session.pull(list(self._asked)) if self._asked else ():
            site, _ = self._asked.pop(message.reply_to, (None, 0.0))
            if site is None or is_away(message):
                continue
            try:
                answer = self._answers[site.name] = self._fitting(described_by(site, message))
                found.append(newcomer(answer))
            except RunError as error:
                found.append(Newcomer(site.name, 0, 0, 0, "", fault=error.message))
        return sorted(found, key=lambda newcomer: newcomer.name)

    def _fitting(self, found: Description) -> Description:
        if fault := found.fault or differ(self.agreement.descriptions[0], found):
            raise RunError(fault)
        if self.agreement.terms.engine == "native" and not found.native:
            raise RunError("this run uses the native engine, which is not there")
        both = zip(self.agreement.descriptions, self.agreement.until, strict=True)
        others = [other for other, until in both if until == NEVER]
        if found.train > max((other.train for other in others), default=0):
            fault = oversized([*others, found], self.max_share)
        if fault:
            raise RunError(fault)
        return found

    def _ask(self) -> None:
        now = time.monotonic()
        self._asked = {name: entry for name, entry in self._asked.items() if now - entry[1] < PATIENCE}
        known = {*self.agreement.terms.names, *(site.name for site, _ in self._asked.values())}
        absent = [site for site in self.members_now() if site.name not in known]
        nodes = self.session.nodes() if absent else {}
        for site in absent:
            node = nodes.get(site.node)
            if node is None or not node.online or node.since == self._refused.get(site.name):
                continue
            self._started[site.name] = node.since
            if message := self.session.push(question(site, self.agreement.terms.config)):
                self._asked[message] = (site, now)


def newcomer(found: Description) -> Newcomer:
    """What the loop knows about a site: which classes it has, not how many of each; that it does not tell."""
    flags = ",".join(str(int(k in found.labels)) for k in range(found.classes))
    return Newcomer(found.site, found.train, found.test, found.validation, flags, frozenset(found.labels))


def places(members: Sequence[Enrolled], names: Sequence[str]) -> list[int | None]:
    """The transport's number for every site of a run; None for one that was removed."""
    known = {site.name: site.node for site in members}
    return [known.get(name) for name in names]


def differ(one: Description, other: Description) -> str:
    """Why two sites cannot be part of one run; empty if they can."""
    if one.layout != other.layout:
        return f"{one.site} and {other.site} have other columns or classes, or other codes in them"
    for name in ("classes", "shape", "dtype", "mean", "std"):
        if (a := getattr(one, name)) != (b := getattr(other, name)):
            return f"the data differ in {name}: {a} at {one.site}, {b} at {other.site}"
    return ""


def oversized(found: Sequence[Description], most: float) -> str:
    """Which site says that it has more than this share of all training rows; empty if none does. Methods weigh sites by
    their rows, and nobody else can count them: a large number would make one site's update the model of all."""
    total, largest = sum(d.train for d in found), max(found, key=lambda d: d.train)
    if len(found) < FEWEST or largest.train <= most * total:
        return ""
    said = f"site {largest.site} says that it has {largest.train} of {total} training rows"
    return f"{said}, a larger share than federation.max_share = {most:g}"


def outside(found: Sequence[Description], limits: tuple[float, float] | None) -> str:
    """Which site says that the numbers to predict are beyond the agreed range, on average; empty if none does. They
    scale the targets of all sites."""
    if limits is None:
        return ""
    (low, high), most = limits, max(map(abs, limits))
    slack = 1e-9 * most  # of sums
    for d in found:
        count, total, squares = d.target or (1.0, low, 0.0)
        if not low - slack <= total / count <= high + slack or squares / count > (most + slack) ** 2:
            return f"site {d.site} has numbers to predict outside of the agreed {low:g} to {high:g}"
    return ""


def _is_target(found: Description) -> bool:
    """Can these be the count, sum and sum of squares of its rows?"""
    if found.classes:
        return not found.target
    if len(found.target) != 3:
        return False
    count, total, squares = found.target
    if count != found.train or max(abs(total), squares) > LARGEST_TARGET:
        return False
    return squares * count >= total**2 * (1 - 1e-9)


def question(site: Enrolled, text: str) -> Outgoing:
    return Outgoing(site.node, "query", {"question": messages.write(Question(site.name, text))}, {}, 3600.0)


def is_away(message: Incoming) -> bool:
    """The site went away, or its answer stopped on the way."""
    return message.failure is not None and message.failure.kind == "away"


def described_by(site: Enrolled, message: Incoming) -> Description:
    if message.failure is not None:
        raise RunError(f"site {site.name} failed: {messages.plain(message.failure.reason, 300)}", "see its log")
    try:
        found = messages.read(Description, message.record("description"))
    except Unsound as error:
        raise RunError(
            f"site {site.name} does not say what it has: {error}", "is its fedapa of another version?"
        ) from None
    sound = found.site == site.name and (
        found.fault
        or (
            found.dtype in ("uint8", "float32")
            and 0 < len(found.shape) <= 4
            and min(found.shape) > 0
            and 0 < found.train < MOST
            and 0 <= found.test < MOST
            and 0 <= found.validation < MOST
            and 0 <= found.classes <= MOST_CLASSES
            and _is_target(found)
            and all(0 <= label < found.classes for label in found.labels)
        )
    )
    if not sound:
        raise RunError(f"site {site.name} sent an inconsistent description", "see its log")
    return replace(found, fault=messages.plain(found.fault, 500))
