"""The ten laws (docs/add-a-method.md says what each is for). A law returns what it measured or raises ``Broken``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapa.core.summaries import Sums
from fedapa.core.tree import Tree, clone, count_bytes, digest, distance
from fedapa.errors import InputError
from fedapa.methods.catalogue import make
from fedapa.methods.method import COUNTS, Surrogate
from fedapa.rounds.round_log import State
from fedapa.rounds.transport import Reply
from fedapa.store import checkpoint
from fedapa.store.checkpoint import Checkpoint
from fedapa.training.engines.native import available
from fedapa.training.job import Loss
from fedapa.training.local import Local
from fedapa.training.settings import Engine
from fedapa.training.task import Task
from fedapa.verify.case import ROUNDS, Broken, Case, Outcome, Remembering, Tampering

JUMP = 2e-2  # the same for uploads that are rounded, where the engines' last digits decide between two steps
TOLERANCE = 2e-4  # between engines and orders, after ROUNDS rounds of the small federation


OTHERS: tuple[Engine, ...] = ("vmap", "native")


def engines_agree(case: Case) -> str:
    """1. Serial = parallel, bit for bit; PyTorch = vectorised = native kernel, to float tolerance."""
    _same(case.usual(), case.run(workers=3), "one worker and three workers")
    if case.norm:
        return "3 workers = 1 worker; only the torch engine follows BatchNorm"
    if case.model:
        gaps = [f"; {name} within {_engine_gap(case, name):.1g} of torch" for name in OTHERS if _knows(case, name)]
        return f"3 workers = 1 worker{''.join(gaps) or '; only the torch engine knows the model'}"
    said = f"3 workers = 1 worker; vmap within {_engine_gap(case, 'vmap'):.1g} of torch"
    if case.shared:
        return f"{said}; the native engine needs a model that is cut at its head"
    if not available()[0]:
        return f"{said}; native engine not built: {available()[1]}"
    return f"{said}, native within {_engine_gap(replace(case, images=True), 'native'):.1g}"


def _knows(case: Case, engine: Engine) -> bool:
    """Whether this engine can run a user's model."""
    try:
        return replace(case, engine=engine).task.engine == engine
    except InputError:
        return False


def _engine_gap(case: Case, engine: Engine) -> float:
    plain, other = (replace(case, engine=name).after(2) for name in ("torch", engine))
    gap = _gap(plain, other)
    if not gap < (JUMP if case.method.claims().jumps else TOLERANCE):
        raise Broken(f"torch and {engine} engines differ by {gap:.2g} after 2 rounds (allowed {TOLERANCE:g})")
    return gap


def resume_is_exact(case: Case) -> str:
    """2. Stopping after any round and going on from the checkpoint changes no bit."""
    whole, visits = case.usual(), dict[Any, Any]()  # resumed runs share visits with each other, none with the whole one
    for stop in range(1, ROUNDS):
        first = case.after(stop)
        with tempfile.TemporaryDirectory() as folder:
            state = State(stop, first.server, _last(first))
            read = checkpoint.read(checkpoint.write(Path(folder), Checkpoint(state, first.records)))
        transport = Remembering.on(case)
        transport.known = visits
        transport.restore(read.records)
        resumed = case.run(transport=transport, state=read.state)
        _same(whole, resumed, f"an uninterrupted run and one resumed after round {stop}")
    return f"resumed after each of {ROUNDS - 1} rounds"


def functions_are_pure(case: Case) -> str:
    """3. No function changes its arguments or answers differently the second time; no client touches another's."""
    method, task, done = case.method, case.task, case.after(2)
    down = _twice("send", lambda: method.send(task, done.server, 0), done.server)
    before = clone(done.records[0].state)

    def receive() -> Tree:
        return method.receive(task, done.records[0].state, down, case.local(0, 2, done.records[0]))

    state = _twice("receive", receive, done.records[0].state, down)

    def train() -> Tree:
        local = case.local(0, 2, done.records[0])
        new, up = method.train(task, state, down, local)
        return {**{f"state/{k}": v for k, v in new.items()}, **{f"up/{k}": v for k, v in up.items()}}

    _twice("train", train, state, down, done.records[0].memory)
    x = case.data.clients[0].test.x
    answer = _twice("predict", lambda: {"y": method.predict(task, state, x)}, state)
    if digest(answer) != digest({"y": method.predict(task, method.shown(state), x)}):
        raise Broken("predict answers otherwise from what `shown` leaves of a client's state")
    _check_same_shape("client state", before, state)
    server, downs, ups = case.visits()
    kept = _twice("absorb", lambda: method.absorb(task, server, [0, 1, 2], downs, ups), server, *downs, *ups)
    given = method.absorb(replace(task, donate=True), clone(server), [0, 1, 2], downs, ups)
    if digest(kept) != digest(given):
        raise Broken(f"absorb differs by {distance(kept, given):.2g} when the server's state is given away")
    _check_others_untouched(case)
    return "send, receive, train, absorb, predict"


def order_of_replies_is_irrelevant(case: Case) -> str:
    """4. Whoever answers first, the result is the same."""

    class Shuffling(Tampering):
        def tamper(self, replies: list[Reply]) -> list[Reply]:
            return replies[::-1]

    _same(case.usual(), case.run(transport=Shuffling.on(case)), "replies in order and in reverse order")
    if case.method.claims().ordered:
        return "the loop's ascending order is part of the method"
    server, downs, ups = case.visits()
    straight = case.method.absorb(case.task, server, [0, 1, 2], downs, ups)
    order = [2, 0, 1]
    turned = case.method.absorb(case.task, server, order, [downs[i] for i in order], [ups[i] for i in order])
    gap = distance(straight, turned)
    if not gap < TOLERANCE:
        raise Broken(f"absorb gives states {gap:.2g} apart for two orders of the same uploads")
    return f"absorb within {gap:.1g} for another order"


def everything_trainable_moves(case: Case) -> str:
    """5. Every regulariser bites; every part of the server's state moves when it is fed."""
    claims = case.method.claims()
    for name in claims.regularisers:
        weaker = case.with_method(replace(case.method, **{name: 0.0}))
        gap = _gap(case.usual(), weaker.usual())
        if not gap > 1e-7:
            value = getattr(case.method, name)
            raise Broken(f"{name} = {value} and {name} = 0 train the same models (within {gap:.2g})")
    start, end = case.after(1).server, case.usual().server
    first = case.method.init(case.task, 7)[0]
    stuck = [k for k in end if digest({k: first[k]}) == digest({k: end[k]}) == digest({k: start[k]})]
    if stuck := [k for k in stuck if k not in claims.resting]:
        raise Broken(f"the server's {stuck[0]} is the same after {ROUNDS} rounds as at the start")
    return f"{len(end)} parts of the server, {len(claims.regularisers)} regularisers"


def server_step_descends(case: Case) -> str:
    """6. A small server step lowers the loss that it claims to descend."""
    server, _, ups = case.visits()
    method = case.method.claims().bare or case.method
    surrogate = method.claims().surrogate
    if surrogate is None:
        return "claims no surrogate"
    downs = [method.send(case.task, server, i) for i in (0, 1, 2)]
    worst = -np.inf
    for k, i in enumerate((0, 1, 2)):
        new = method.absorb(case.task, server, [i], [downs[k]], [ups[k]])
        old_loss, new_loss = (_value(surrogate, case.task, server, s, i, ups[k]) for s in (server, new))
        if not new_loss < old_loss:
            raise Broken(f"client {i}: a small step takes the surrogate from {old_loss:.9g} to {new_loss:.9g}")
        worst = max(worst, new_loss - old_loss)
    return f"smallest decrease {-worst:.2g}"


def what_was_sent_arrives(case: Case) -> str:
    """7. The client starts from the tensors that the server sent, and every one of them matters."""
    done = case.after(2)
    down = case.method.send(case.task, done.server, 0)
    plain, starts = _visit(case, done, down)
    for name, leaf in down.items():
        if leaf.is_floating_point() and leaf.numel():
            changes = (leaf + 0.5, torch.zeros_like(leaf), -leaf)
            gap = max(_difference(plain, _visit(case, done, {**down, name: change})[0]) for change in changes)
            if not gap > 1e-7:
                raise Broken(f"{name} of what was sent moved, zeroed or negated moves the client by {gap:.2g}")
    if case.method.claims().adapts:
        return f"{len(down)} tensors, adapted on arrival"
    for name, leaf in down.items():
        if leaf.numel() in (case.task.P, case.task.Q, case.task.P + case.task.Q):
            _check_start(case.task, name, leaf, starts)
    return f"{len(down)} tensors, training starts from them bit for bit"


def limits_are_met(case: Case) -> str:
    """8. In its degenerate settings the method equals the simpler one."""
    if case.schedule == "sequential":
        return "checked under the parallel schedule"
    limits = case.method.claims().limits
    for name, variant in limits.items():
        one, other = case.with_method(variant).usual(), case.with_method(make(name)).usual()
        for i, (mine, theirs) in enumerate(zip(one.records, other.records, strict=True)):
            gap = max(float((mine.state[k] - theirs.state[k]).abs().max()) for k in ("theta", "phi"))
            if not gap < 1e-5:
                raise Broken(f"its limit should equal {name}: models of client {i} are {gap:.2g} apart")
    return ", ".join(limits) or "declares none"


def bytes_are_what_is_said(case: Case) -> str:
    """9. Messages have the planned size every round, and the ledger counts them to the byte."""
    planned = {(count_bytes(down), count_bytes(up)) for down, up in case.exchanges}
    for log in case.usual().logs:
        for i in log.trained:
            found = log.down_bytes[i], log.up_bytes[i]
            if found not in planned:
                raise Broken(f"round {log.round + 1}, client {i}: bytes down and up {found}, planned {sorted(planned)}")
    down, up = (count_bytes(tree) for tree in case.exchanges[-1])
    return f"{down} bytes down, {up} up"


def bad_uploads_change_nothing(case: Case) -> str:
    """10. NaN, Inf, a wrong shape, dtype or name from one client is refused by name and leaves no trace.

    A false number of samples can be refused, because what counts samples says so in ``roles``.
    """
    _check_roles(case)
    if not case.exchanges[-1][1]:
        return "uploads nothing"
    absent = case.run(transport=_dropping(case))
    for kind, damage in DAMAGES.items():
        hurt = case.run(transport=_damaging(case, lambda up, damage=damage: damage(_damageable(case, up))))  # type: ignore[misc]
        _same(absent, hurt, f"a run without client 1 and one where its uploads are {kind}")
        refusals = [e.text for log in hurt.logs for e in log.events if e.kind == "refused"]
        if not refusals or not all(case.task.name(1) in text for text in refusals):
            raise Broken(f"uploads that are {kind} were not refused by the client's name: {refusals}")
    _check_nobody_answers(case)
    return f"{len(DAMAGES)} kinds of damage refused"


# ------------------------------------------------------------------------------------------------------- helpers


def _check_roles(case: Case) -> None:
    """Every role belongs to a tensor that there is, and what adds up to a client's samples has one."""
    roles, (server, _, ups) = case.method.roles, case.visits()
    there = {*server, *case.method.watch(server), *(name for _, up in case.exchanges for name in up)}
    if not case.method.claims().jumps and (unknown := roles.keys() - there):  # a coded tensor travels in parts
        raise Broken(f"roles speak of {min(unknown)}, which none of {len(there)} tensors is called")
    samples = [float(n) for n in case.task.sizes[: len(ups)]]
    for name in ups[0]:
        found = [float(up[name].double().sum()) for up in ups if name in up]
        if found == samples and roles.get(name) not in COUNTS:
            raise Broken(f"{name} adds up to the samples of every client {found} and has no role that says so")


def _damageable(case: Case, up: Tree) -> Tree:
    """The upload as it is; of one that is declared to be coded, the numbers before the codes, which cannot be NaN."""
    if not case.method.claims().jumps:
        return up
    return dict(sorted(up.items(), key=lambda pair: not pair[1].is_floating_point()))


def _damaged(up: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    name = next(iter(up))
    return {**up, name: change(up[name])}


DAMAGES: dict[str, Callable[[Tree], Tree]] = {
    "NaN": lambda up: _damaged(up, lambda v: torch.full_like(v, float("nan"))),
    "infinite": lambda up: _damaged(up, lambda v: torch.full_like(v, float("inf"))),
    "of the wrong shape": lambda up: _damaged(up, lambda v: torch.zeros(3, 3, 3, 3)),
    "of the wrong dtype": lambda up: _damaged(up, lambda v: v.double()),
    "incomplete": lambda up: dict(list(up.items())[1:]),
    "overfull": lambda up: {**up, "extra": torch.zeros(1)},
}


def _dropping(case: Case) -> Tampering:
    class Dropping(Tampering):
        def tamper(self, replies: list[Reply]) -> list[Reply]:
            return [r._replace(up=None, after=None) if r.client == 1 and r.up is not None else r for r in replies]

    return Dropping.on(case)


def _damaging(case: Case, damage: Callable[[Tree], Tree]) -> Tampering:
    class Damaging(Tampering):
        def tamper(self, replies: list[Reply]) -> list[Reply]:
            return [r._replace(up=damage(r.up)) if r.client == 1 and r.up is not None else r for r in replies]

    return Damaging.on(case)


def _check_nobody_answers(case: Case) -> None:
    class Silent(Tampering):
        def tamper(self, replies: list[Reply]) -> list[Reply]:
            return []

    quiet = case.run(1, transport=Silent.on(case))
    if digest(quiet.server) != digest(case.method.init(case.task, 7)[0]):
        raise Broken("the server changed in a round in which nobody answered")


def _same(one: Outcome, other: Outcome, between: str) -> None:
    a, b = one.tree(), other.tree()
    if a.keys() != b.keys():
        raise Broken(f"{between}: states have different parts {sorted(a.keys() ^ b.keys())[:3]}")
    if wrong := [k for k in a if digest({k: a[k]}) != digest({k: b[k]})]:
        gap = distance({wrong[0]: a[wrong[0]]}, {wrong[0]: b[wrong[0]]})
        raise Broken(f"{between} differ in {wrong[0]} by {gap:.2g} ({len(wrong)} of {len(a)} parts differ)")
    known = {log.round: (log.before, log.after) for log in other.logs}
    for log in one.logs:
        if log.round in known and not _equal_scores((log.before, log.after), known[log.round]):
            raise Broken(f"{between}: accuracies of round {log.round + 1} differ")
    ends = [np.asarray(log.final) for outcome in (one, other) for log in outcome.logs if log.final is not None]
    if len(ends) == 2 and len(one.logs) == len(other.logs) and not np.array_equal(ends[0], ends[1]):
        raise Broken(f"{between}: accuracies of what the last aggregation sends differ")


def _equal_scores(one: tuple[object, object], other: tuple[object, object]) -> bool:
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True))


def _gap(one: Outcome, other: Outcome) -> float:
    a, b = one.tree(), other.tree()
    return distance({k: a[k] for k in a.keys() & b.keys()}, b)


def _last(outcome: Outcome) -> Sums:
    """The loop's memory of last scores, as its state held it: -1 for whoever never showed a score."""
    after = outcome.logs[-1].after
    assert after is not None
    return after.copy()


def _twice(what: str, call: Callable[[], Tree], *arguments: Tree) -> Tree:
    before = [clone(tree) for tree in arguments]
    first, second = call(), call()
    for tree, known in zip(arguments, before, strict=True):
        if digest(tree) != digest(known):
            raise Broken(f"{what} changes one of its arguments ({', '.join(tree)}) by {_difference(tree, known):.2g}")
    if digest(first) != digest(second):
        raise Broken(f"{what} answers differently the second time, by {distance(first, second):.2g}")
    return first


def _check_same_shape(what: str, one: Tree, other: Tree) -> None:
    shapes = [{k: (tuple(v.shape), v.dtype) for k, v in tree.items()} for tree in (one, other)]
    if shapes[0] != shapes[1]:
        raise Broken(f"the {what} changes its parts or shapes: {shapes[0]} became {shapes[1]}")


def _check_others_untouched(case: Case) -> None:
    transport = case.transport()
    case.run(1, transport=transport)
    log = case.after(1).logs[0]
    start = case.transport().records()
    for i, record in enumerate(transport.records()):
        if i not in log.trained and digest(record.state) != digest(start[i].state):
            raise Broken(f"client {i} sat out and its state changed all the same")


class Watched(Local):
    """A toolbox that remembers what every training started from."""

    def sgd(self, loss: Loss, params: Tree, **options: Any) -> Tree:
        self.__dict__.setdefault("starts", []).append(clone({**(options.get("given") or {}), **params}))
        return super().sgd(loss, params, **options)


def _visit(case: Case, done: Outcome, down: Tree) -> tuple[Tree, list[Tree]]:
    """Everything that comes out of one visit to client 0, and what its trainings started from."""
    plain = case.local(0, 2, done.records[0])
    local = Watched(plain.task, plain.client, plain.round, plain.seed, plain.data, plain.memory)
    state = case.method.receive(case.task, clone(done.records[0].state), down, local)
    new, up = case.method.train(case.task, state, down, local)
    found = {f"received/{k}": v for k, v in state.items()} | {f"state/{k}": v for k, v in new.items()}
    found |= {f"up/{k}": v for k, v in up.items()}
    return found | {"y": case.method.predict(case.task, state, case.data.clients[0].test.x)}, local.__dict__["starts"]


def _difference(one: Tree, other: Tree) -> float:
    return distance(one, other) if one.keys() == other.keys() else float("inf")


def _check_start(task: Task, name: str, leaf: Tensor, starts: list[Tree]) -> None:
    vectors = [v.reshape(-1) for start in starts for v in start.values()]
    vectors += [task.join(s["theta"], s["phi"]) for s in starts if "theta" in s and "phi" in s]
    gaps = [float((v - leaf.reshape(-1)).abs().max()) for v in vectors if v.numel() == leaf.numel()]
    if min(gaps, default=float("inf")) > 0:
        nearest = min(gaps, default=float("inf"))
        raise Broken(f"no training of the client starts from {name} as it was sent; the nearest is {nearest:.2g} away")


def _value(surrogate: Surrogate, task: Task, old: Tree, new: Tree, i: int, up: Tree) -> float:
    """The surrogate in double precision, so that a tiny step shows."""
    exact = [{k: v.double() if v.is_floating_point() else v for k, v in tree.items()} for tree in (old, new, up)]
    return float(surrogate(task, exact[0], exact[1], i, exact[2]))
