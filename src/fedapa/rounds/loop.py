"""The only round loop: draw clients, send, gather, refuse what is unsound, let the server learn, write it all down."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import NamedTuple, Protocol, overload

import numpy as np
import torch

from fedapa.core.tree import Tree, count_bytes, find_fault, is_finite
from fedapa.data.federated import Split
from fedapa.errors import InputError, RunError
from fedapa.methods.method import Method
from fedapa.rounds.evaluation import UNKNOWN, Sums, nothing
from fedapa.rounds.membership import Gate, Newcomer
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.tensor_storage import Room, is_mapped
from fedapa.rounds.transport import Reply, Request, Transport
from fedapa.rounds.upload_limits import Limits, change_between
from fedapa.streams import stream
from fedapa.training.local import Local
from fedapa.training.task import Task

DONATE_ABOVE = 256 * 2**20  # a server state larger than this is updated in place, without a second copy
KEEP_SENT = 256 * 2**20  # bytes of sent messages kept at hand; the rest is computed again when needed
SEND_TOGETHER, TOGETHER_BYTES = 64, 128 * 2**20  # most clients, and most bytes, that are sent to in one go


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
    before: Sums | None = None  # [M, S, 4]: see rounds/evaluation.py
    after: Sums | None = None
    final: Sums | None = None  # of the last round: what the last aggregation would send, which no round scores
    down_bytes: dict[int, int] = field(default_factory=dict)
    up_bytes: dict[int, int] = field(default_factory=dict)
    client_seconds: dict[int, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    watched: Tree = field(default_factory=dict)
    joined: list[Newcomer] = field(default_factory=list)  # before this round; the last of all clients
    gone: frozenset[int] = frozenset()  # who left for good before this round, or before another


class State(NamedTuple):
    """Where a run stands between two rounds, beside the clients' own records."""

    round: int  # rounds done
    server: Tree
    last: Sums  # [M, S, 4] scores of every client's last trained state; UNKNOWN where it was not measured yet


class Sink(Protocol):
    def __call__(self, log: RoundLog, state: State) -> None: ...


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
        self._method, self._task, self._server = method, task, server
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


def start(method: Method, task: Task, seed: int) -> tuple[State, Tree]:
    """The state before the first round, and what every client starts with."""
    check_fits(method, task)
    server, client = method.init(task, seed)
    return State(0, server, np.stack([nothing(task, UNKNOWN)] * task.clients)), client


def check_fits(method: Method, task: Task) -> None:
    """Some methods learn something per class, which numbers do not have."""
    if method.needs_classes and task.classes == 0:
        hint = "use a method without prototypes or means by class, such as fedavg, fedper or fedapa"
        raise InputError(f"{type(method).__name__} needs classes, and the targets are numbers", hint)


def draw(plan: Plan, clients: int, t: int, gone: frozenset[int] = frozenset()) -> list[int]:
    """Who takes part in round t: a number between the two shares, then that many clients, in random order."""
    there = [i for i in range(clients) if i not in gone]
    if not there:
        raise RunError("every client has left for good", "start a new run with those that are there now")
    low, high = (math.ceil(share * len(there) - 1e-9) for share in plan.participation)
    random = stream(plan.seed, "participation", t)
    count = int(random.integers(max(low, 1), max(high, 1) + 1))
    return [there[i] for i in random.choice(len(there), count, replace=False)]


class Expected:
    """What a sound upload looks like, from a dry visit to a client with two blank samples; one for every phase.

    Two, because some methods train even in a dry visit, and BatchNorm cannot do so on one.
    With ``limits``, uploads come from outside: they are held to more than their shapes, and a round in which all of
    them are refused does not end the run.
    """

    def __init__(self, method: Method, task: Task, sample: torch.Tensor, limits: Limits | None = None) -> None:
        self._method, self.limits, self.roles = method, limits, method.roles
        self._task = replace(task, training=replace(task.training, epochs=0), donate=False)
        kind = torch.int64 if task.classes else torch.float32
        self._data = Split(torch.stack([torch.zeros_like(sample)] * 2), torch.zeros(2, dtype=kind))
        self._known: dict[int, Tree] = {}

    def upload(self, down: Tree) -> Tree:
        """The upload that answers ``down``: names, shapes and dtypes are what counts."""
        phase = self._method.phase(down)
        if phase not in self._known:
            _, client = self._method.init(self._task, 0)
            local = Local(self._task, 0, 0, 0, self._data)
            state = self._method.receive(self._task, client, down, local)
            self._known[phase] = self._method.train(self._task, state, down, local)[1]
        return self._known[phase]

    def with_client(self, task: Task, newcomer: Newcomer) -> Expected:
        """The same for a run that ``newcomer`` has joined."""
        limits = self.limits and self.limits.with_client(newcomer.classes)
        return Expected(self._method, task, self._data.x[0], limits)

    def known(self, phase: int | None) -> Tree | None:
        """The upload of a phase, if a message of it was looked at before."""
        return None if phase is None else self._known.get(phase)

    def exchanges(self, rounds: int) -> list[tuple[Tree, Tree]]:
        """What client 0 receives and sends in its first rounds, played dry; the last is the steady state."""
        server, _ = self._method.init(self._task, 0)
        found = []
        for _ in range(rounds):
            down = self._method.send(self._task, server, 0)
            up = self.upload(down)
            server = self._method.absorb(self._task, server, [0], [down], [up])
            found.append((down, up))
        return found


def run(
    method: Method, task: Task, transport: Transport, plan: Plan, state: State, like: Expected, sink: Sink,
    room: Room | None = None, gate: Gate | None = None,
) -> State:  # fmt: skip
    """Play all rounds that are left, with the server's state in ``room``; ``gate`` says who comes and goes."""
    room = room or Room()
    state = state._replace(server=room.hold(state.server))
    schedule = method.schedule if plan.schedule == "auto" else plan.schedule
    play = play_parallel if schedule == "parallel" else play_sequential
    while state.round < plan.rounds:
        log = RoundLog(state.round, [])
        if gate is not None:
            task, state, like = _open(gate, method, task, transport, plan.seed, state, like, log)
            state = state._replace(server=room.hold(state.server))
        log.trained = draw(plan, task.clients, state.round, log.gone)
        state = play(method, task, transport, plan, state, like, log)
        if state.round == plan.rounds:
            log.final = show(method, task, transport, state, log)
        sink(log, state)
    return state


def _open(
    gate: Gate, method: Method, task: Task, transport: Transport, seed: int, state: State, like: Expected, log: RoundLog
) -> tuple[Task, State, Expected]:
    """Between two rounds: whoever joins gets room by the method's rule, and nobody else's part changes."""
    for newcomer in gate.knocking(state.round):
        larger = task.with_client(newcomer.name, newcomer.train)
        try:
            server = _with_room(method, larger, state.server, newcomer)
        except InputError as error:
            gate.turn_away(newcomer)
            text = f"client {newcomer.name} cannot join: {error.message}"
            log.events.append(Event(log.round, None, "turned away", text))
            continue
        gate.let_in(newcomer, state.round)
        task, like = seat(method, larger, transport, seed, like, newcomer)
        unknown = nothing(task, UNKNOWN)[None]
        state = State(state.round, server, np.concatenate([state.last, unknown]))
        log.joined.append(newcomer)
        log.events.append(Event(log.round, task.clients - 1, "joined", f"{task.name(task.clients - 1)} joined"))
    log.gone = gate.gone(state.round)
    for i in sorted(log.gone - gate.gone(state.round - 1)):
        log.events.append(Event(log.round, i, "left", f"{task.name(i)} left for good"))
    return task, state, like


def _with_room(method: Method, task: Task, server: Tree, newcomer: Newcomer) -> Tree:
    if newcomer.fault:
        raise InputError(newcomer.fault)
    return method.admit(task, server)


def seat(
    method: Method, task: Task, transport: Transport, seed: int, like: Expected, newcomer: Newcomer
) -> tuple[Task, Expected]:
    """A place for the last client of ``task`` everywhere but in the server's state."""
    transport.admit(task, newcomer, method.init(task, seed)[1])
    return task, like.with_client(task, newcomer)


def play_parallel(
    method: Method, task: Task, transport: Transport, plan: Plan, state: State, like: Expected, log: RoundLog
) -> State:
    """All clients of the round see the same server."""
    begin = time.perf_counter()
    everyone, chosen = [i for i in range(task.clients) if i not in log.gone], set(log.trained)
    sent = Sent(method, task, state.server, sorted(chosen), [i for i in everyone if i not in chosen])
    requests = [_request(plan, state, sent, i, i in chosen) for i in everyone]
    replies = {r.client: r for r in transport.exchange([r for r in requests if r.train or r.evaluate])}
    served = time.perf_counter()
    server = _learn(method, task, transport, state.server, sorted(log.trained), sent, replies, like, log)
    log.seconds["clients"] = served - begin
    log.seconds["server"] = time.perf_counter() - served
    return _close(method, task, plan, state, server, replies, like, log)


def play_sequential(
    method: Method, task: Task, transport: Transport, plan: Plan, state: State, like: Expected, log: RoundLog
) -> State:
    """Every client sees what the ones before it left; idle clients are shown the server as the round began."""
    begin = time.perf_counter()
    server = state.server
    idle = [i for i in range(task.clients) if i not in {*log.trained, *log.gone}]
    sent = Sent(method, task, server, idle)
    shows = [_request(plan, state, sent, i, False) for i in idle]
    replies = {r.client: r for r in transport.exchange([r for r in shows if r.evaluate])}
    order, log.trained = log.trained, []
    for i in order:
        sent = Sent(method, task, server, [i])
        replies |= {r.client: r for r in transport.exchange([_request(plan, state, sent, i, True)])}
        log.trained.append(i)
        server = _learn(method, task, transport, server, [i], sent, replies, like, log)
    log.seconds["clients"] = time.perf_counter() - begin
    return _close(method, task, plan, state, server, replies, like, log)


def show(method: Method, task: Task, transport: Transport, state: State, log: RoundLog) -> Sums:
    """Score what every client would receive now, without training: zeros where nobody answered."""
    begin, everyone = time.perf_counter(), [i for i in range(task.clients) if i not in log.gone]
    sent = Sent(method, task, state.server, everyone)
    requests = [Request(state.round, i, _bind(sent, i), train=False, evaluate=True) for i in everyone]
    replies = {reply.client: reply.before for reply in transport.exchange(requests)}
    log.seconds["clients"] = log.seconds.get("clients", 0.0) + time.perf_counter() - begin
    return _stacked(task, [replies.get(i) for i in range(task.clients)])


def _stacked(task: Task, found: Sequence[Sums | None]) -> Sums:
    return np.stack([nothing(task) if sums is None else sums for sums in found])


def _request(plan: Plan, state: State, sent: Sent, i: int, train: bool) -> Request:
    last = state.round == plan.rounds - 1
    evaluate = last or state.round % plan.evaluate_every == 0
    unknown = evaluate and not train and bool(state.last[i, 0, 1] < 0)
    return Request(state.round, i, _bind(sent, i), train, evaluate, unknown)


def _bind(sent: Sent, i: int) -> Callable[[], Tree]:
    return lambda: sent.to(i)


def _learn(
    method: Method,
    task: Task,
    transport: Transport,
    server: Tree,
    ids: Sequence[int],
    sent: Sent,
    replies: dict[int, Reply],
    like: Expected,
    log: RoundLog,
) -> Tree:
    """Let the server absorb the sound uploads of ``ids``; the others are logged and leave no trace."""
    sound = [i for i in ids if _is_sound(task, i, replies.get(i), sent, like, log)]
    sound = _without_extremes(task, sound, sent, replies, like, log)
    transport.commit(sound)
    log.trained = [i for i in log.trained if i in set(sound) or i not in set(ids)]
    log.down_bytes |= {i: sent.bytes[i] for i in ids if i in sent.bytes}
    log.up_bytes |= {i: count_bytes(replies[i].up or {}) for i in sound}
    if not sound:
        return server
    donated = replace(task, donate=is_donated(server))
    server = method.absorb(donated, server, sound, sent.only(sound), [replies[i].up or {} for i in sound])
    for name, leaf in server.items():
        if leaf.is_floating_point() and not is_finite(leaf):
            raise RunError(f"the server's {name} is no longer finite after round {log.round + 1}", "lower the rates")
    return server


def is_donated(server: Tree) -> bool:
    """Whether ``absorb`` may change the state in place: a second copy of it would be too much."""
    return count_bytes(server) > DONATE_ABOVE or any(is_mapped(leaf) for leaf in server.values())


def _is_sound(task: Task, i: int, reply: Reply | None, sent: Sent, like: Expected, log: RoundLog) -> bool:
    if reply is None or reply.up is None:
        why = reply.fault if reply is not None and reply.fault else "did not answer"
        log.events.append(Event(log.round, i, "absent", f"{task.name(i)} {why}"))
        return False
    if fault := reply.fault or _find_fault(task, i, reply.up, sent, like):
        log.events.append(Event(log.round, i, "refused", f"{task.name(i)} refused: {fault}"))
        return False
    return True


def _without_extremes(
    task: Task, sound: list[int], sent: Sent, replies: dict[int, Reply], like: Expected, log: RoundLog
) -> list[int]:
    """Those whose updates are not far larger than the others' of the round."""
    if like.limits is None:
        return sound
    changes = {i: change_between(replies[i].up or {}, sent.to(i)) for i in sound}
    extremes = like.limits.find_extremes(changes)
    log.events += [Event(log.round, i, "refused", f"{task.name(i)} refused: {why}") for i, why in extremes.items()]
    return [i for i in sound if i not in extremes]


def _find_fault(task: Task, i: int, up: Tree, sent: Sent, like: Expected) -> str | None:
    wanted = like.known(sent.phases.get(i)) or like.upload(sent.to(i))
    fault = find_fault(up, wanted)
    return fault if fault or like.limits is None else like.limits.find_excess(task, i, up, sent.to(i), like.roles)


def _close(
    method: Method,
    task: Task,
    plan: Plan,
    state: State,
    server: Tree,
    replies: dict[int, Reply],
    like: Expected,
    log: RoundLog,
) -> State:
    if not log.trained:
        _nobody(log, like.limits is None)
    last = state.last.copy()
    trained = set(log.trained)
    for i, reply in replies.items():
        if i in trained or (reply.after is not None and reply.up is None):
            last[i] = UNKNOWN if reply.after is None else reply.after  # trained and not looked at: not yet known
    if any(reply.before is not None for reply in replies.values()):
        log.before = _stacked(task, [replies[i].before if i in replies else None for i in range(task.clients)])
        log.after = np.where(last[..., 1:2] < 0, 0.0, last)
        log.after[sorted(log.gone)] = 0  # what they last had is no longer in use
    log.client_seconds = {i: r.seconds for i, r in replies.items()}
    log.seconds["training"] = sum(r.train_seconds for r in replies.values())
    log.watched = method.watch(server)
    return State(state.round + 1, server, last)


def _nobody(log: RoundLog, trusted: bool) -> None:
    refused = [e for e in log.events if e.kind == "refused"]
    if trusted and refused and len(refused) == len(log.events):
        raise RunError(
            f"round {log.round + 1}: every upload was refused; first: {refused[0].text}",
            "training diverged: lower the learning rate",
        )
    log.events.append(Event(log.round, None, "empty", "no sound upload; the server stayed as it was"))
