"""How messages reach clients: the protocol, and the transport that runs all clients in this process.

A client's new state is held back until the loop commits it, so an upload that the server refuses leaves no trace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import NamedTuple, Protocol

import torch

from fedapa.core.tree import Tree, find_fault
from fedapa.data.federated import ClientData, Federated
from fedapa.errors import RunError
from fedapa.methods.method import Method
from fedapa.run.evaluate import Score, score
from fedapa.task.local import Local
from fedapa.task.task import Task


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
    before: Score | None
    after: Score | None
    seconds: float
    train_seconds: float
    fault: str | None = None  # why the client itself holds its training for failed


class Record(NamedTuple):
    """All that a client keeps between visits: the method's state and the optimiser's memory."""

    state: Tree
    memory: Tree


class Transport(Protocol):
    def exchange(self, requests: Sequence[Request]) -> Iterable[Reply]:
        """Deliver all requests; replies come in any order, and some may never come."""

    def commit(self, clients: Sequence[int]) -> None:
        """The server accepted these uploads: the states that they came from now stand; all others are dropped."""

    def records(self) -> list[Record]:
        """Every client's state, for checkpoints."""

    def restore(self, records: Sequence[Record]) -> None:
        """Put every client back to a checkpointed state."""


def visit(
    method: Method, task: Task, data: ClientData, record: Record, request: Request, seed: int
) -> tuple[Record, Reply]:
    """Everything that happens at a client in one round. The same code runs in every transport."""
    start = time.perf_counter()
    down = request.down()
    local = Local(task, request.client, request.round, seed, data.train, record.memory)
    state = method.receive(task, record.state, down, local)
    before = score(method, task, state, data) if request.evaluate else None
    if not request.train:
        after = score(method, task, record.state, data) if request.evaluate_last else None
        return record, Reply(request.client, None, before, after, time.perf_counter() - start, 0.0)
    began = time.perf_counter()
    try:
        state, up = method.train(task, state, down, local)
    except RunError as error:
        spent = time.perf_counter() - start
        return record, Reply(request.client, {}, before, None, spent, spent, f"its training failed, {error.message}")
    trained = time.perf_counter() - began
    after = score(method, task, state, data) if request.evaluate else None
    fault = find_fault(state, state)
    fault = fault and f"its training diverged, {fault}"
    reply = Reply(request.client, up, before, after, time.perf_counter() - start, trained, fault)
    return Record(state, local.memory), reply


class InProcess:
    """All clients in this process, several at a time, the largest first; results do not depend on either."""

    def __init__(self, method: Method, task: Task, data: Federated, seed: int, client: Tree, workers: int = 0) -> None:
        self.method, self.task, self.data, self.seed = method, task, data, seed
        self.workers = 1 if task.model.stochastic else workers or available_cores()
        self._records = [Record(client, {}) for _ in data.clients]
        self._pending: dict[int, Record] = {}

    def exchange(self, requests: Sequence[Request]) -> Iterator[Reply]:
        order = sorted(requests, key=lambda r: (not r.train, -len(self.data.clients[r.client].train.y)))
        if self.workers == 1 or len(order) == 1:
            yield from map(self._visit, order)
            return
        with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            futures: list[Future[Reply]] = [pool.submit(self._visit, request) for request in order]
            try:
                yield from (future.result() for future in as_completed(futures))
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def commit(self, clients: Sequence[int]) -> None:
        for i in clients:
            self._records[i] = self._pending[i]
        self._pending.clear()

    def records(self) -> list[Record]:
        return list(self._records)

    def restore(self, records: Sequence[Record]) -> None:
        self._records = list(records)

    def _visit(self, request: Request) -> Reply:
        i = request.client
        if self.task.model.stochastic:  # dropout draws from torch's one global generator
            torch.manual_seed(hash((self.seed, request.round, i)) % 2**63)
        record, reply = visit(self.method, self.task, self.data.clients[i], self._records[i], request, self.seed)
        if request.train:
            self._pending[i] = record
        return reply


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
