"""Transport to real sites, for the same round loop: send, wait, retry, leave stragglers out.

For every site, the server keeps the round and the digest of the last accepted state, and names both in every request.
So a repeated request starts from the same state and ends in the same upload, whichever process was killed when.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from fedapa.core.scores import ACCURACY, Score
from fedapa.core.summaries import Sums
from fedapa.core.tree import Tree
from fedapa.errors import RunError
from fedapa.federation import messages
from fedapa.federation.messages import Incoming, Outgoing, Terms, TrainReply, TrainRequest, Unsound
from fedapa.rounds.membership import Newcomer
from fedapa.rounds.site_policy import SitePolicy
from fedapa.rounds.transport import Record, Reply, Request
from fedapa.store.checkpoint import KEEP
from fedapa.training.job import LossSum
from fedapa.training.task import Task

POLL = 0.5  # seconds between two polls for replies; a node polls for messages every three
MOST_SAMPLES = 10**12  # that a visit may have trained on
LOOK = 2.0  # seconds between two checks of who is online


class SessionLost(Exception):
    """The engine no longer knows this session's messages: a new session must send them again."""


class Node(NamedTuple):
    online: bool
    since: float  # when the node started, by the engine's clock; another value: it, or the engine, was restarted


class Session(Protocol):
    """Sends and receives messages. Every call may raise ``SessionLost``."""

    def push(self, message: Outgoing) -> str:
        """Send a message; returns its id, or nothing if it was not accepted."""

    def pull(self, ids: Iterable[str]) -> Iterable[Incoming]:
        """The replies that arrived since the last call."""

    def nodes(self) -> dict[int, Node]:
        """The nodes that are known, by number."""

    def renew(self) -> None:
        """Start again after ``SessionLost``; raises RunError if that fails."""


@dataclass
class SiteState:
    """What the server knows of one site."""

    accepted: int = 0
    digest: str = ""
    refusals: int = 0  # in a row


@dataclass
class Waiting:
    """One request on its way."""

    request: Request
    message: str = ""  # empty: still to be sent
    sent: float = 0.0
    since: float = 0.0  # the start of the node that it was sent to
    tries: int = 0
    offline: float | None = None  # since when its site is away
    problems: list[str] = field(default_factory=list)


class RemoteTransport:
    """Sites behind a session. ``places`` are their numbers there, None for a site that is gone for good."""

    def __init__(
        self,
        session: Session,
        terms: Terms,
        places: Callable[[], Sequence[int | None]],
        policy: SitePolicy | None = None,
        tests: Sequence[tuple[int, int]] | None = None,
        scores: Sequence[Score] = (ACCURACY,),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.session, self.terms, self.places = session, terms, places
        self.policy, self.tests, self.scores = policy or SitePolicy(), tests, scores
        self._clock, self._sleep = clock, sleep
        self.standings = [SiteState() for _ in terms.names]
        self._pending: dict[int, tuple[int, str]] = {}
        self._uploaded: set[int] = set()
        # Tags of the checkpoints that may still be read: the newest two, and one that is being written.
        self._safe: deque[list[int]] = deque([[0] * len(terms.names)], maxlen=KEEP + 1)

    # ------------------------------------------------------------------------------------ what the loop asks for

    def exchange(self, requests: Sequence[Request]) -> Iterator[Reply]:
        self._uploaded.clear()
        waiting = {}
        for request in requests:
            if self.standings[request.client].refusals >= self.policy.quarantine_after:
                text = f"is in quarantine after {self.standings[request.client].refusals} refused uploads"
                yield Reply(request.client, None, None, None, 0.0, 0.0, text)
            else:
                waiting[request.client] = Waiting(request)
        if not waiting and requests:
            raise RunError("every site is in quarantine", "see the run's log for what was refused; then release them")
        yield from self._gather(waiting)

    def commit(self, clients: Sequence[int]) -> None:
        for i in clients:
            self.standings[i] = SiteState(*self._pending[i])
        for i in self._uploaded - set(clients):
            self.standings[i].refusals += 1
        self._uploaded.clear()
        self._pending.clear()

    def admit(self, task: Task, newcomer: Newcomer, client: Tree) -> None:
        """Add a site. Requests to all others name it from now on."""
        self.terms = replace(self.terms, names=list(task.names), sizes=task.sizes.tolist())
        self.standings.append(SiteState())
        if self.tests is not None:
            self.tests = [*self.tests, (newcomer.test, newcomer.validation)]
        for tags in self._safe:
            tags.append(0)

    def records(self) -> list[Record]:
        """Sites keep their own states; a checkpoint holds which of them was accepted last."""
        self._safe.append([standing.accepted for standing in self.standings])
        return [_to_record(standing) for standing in self.standings]

    def restore(self, records: Sequence[Record]) -> None:
        self.standings = [_from_record(record) for record in records]
        self._safe = deque([[0] * len(self.standings)], maxlen=KEEP + 1)

    # ------------------------------------------------------------------------------------------------ one exchange

    def _gather(self, waiting: dict[int, Waiting]) -> Iterator[Reply]:
        """Yield replies as they arrive, until all are there or the timeout; below the quorum, go on waiting."""
        needed = self._needed([w.request for w in waiting.values()])
        begin, looked, nodes = self._clock(), -LOOK, dict[int, Node]()
        while waiting:
            try:
                now = self._clock()
                if now - looked >= LOOK:
                    nodes, looked = self.session.nodes(), now
                self._send(waiting, nodes)
                for i, message in self._received(waiting):
                    reply = self._read(waiting[i], message) if i in waiting else None
                    if reply is not None:
                        needed -= reply.up is not None
                        del waiting[i]
                        yield reply
            except SessionLost:
                self.session.renew()
                for entry in waiting.values():
                    entry.message = ""
                begin, looked = self._clock(), -LOOK  # sites are not blamed while the engine is away
                continue
            if needed <= 0 and waiting:
                yield from self._give_up(waiting, begin)
            elif self._clock() - begin > self.policy.quorum_timeout:
                break
            if waiting:
                self._sleep(POLL)
        if needed > 0:
            short = f"{needed} more uploads are needed"
            raise RunError(f"too few sites answered: {short}", "resume the run when more of them are back")

    def _needed(self, requests: Sequence[Request]) -> int:
        """Uploads to wait for. Where sites train one after another, nobody waits for one of them."""
        training = sum(request.train for request in requests)
        return 0 if training <= 1 < len(self.terms.names) else min(self.policy.min_replies, training)

    def _send(self, waiting: dict[int, Waiting], nodes: dict[int, Node]) -> None:
        places = self.places()
        for i, entry in waiting.items():
            place = places[i]
            node = None if place is None else nodes.get(place)
            if place is None:
                entry.message = ""  # its reply does not count: the site was removed
            if place is None or node is None or not node.online:
                entry.offline = entry.offline or self._clock()
                continue
            entry.offline = None
            if entry.message and node.since != entry.since:
                entry.message = ""  # its node restarted and lost what it had received
            if not entry.message:
                message = self._message(entry.request, place)
                entry.message, entry.sent, entry.since = self.session.push(message), self._clock(), node.since

    def _message(self, request: Request, place: int) -> Outgoing:
        standing, i = self.standings[request.client], request.client
        keep_from = min(tags[i] for tags in self._safe) if len(self._safe) == self._safe.maxlen else 0
        ask = TrainRequest(
            self.terms.names[i],
            i,
            request.round,
            request.train,
            request.evaluate,
            request.evaluate_last,
            standing.accepted,
            standing.digest,
            keep_from,
        )
        records = {"terms": messages.write(self.terms), "ask": messages.write(ask)}
        seconds = self.policy.round_timeout + self.policy.rejoin
        return Outgoing(place, "train", records, {"down": request.down()}, seconds, str(request.round + 1))

    def _received(self, waiting: dict[int, Waiting]) -> list[tuple[int, Incoming]]:
        """Replies to the latest requests; replies to older ones are dropped."""
        owners = {entry.message: i for i, entry in waiting.items() if entry.message}
        if not owners:
            return []
        replies = self.session.pull(owners)
        found = [(owners.get(message.reply_to), message) for message in replies]
        return [(i, message) for i, message in found if i is not None]

    def _read(self, entry: Waiting, message: Incoming) -> Reply | None:
        """The reply of a site; None to ask it again."""
        i, request = entry.request.client, entry.request
        failure = message.failure
        if failure is not None and failure.kind in ("too large", "unreadable"):
            self._uploaded.add(i)
            return Reply(i, {} if request.train else None, None, None, 0.0, 0.0, messages.plain(failure.reason))
        if failure is not None:
            entry.message = ""
            entry.tries += failure.kind != "away"
            entry.problems.append(messages.plain(failure.reason))
            if entry.tries <= self.policy.retries:
                return None
            return Reply(i, None, None, None, 0.0, 0.0, f"failed: {entry.problems[-1]}")
        seconds = self._clock() - entry.sent
        try:
            answer, up = self._checked(request, message)
        except Unsound as error:
            self._uploaded.add(i)
            return Reply(i, {} if request.train else None, None, None, seconds, 0.0, str(error))
        before, after = (self._sums(row) if row else None for row in (answer.before, answer.after))
        if up is not None:
            self._uploaded.add(i)
            self._pending[i] = (request.round + 1, answer.digest)
        fault = f"could not answer: {messages.plain(answer.fault, 500)}" if answer.fault else None
        loss = LossSum(answer.train_loss[0], int(answer.train_loss[1])) if answer.train_loss else LossSum()
        return Reply(i, up, before, after, seconds, answer.train_seconds, fault, loss)

    def _checked(self, request: Request, message: Incoming) -> tuple[TrainReply, Tree | None]:
        """Check that a reply answers this request of this run; the loop checks the tensors."""
        i = request.client
        answer = messages.read(TrainReply, message.record("answer"))
        for what, is_, should in (
            ("run", answer.run, self.terms.run),
            ("site", answer.site, self.terms.names[i]),
            ("round", answer.round, request.round),
        ):
            if is_ != should:
                raise Unsound(f"it answers for {what} {str(is_)[:80]!r}, not {str(should)!r}")
        if answer.trained != (request.train and not answer.fault):
            raise Unsound("unexpected or missing upload")
        if answer.trained and not _is_digest(answer.digest):
            raise Unsound("state digest missing or malformed")
        if not 0 <= answer.train_seconds <= 1e9:
            raise Unsound("train_seconds out of range")
        for row in (answer.before, answer.after):
            if row:
                self._check_scores(i, row)
        if answer.train_loss and (len(answer.train_loss) != 2 or not 0 < answer.train_loss[1] <= MOST_SAMPLES):
            raise Unsound("invalid train loss")
        if not answer.trained:
            return answer, None
        return answer, message.tree("up", self.policy.max_upload_bytes)

    def _sums(self, row: list[float]) -> Sums:
        return np.array(row, dtype=np.float64).reshape(len(self.scores), 4)

    def _check_scores(self, i: int, row: list[float]) -> None:
        """Check sums and counts: within the bounds of the score, and over the declared data."""
        if len(row) != 4 * len(self.scores):
            raise Unsound(f"its scores are {len(row)} numbers, not {4 * len(self.scores)}")
        for score, (total, count, held, held_count) in zip(self.scores, self._sums(row).tolist(), strict=True):
            for sum, rows in ((total, count), (held, held_count)):
                value = score.value(sum, rows) if rows > 0 else score.low
                if rows < 0 or (rows == 0 and sum != 0) or not score.low <= value <= score.high:
                    raise Unsound(f"invalid score: {score.name} is out of range")
            wanted = None if self.tests is None else self.tests[i]
            if score.per_sample and wanted and (count, held_count) not in (wanted, (wanted[0], 0)):
                raise Unsound("its score counts other samples than it declared")

    def _give_up(self, waiting: dict[int, Waiting], begin: float) -> Iterator[Reply]:
        now, places = self._clock(), self.places()
        for i, entry in list(waiting.items()):
            if places[i] is None:
                text = "has left the federation"
            elif entry.offline is not None and now - entry.offline >= self.policy.rejoin:
                text = f"was offline for {now - entry.offline:.0f} s"
            elif now - begin >= self.policy.round_timeout:
                text = f"did not answer within {now - begin:.0f} s"
            else:
                continue
            del waiting[i]
            yield Reply(i, None, None, None, 0.0, 0.0, text)


def _is_digest(text: str) -> bool:
    with suppress(ValueError):
        return len(text) == 64 and len(bytes.fromhex(text)) == 32
    return False


def _to_record(standing: SiteState) -> Record:
    digest = torch.from_numpy(np.frombuffer(bytes.fromhex(standing.digest or "00" * 32), dtype=np.uint8).copy())
    counts = torch.tensor([standing.accepted, standing.refusals], dtype=torch.int64)
    return Record({"standing": counts, "digest": digest}, {})


def _from_record(record: Record) -> SiteState:
    counts: Any = record.state["standing"].tolist()
    digest = bytes(record.state["digest"].tolist()).hex() if counts[0] else ""
    return SiteState(counts[0], digest, counts[1])
