"""The small federation that the laws are checked on: four unequal clients, one with a single class, one tiny."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedapa.core.tree import Tree, clone, digest
from fedapa.data.federated import Federated, Split, from_arrays
from fedapa.errors import InputError
from fedapa.methods.method import Method, Schedule
from fedapa.rounds import loop
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.loop import Context
from fedapa.rounds.round_log import RoundLog, State
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import InProcess, Record, Reply, Request
from fedapa.simulation import make_task
from fedapa.training.devices import seed_torch
from fedapa.training.local import Local
from fedapa.training.objective import Classification, Objective
from fedapa.training.settings import HEAD, Buffers, Engine, Training
from fedapa.training.task import Task

Floats = npt.NDArray[np.float64]
ROUNDS, CLASSES = 4, 3
SIZES = (40, 23, 31, 7)
TOKENS = 10
KEPT = 256  # cases whose visits are kept: laws of a method have many in common, and so have methods with their limits
HOW = "check its first layer"
SAMPLES = ((False, False), (True, False), (False, True))  # images, tokens: what a user's model is tried on


class Broken(Exception):
    """A law does not hold; says which numbers show it."""


@dataclass
class Outcome:
    """How a run ended: everything that two runs can be compared by."""

    server: Tree
    records: list[Record]
    logs: list[RoundLog]

    def tree(self) -> Tree:
        """Server and clients as one tree."""
        found = {f"server/{k}": v for k, v in self.server.items()}
        for i, record in enumerate(self.records):
            found |= {f"client {i}/{k}": v for k, v in record.state.items()}
            found |= {f"memory {i}/{k}": v for k, v in record.memory.items()}
        return found

    def scores(self) -> list[list[list[list[float]]]]:
        kept = [(log.before, log.after) for log in self.logs]
        return [[before.tolist(), after.tolist()] for before, after in kept if before is not None and after is not None]


@dataclass(frozen=True)
class Case:
    """One method on the small federation, under one schedule."""

    method: Method
    schedule: Schedule = "parallel"
    images: bool = False  # a LeNet-shaped model, so that the native engine can be compared
    engine: Engine = "torch"
    objective: Objective = Classification()
    training: Training = Training(lr=0.05, batch=8, epochs=1)
    tokens: bool = False  # whole numbers as samples, and a model with an embedding
    shared: tuple[str, ...] = ()  # patterns of what is theta, instead of all but the head
    norm: bool = False  # a model with BatchNorm
    buffers: Buffers = "shared"  # where its statistics are
    model: str = ""  # a user's, instead of the suite's
    head: str = HEAD  # of the user's model
    settings: tuple[tuple[str, Any], ...] = ()  # arguments of the function that makes the user's model

    @cached_property
    def data(self) -> Federated:
        found = _images() if self.images else _tokens() if self.tokens else _vectors()
        return found if self.objective.target == "class" else _counted(found)

    @cached_property
    def task(self) -> Task:
        model, head = (self.model, self.head) if self.model else self._own_model()
        options: dict[str, Any] = {"engine": self.engine, "objective": self.objective, "shared": self.shared}
        options["settings"] = dict(self.settings)
        return make_task(self.data, model, self.training, ROUNDS, head, self.buffers, **options)

    def _own_model(self) -> tuple[nn.Module, str]:
        outputs = self.objective.outputs(CLASSES)
        model = _embedding(outputs) if self.tokens and not self.images else _model(self.images, self.norm, outputs)
        return model, str(len(model) - 1)

    def fitting(self) -> Case:
        """The same on samples that the user's model takes: 6 numbers, images of 1 x 8 x 8, or 6 token ids."""
        refusals = []
        for images, tokens in SAMPLES if self.model else ((self.images, self.tokens),):
            case = replace(self, images=images, tokens=tokens)
            try:
                case.try_model()
            except InputError as error:
                refusals.append(error)
            else:
                return case
        first, *others = refusals
        if all(error.message == first.message for error in others):  # it is not the samples
            raise first
        hint = f"{first.hint}; the laws are checked on 6 numbers, images of 1 x 8 x 8 and 6 token ids below 10"
        raise InputError(f"model {self.model!r} takes none of the samples: {first.message}", hint)

    def try_model(self) -> None:
        """Refuse a model that cannot be made, or cannot take the samples."""
        task, x = self.task, torch.cat([client.train.x for client in self.data.clients])
        try:
            with torch.no_grad():
                task.predict(dict(zip(("theta", "phi"), task.init(7), strict=True)), x)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"the model cannot take samples of shape {list(x.shape[1:])}: {error}", HOW) from error

    @cached_property
    def expected(self) -> Expected:
        return Expected(self.method, self.task, self.data.clients[0].train.x[0])

    @cached_property
    def exchanges(self) -> list[tuple[Tree, Tree]]:
        """What a client receives and sends in its first rounds."""
        return self.expected.exchanges(3)

    @cached_property
    def known_visits(self) -> dict[Any, list[tuple[Record, Reply]]]:
        """What is known of visits of equal cases; a user's model may have changed since, so only of this one."""
        return {} if self.model else _known_visits(self)

    def plan(self, rounds: int = ROUNDS) -> Plan:
        return Plan(rounds, (0.5, 1.0), self.schedule, seed=7)

    def with_method(self, method: Method) -> Case:
        return replace(self, method=method)

    def transport(self, workers: int = 1) -> InProcess:
        return InProcess(self.method, self.task, self.data, 7, self._client(), workers)

    def _client(self) -> Tree:
        return loop.start(self.method, self.task, 7)[1]

    def context(self, transport: InProcess, plan: Plan) -> Context:
        return Context(self.method, self.task, transport, plan, self.expected)

    def run(
        self,
        rounds: int = ROUNDS,
        workers: int = 1,
        transport: InProcess | None = None,
        state: State | None = None,
    ) -> Outcome:
        """Play the rounds from the start, or from a given state, and keep everything."""
        torch.set_num_threads(1)
        transport = transport or self.transport(workers)
        logs: list[RoundLog] = []
        begin = state or loop.start(self.method, self.task, 7)[0]
        end = loop.run(self.context(transport, self.plan(rounds)), begin, lambda log, _: logs.append(log))
        return Outcome(end.server, transport.records(), logs)

    def after(self, rounds: int) -> Outcome:
        """The undisturbed run after some rounds, with the visits that are known already."""
        return self.run(rounds, transport=Remembering.on(self))

    @lru_cache(maxsize=4)  # noqa: B019 - cases are short-lived
    def usual(self) -> Outcome:
        """The undisturbed run that others are compared with."""
        return self.after(ROUNDS)

    def local(self, i: int, t: int, record: Record) -> Local:
        return Local(self.task, i, t, 7, self.data.clients[i].train, record.memory)

    def visits(self, ids: Sequence[int] = (0, 1, 2), rounds: int = 2) -> tuple[Tree, list[Tree], list[Tree]]:
        """A server that has seen some rounds, what it sends to ``ids`` next and what they answer."""
        done = self.after(rounds)
        downs = [self.method.send(self.task, done.server, i) for i in ids]
        ups = []
        for i, down in zip(ids, downs, strict=True):
            local = self.local(i, rounds, done.records[i])
            state = self.method.receive(self.task, clone(done.records[i].state), down, local)
            ups.append(self.method.train(self.task, state, down, local)[1])
        return done.server, downs, ups


class Remembering(InProcess):
    """The in-process transport; a visit that an equal case has made is not made again.

    What a visit leaves behind depends on what it is given (the third law), so the runs of a case that differ in what
    the server does with replies share the visits up to the difference. Runs whose visits are in question play them.
    """

    known: dict[Any, list[tuple[Record, Reply]]]

    @classmethod
    def on(cls, case: Case) -> Self:
        made = cls(case.method, case.task, case.data, 7, case._client(), 1)
        made.known = case.known_visits
        return made

    def _play(self, requests: Sequence[Request]) -> list[tuple[Record, Reply]]:
        key = tuple(self._given(request) for request in requests)
        if key not in self.known:
            self.known[key] = [_copied(end) for end in super()._play(requests)]
        return [_copied(end) for end in self.known[key]]

    def _given(self, request: Request) -> tuple[Any, ...]:
        record = self._records[request.client]
        return (*request._replace(down=None), *map(digest, (request.down(), record.state, record.memory)))  # type: ignore[arg-type]


def _copied(end: tuple[Record, Reply]) -> tuple[Record, Reply]:
    """With tensors of its own, so that no method changes what is known."""
    (state, memory), reply = end
    return Record(clone(state), clone(memory)), reply._replace(up=None if reply.up is None else clone(reply.up))


@lru_cache(maxsize=KEPT)
def _known_visits(case: Case) -> dict[Any, list[tuple[Record, Reply]]]:
    return {}


class Tampering(Remembering):
    """The same with a hook on its replies: drop them, shuffle them, damage them."""

    def tamper(self, replies: list[Reply]) -> list[Reply]:
        return replies

    def exchange(self, requests: Sequence[Request]) -> Iterator[Reply]:
        yield from self.tamper(list(super().exchange(requests)))


def _model(images: bool, norm: bool, outputs: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        seed_torch(5)
        if images:
            return nn.Sequential(
                nn.Conv2d(1, 4, 5),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(16, 12),
                nn.ReLU(),
                nn.Linear(12, outputs),
            )
        first = [nn.BatchNorm1d(8)] if norm else []
        return nn.Sequential(nn.Linear(6, 8), *first, nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, outputs))


def _embedding(outputs: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        seed_torch(5)
        return nn.Sequential(nn.Embedding(TOKENS, 3), nn.Flatten(), nn.Linear(18, 5), nn.ReLU(), nn.Linear(5, outputs))


def _tokens() -> Federated:
    """The vectors, rounded to token ids."""
    random = np.random.default_rng(11)
    centres = random.normal(size=(CLASSES, 6))

    def ids(x: Any) -> Any:
        return np.clip(np.rint(2 * x), -TOKENS // 2, TOKENS // 2 - 1).astype(np.int64) + TOKENS // 2

    clients = [_client(random, i, n, centres) for i, n in enumerate(SIZES)]
    return from_arrays([(ids(a), b, ids(c), d) for a, b, c, d in clients], CLASSES)


def _vectors() -> Federated:
    random = np.random.default_rng(11)
    centres = random.normal(size=(CLASSES, 6))
    return from_arrays([_client(random, i, n, centres) for i, n in enumerate(SIZES)], CLASSES)


def _counted(data: Federated) -> Federated:
    """The same samples with a number to predict instead of a class: a count, so that objectives of counts fit, too."""

    def count(split: Split, weights: torch.Tensor) -> Split:
        rate = torch.exp(0.5 + split.x.flatten(1) @ weights).clamp(max=20.0)
        return Split(split.x, rate.round())

    generator = torch.Generator().manual_seed(13)
    width = int(torch.Size(data.shape).numel())
    clients = []
    for client in data.clients:
        weights = torch.randn(width, generator=generator) / width**0.5
        clients.append(replace(client, train=count(client.train, weights), test=count(client.test, weights)))
    return replace(data, clients=tuple(clients)).with_target("number")


def _images() -> Federated:
    random = np.random.default_rng(12)
    centres = random.normal(size=(CLASSES, 64))
    clients = [_client(random, i, n, centres) for i, n in enumerate(SIZES)]
    return from_arrays([(a.reshape(-1, 1, 8, 8), b, c.reshape(-1, 1, 8, 8), d) for a, b, c, d in clients], CLASSES)


def _client(random: np.random.Generator, i: int, n: int, centres: Floats) -> tuple[Any, Any, Any, Any]:
    """Client 1 has one class only, the others lean to a class of their own."""
    shares = np.eye(CLASSES)[i % CLASSES] if i == 1 else np.full(CLASSES, 0.2) + 0.4 * np.eye(CLASSES)[i % CLASSES]
    y = random.choice(CLASSES, 2 * n, p=shares / shares.sum())
    x = (centres[y] + 0.7 * random.normal(size=(2 * n, centres.shape[1]))).astype(np.float32)
    return x[:n], y[:n], x[n:], y[n:]
