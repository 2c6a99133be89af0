"""The only round loop: draw clients, send, gather, refuse what is unsound, let the server learn, write it all down."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedapa.core.summaries import UNKNOWN, Sums
from fedapa.core.tree import Tree, count_bytes, find_fault, is_finite
from fedapa.errors import InputError, RunError
from fedapa.methods.method import Method
from fedapa.methods.wrappers import decoded, find_false_shape
from fedapa.rounds.evaluation import nothing
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.membership import Membership, Newcomer
from fedapa.rounds.messages_sent import Sent
from fedapa.rounds.round_log import Event, RoundLog, Sink, State
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.tensor_storage import TensorStore, is_mapped
from fedapa.rounds.transport import Reply, Request, Transport
from fedapa.rounds.upload_limits import change_between, update_between
from fedapa.streams import stream
from fedapa.training.devices import CPU, at, tree_on
from fedapa.training.task import Task

DONATE_ABOVE = 256 * 2**20  # a server state larger than this is updated in place, without a second copy


def start(method: Method, task: Task, seed: int) -> tuple[State, Tree]:
    """The state before the first round, and what every client starts with."""
    check_fits(method, task)
    server, client = method.init(task, seed)
    return State(0, server, np.stack([nothing(task, UNKNOWN)] * task.clients)), client


def check_fits(method: Method, task: Task) -> None:
    """Some methods learn something per class, some use the model's features, most send its extractor."""
    if method.needs_classes and task.classes == 0:
        hint = "use a method without prototypes or means by class, such as fedavg, fedper or fedapa"
        raise InputError(f"{type(method).__name__} needs classes, and the targets are numbers", hint)
    if method.needs_head and not task.model.is_cut_at_head:
        hint = "leave model.shared out, or use a method such as fedapa, fedavg or fedper"
        raise InputError(f"{type(method).__name__} needs a model that is cut at its head", hint)
    if task.architectures is not None and not method.mixes_architectures:
        hint = "use local, fedproto, fedgh or lg-fedavg, or give all clients one model"
        raise InputError(f"{type(method).__name__} needs one architecture for all clients", hint)


def draw(plan: Plan, clients: int, t: int, gone: frozenset[int] = frozenset()) -> list[int]:
    """Who takes part in round t: a number between the two shares, then that many clients, in random order."""
    there = [i for i in range(clients) if i not in gone]
    if not there:
        raise RunError("every client has left for good", "start a new run with those that are there now")
    low, high = (math.ceil(share * len(there) - 1e-9) for share in plan.participation)
    random = stream(plan.seed, "participation", t)
    count = int(random.integers(max(low, 1), max(high, 1) + 1))
    return [there[i] for i in random.choice(len(there), count, replace=False)]


@dataclass(frozen=True)
class Context:
    """What a run is played with. Whoever joins makes another one, with a larger task."""

    method: Method
    task: Task
    transport: Transport
    plan: Plan
    expected: Expected

    @property
    def is_parallel(self) -> bool:
        wanted = self.method.schedule if self.plan.schedule == "auto" else self.plan.schedule
        return wanted == "parallel"

    def with_client(self, newcomer: Newcomer) -> Context:
        """With a place for one more client everywhere but in the server's state."""
        task = self.task.with_client(newcomer.name, newcomer.train)
        own = task.for_client(task.clients - 1)
        self.transport.admit(task, newcomer, self.method.init(own, self.plan.seed)[1])
        return replace(self, task=task, expected=self.expected.with_client(task, newcomer))


def run(
    context: Context, state: State, sink: Sink, store: TensorStore | None = None, membership: Membership | None = None
) -> State:
    """Play all rounds that are left, with the server's state in ``store``; ``membership`` says who comes and goes."""
    store = store or TensorStore()
    there = context.task.server_device
    state = state._replace(server=tree_on(store.hold(state.server), there))
    play = play_parallel if context.is_parallel else play_sequential
    while state.round < context.plan.rounds:
        log = RoundLog(state.round, [])
        if membership is not None:
            context, state = _renew(context, membership, state, log)
            state = state._replace(server=store.hold(state.server))
        log.trained = draw(context.plan, context.task.clients, state.round, log.gone)
        state = play(context, state, log)
        if state.round == context.plan.rounds:
            log.final = show(context, state, log)
        sink(log, state)
    return state._replace(server=tree_on(state.server, CPU))


def _renew(context: Context, membership: Membership, state: State, log: RoundLog) -> tuple[Context, State]:
    """Between two rounds: whoever joins gets a place by the method's rule, and nobody else's part changes."""
    for newcomer in membership.arrivals(state.round):
        try:
            server = _with_place(context, state.server, newcomer)
        except InputError as error:
            membership.reject(newcomer)
            text = f"client {newcomer.name} cannot join: {error.message}"
            log.events.append(Event(log.round, None, "turned away", text))
            continue
        membership.admit(newcomer, state.round)
        context = context.with_client(newcomer)
        task = context.task
        state = State(state.round, server, np.concatenate([state.last, nothing(task, UNKNOWN)[None]]))
        log.joined.append(newcomer)
        log.events.append(Event(log.round, task.clients - 1, "joined", f"{task.name(task.clients - 1)} joined"))
    log.gone = membership.gone(state.round)
    for i in sorted(log.gone - membership.gone(state.round - 1)):
        log.events.append(Event(log.round, i, "left", f"{context.task.name(i)} left for good"))
    return context, state


def _with_place(context: Context, server: Tree, newcomer: Newcomer) -> Tree:
    if newcomer.fault:
        raise InputError(newcomer.fault)
    task = context.task.with_client(newcomer.name, newcomer.train)
    with at(task.server_device):
        return context.method.admit(task.placed(task.server_device), server)


def play_parallel(context: Context, state: State, log: RoundLog) -> State:
    """All clients of the round see the same server."""
    begin = time.perf_counter()
    everyone, chosen = _there(context, log), set(log.trained)
    sent = _sent(context, state.server, sorted(chosen), [i for i in everyone if i not in chosen])
    requests = [_request(context.plan, state, sent, i, i in chosen) for i in everyone]
    replies = {r.client: r for r in context.transport.exchange([r for r in requests if r.train or r.evaluate])}
    served = time.perf_counter()
    server = _learn(context, state.server, sorted(log.trained), sent, replies, log)
    log.seconds["clients"] = served - begin
    log.seconds["server"] = time.perf_counter() - served
    return _close(context, state, server, replies, log)


def play_sequential(context: Context, state: State, log: RoundLog) -> State:
    """Every client sees what the ones before it left; idle clients are shown the server as the round began."""
    begin = time.perf_counter()
    server = state.server
    idle = [i for i in _there(context, log) if i not in log.trained]
    sent = _sent(context, server, idle)
    shows = [_request(context.plan, state, sent, i, False) for i in idle]
    replies = {r.client: r for r in context.transport.exchange([r for r in shows if r.evaluate])}
    order, log.trained = log.trained, []
    for i in order:
        sent = _sent(context, server, [i])
        request = _request(context.plan, state, sent, i, True)
        replies |= {r.client: r for r in context.transport.exchange([request])}
        log.trained.append(i)
        server = _learn(context, server, [i], sent, replies, log)
    log.seconds["clients"] = time.perf_counter() - begin
    return _close(context, state, server, replies, log)


def show(context: Context, state: State, log: RoundLog) -> Sums:
    """Score what every client would receive now, without training: zeros where nobody answered."""
    begin, everyone = time.perf_counter(), _there(context, log)
    sent = _sent(context, state.server, everyone)
    requests = [Request(state.round, i, _bind(sent, i), train=False, evaluate=True) for i in everyone]
    replies = {reply.client: reply.before for reply in context.transport.exchange(requests)}
    log.seconds["clients"] = log.seconds.get("clients", 0.0) + time.perf_counter() - begin
    return _stacked(context.task, [replies.get(i) for i in range(context.task.clients)])


def _there(context: Context, log: RoundLog) -> list[int]:
    return [i for i in range(context.task.clients) if i not in log.gone]


def _sent(context: Context, server: Tree, *cohorts: Sequence[int]) -> Sent:
    return Sent(context.method, context.task, server, *cohorts)


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
    context: Context, server: Tree, ids: Sequence[int], sent: Sent, replies: dict[int, Reply], log: RoundLog
) -> Tree:
    """Let the server learn from the sound uploads of ``ids``; the others are logged and leave no trace."""
    sound = [i for i in ids if _is_sound(context, i, replies.get(i), sent, log)]
    there = context.task.server_device
    with at(there):
        sound = _without_extremes(context, sound, sent, replies, log)
    context.transport.commit(sound)
    log.trained = [i for i in log.trained if i in set(sound) or i not in set(ids)]
    log.down_bytes |= {i: sent.bytes[i] for i in ids if i in sent.bytes}
    log.up_bytes |= {i: count_bytes(replies[i].up or {}) for i in sound}
    if not sound:
        return server
    donated = replace(context.task.placed(there), donate=is_donated(server))
    with at(there):
        ups = [tree_on(replies[i].up or {}, there) for i in sound]
        server = context.method.absorb(donated, server, sound, sent.only(sound), ups)
    for name, leaf in server.items():
        if leaf.is_floating_point() and not is_finite(leaf):
            raise RunError(f"the server's {name} is no longer finite after round {log.round + 1}", "lower the rates")
    return server


def is_donated(server: Tree) -> bool:
    """Whether ``absorb`` may change the state in place: a second copy of it would be too much."""
    return count_bytes(server) > DONATE_ABOVE or any(is_mapped(leaf) for leaf in server.values())


def _is_sound(context: Context, i: int, reply: Reply | None, sent: Sent, log: RoundLog) -> bool:
    name = context.task.name(i)
    if reply is None or reply.up is None:
        why = reply.fault if reply is not None and reply.fault else "did not answer"
        log.events.append(Event(log.round, i, "absent", f"{name} {why}"))
        return False
    if fault := reply.fault or _find_fault(context, i, reply.up, sent):
        log.events.append(Event(log.round, i, "refused", f"{name} refused: {fault}"))
        return False
    return True


def _without_extremes(
    context: Context, sound: list[int], sent: Sent, replies: dict[int, Reply], log: RoundLog
) -> list[int]:
    """Those whose updates are not far larger than the others' of the round, and do not point away from them."""
    if (limits := context.expected.limits) is None:
        return sound
    plain = {i: decoded(context.method, sent.to(i), replies[i].up or {}) for i in sound}
    far = limits.find_extremes({i: change_between(plain[i], sent.to(i)) for i in sound})
    near = [i for i in sound if i not in far]
    if limits.checks_directions:
        far |= limits.find_opposed({i: update_between(plain[i], sent.to(i)) for i in near})
    names = {i: context.task.name(i) for i in far}
    log.events += [Event(log.round, i, "refused", f"{names[i]} refused: {why}") for i, why in far.items()]
    return [i for i in sound if i not in far]


def _find_fault(context: Context, i: int, up: Tree, sent: Sent) -> str | None:
    expected = context.expected
    wanted = expected.known(sent.phases.get(i)) or expected.upload(tree_on(sent.to(i), CPU))
    fault = find_fault(up, wanted) or find_false_shape(up, wanted)
    if fault or expected.limits is None:
        return fault
    with at(context.task.server_device):
        plain = decoded(context.method, sent.to(i), up)  # limits are those of the tensors that travel coded
        return expected.limits.find_excess(context.task, i, plain, sent.to(i), expected.roles)


def _close(context: Context, state: State, server: Tree, replies: dict[int, Reply], log: RoundLog) -> State:
    """Write down what the round was worth; the state that the next one begins with."""
    task = context.task
    if not log.trained:
        _nobody(log, context.expected.limits is None)
    last = state.last.copy()
    trained = set(log.trained)
    for i, reply in replies.items():
        if i in trained or (reply.after is not None and reply.up is None):
            last[i] = UNKNOWN if reply.after is None else reply.after  # trained and not looked at: not yet known
    if any(reply.before is not None for reply in replies.values()):
        log.before = _stacked(task, [replies[i].before if i in replies else None for i in range(task.clients)])
        log.after = np.where(last[..., 1:2] < 0, 0.0, last)
        log.after[sorted(log.gone)] = 0  # what they last had is no longer in use
    log.train_loss = {i: replies[i].train_loss for i in sorted(trained) if replies[i].train_loss.is_known}
    log.client_seconds = {i: r.seconds for i, r in replies.items()}
    log.seconds["training"] = sum(r.train_seconds for r in replies.values())
    with at(task.server_device):
        log.watched = tree_on(context.method.watch(server), CPU)
    return State(state.round + 1, server, last)


def _nobody(log: RoundLog, trusted: bool) -> None:
    refused = [e for e in log.events if e.kind == "refused"]
    if trusted and refused and len(refused) == len(log.events):
        raise RunError(
            f"round {log.round + 1}: every upload was refused; first: {refused[0].text}",
            "training diverged: lower the learning rate",
        )
    log.events.append(Event(log.round, None, "empty", "no sound upload; the server stayed as it was"))
