"""How messages reach clients: the protocol, and the transport that runs all clients in this process.

A client's new state takes effect when the loop commits it, so a refused upload changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from functools import partial
from typing import NamedTuple, Protocol

import torch

from fedapa.core.summaries import Sums
from fedapa.core.threads import available_cores
from fedapa.core.tree import Tree, find_fault
from fedapa.data.federated import ClientData, Federated
from fedapa.errors import RunError
from fedapa.methods.method import Method
from fedapa.rounds.evaluation import Known, measure
from fedapa.rounds.membership import Newcomer
from fedapa.streams import torch_seed
from fedapa.training.devices import at, data_on, seed_torch, tree_on
from fedapa.training.engines.vmap_engine import cohorts, play_together
from fedapa.training.job import LossSum
from fedapa.training.local import Engine, Local, Normal, Plain
from fedapa.training.task import CPU, Task

Share = Callable[[int, int], Engine]  # the engine of a visit, by round and client: shared with other runs


class Request(NamedTuple):
    """Ask client ``client`` to train on what is sent, or only to show what it would do with it."""

    round: int
    client: int
    down: Callable[[], Tree]
    train: bool
    evaluate: bool
    evaluate_last: bool = False  # an idle client also scores the state of its last training


class Reply(NamedTuple):
    client: int
    up: Tree | None
    before: Sums | None
    after: Sums | None
    seconds: float
    train_seconds: float
    fault: str | None = None  # why the client's own training failed
    train_loss: LossSum = LossSum()  # of the batches it trained on; of none where its trainer is the user's own


class Record(NamedTuple):
    """What a client keeps between visits: the method's state and the optimiser's state."""

    state: Tree
    memory: Tree


class Transport(Protocol):
    def exchange(self, requests: Sequence[Request]) -> Iterable[Reply]:
        """Deliver all requests; replies come in any order, and some may never come."""

    def commit(self, clients: Sequence[int]) -> None:
        """Commit the states behind the accepted uploads; drop the others."""

    def admit(self, task: Task, newcomer: Newcomer, client: Tree) -> None:
        """Add a client, the last of ``task``, with the start state ``client``."""

    def records(self) -> list[Record]:
        """Every client's state, for checkpoints."""

    def restore(self, records: Sequence[Record]) -> None:
        """Put every client back to a checkpointed state."""


def visit(
    method: Method,
    task: Task,
    data: ClientData,
    record: Record,
    request: Request,
    seed: int,
    engine: Engine | None = None,
    entropy: Normal | None = None,
    known: Known | None = None,
) -> tuple[Record, Reply]:
    """One visit: everything that a client does in a round. The same code runs in every transport and on every engine.

    A real site passes ``entropy``, from which noise is drawn; ``known`` scores are not computed again. On another
    device than the CPU, what the visit needs is moved there, what it makes is made there, what it leaves behind comes
    back, and its upload goes to the server.
    """
    there = task.device
    if there == task.server_device == CPU:
        return _visit(method, task, data, record, request, seed, engine, entropy, known)
    moved = request._replace(down=partial(_sent_to, there, request.down))
    with at(there):
        mine = Record(tree_on(record.state, there), tree_on(record.memory, there))
        mine, reply = _visit(method, task, data_on(data, there), mine, moved, seed, engine, entropy, None)
    record = Record(tree_on(mine.state, CPU), tree_on(mine.memory, CPU)) if request.train else record
    return record, reply._replace(up=reply.up and tree_on(reply.up, task.server_device))


def _sent_to(device: torch.device, down: Callable[[], Tree]) -> Tree:
    with CPU:  # the server makes it, on a device that it names
        sent = down()
    return tree_on(sent, device)


def _visit(
    method: Method,
    task: Task,
    data: ClientData,
    record: Record,
    request: Request,
    seed: int,
    engine: Engine | None,
    entropy: Normal | None,
    known: Known | None,
) -> tuple[Record, Reply]:
    engine, task = engine or Plain(), task.for_client(request.client).at(data.train.y)
    start = engine.clock()
    down = engine.once(request.down)
    mine = data.train, record.memory
    local = Local(task, request.client, request.round, seed, *mine, 0, engine, entropy, data.validation)
    state = method.receive(task, record.state, down, local)

    def scored(shown: Tree, what: str) -> Sums:
        """A committed model that outputs NaN cannot be refused: the run has diverged."""
        try:
            return measure(method, task, shown, data, engine, known)
        except RunError as error:
            where = f"round {request.round + 1}: {what} {task.name(request.client)} is broken"
            raise RunError(f"{where}, {error.message}", error.hint) from None

    before = scored(state, "the model that arrived at") if request.evaluate else None
    if not request.train:
        after = scored(record.state, "the last model of") if request.evaluate_last else None
        return record, Reply(request.client, None, before, after, engine.clock() - start, 0.0)
    began = engine.clock()
    try:
        state, up = method.train(task, state, down, local)
    except RunError as error:
        spent = engine.clock() - start
        return record, Reply(request.client, {}, before, None, spent, spent, f"its training failed, {error.message}")
    trained = engine.clock() - began
    after, fault = None, find_fault(state, state)
    if request.evaluate and fault is None:
        try:
            after = measure(method, task, state, data, engine, known)
        except RunError as error:
            fault = error.message
    fault = fault and f"its training diverged, {fault}"
    reply = Reply(request.client, up, before, after, engine.clock() - start, trained, fault, local.loss)
    return Record(state, local.memory), reply


def reseed(task: Task, seed: int, request: Request) -> None:
    """Dropout draws from torch's global generator, so every visit seeds it."""
    if task.is_stochastic:
        seed_torch(torch_seed(seed, "dropout", request.round, request.client))


class InProcess:
    """All clients in this process, several at a time, the largest first; results do not depend on either."""

    def __init__(
        self, method: Method, task: Task, data: Federated, seed: int, client: Tree, workers: int = 0,
        share: Share | None = None,
    ) -> None:  # fmt: skip
        self.method, self.task, self.data, self.seed = method, task, data, seed
        self._share = None if task.vectorise or task.is_stochastic or task.trainer is not None else share
        alone = task.is_stochastic or task.trainer is not None  # torch's generator is one for all threads
        self.workers = 1 if alone else workers or available_cores()
        self._records = [Record(_start(method, task, i, seed, client), {}) for i in range(task.clients)]
        self._pending: dict[int, Record] = {}
        self._known: dict[int, Known] = {}
        self._placed = self._place(task)
        self._pool: ThreadPoolExecutor | None = None  # its threads and their copies of the model serve all rounds

    def exchange(self, requests: Sequence[Request]) -> Iterator[Reply]:
        order = sorted(requests, key=lambda r: (not r.train, -len(self.data.clients[r.client].train.y)))
        parts = cohorts(order, self.task.vectorise)
        if self.workers == 1 or len(parts) == 1:
            for part in parts:
                yield from self._visit(part)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
        futures: list[Future[list[Reply]]] = [self._pool.submit(self._visit, part) for part in parts]
        try:
            for future in as_completed(futures):
                yield from future.result()
        finally:  # after a failure or Ctrl-C no visit goes on in the background
            wait([future for future in futures if not future.cancel()])

    def commit(self, clients: Sequence[int]) -> None:
        for i in clients:
            self._records[i] = self._pending[i]
        self._pending.clear()

    def admit(self, task: Task, newcomer: Newcomer, client: Tree) -> None:
        self.task, self._placed = task, self._place(task)
        self._records.append(Record(client, {}))

    def records(self) -> list[Record]:
        return list(self._records)

    def restore(self, records: Sequence[Record]) -> None:
        self._records = list(records)

    def _visit(self, requests: Sequence[Request]) -> list[Reply]:
        """Visit one client, or several that are trained together."""
        ends = self._play(requests)
        self._pending.update({r.client: end[0] for r, end in zip(requests, ends, strict=True) if r.train})
        return [reply for _, reply in ends]

    def _play(self, requests: Sequence[Request]) -> list[tuple[Record, Reply]]:
        reseed(self.task, self.seed, requests[0])
        return play_together([partial(self._visit_one, request) for request in requests])

    def _visit_one(self, request: Request, engine: Engine) -> tuple[Record, Reply]:
        data, record = self.data.clients[request.client], self._records[request.client]
        task = self._placed[request.client % len(self._placed)]
        if self._share is not None:
            engine = self._share(request.round, request.client)
        # a visit that vmap interrupts and plays again must ask for the same passes every time
        known = None if task.vectorise else self._known.setdefault(request.client, Known())
        return visit(self.method, task, data, record, request, self.seed, engine, known=known)

    def _place(self, task: Task) -> list[Task]:
        """The task for every device; clients take them in turn, and a client its own every time."""
        return [task.placed(device) for device in task.devices]


def _start(method: Method, task: Task, i: int, seed: int, client: Tree) -> Tree:
    """The common start, or that of the client's own architecture."""
    return client if task.architectures is None else method.init(task.for_client(i), seed)[1]
