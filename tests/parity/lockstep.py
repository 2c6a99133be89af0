"""Our side of a lockstep: play our method in float64 and keep every batch it trains on.

The other code is then driven with the same start and the same batches, so that only the rules of the two are left.
Batches enter and leave through one seam, the engine of a visit: ``Recorder.train`` sees every training as a ``Job``.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
import torch._dynamo  # torch would load it with the first optimizer, and look at the mocks of a checkout
from torch import Tensor, nn

import fedapa as fa
from fedapa.core.threads import one_thread
from fedapa.core.tree import Tree
from fedapa.data.federated import Federated, Split
from fedapa.methods.method import Method
from fedapa.rounds import loop
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.loop import Context
from fedapa.rounds.round_log import RoundLog, State
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import Record, Reply, Request, visit
from fedapa.training.job import Job, Trained
from fedapa.training.local import Local, Plain
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Task

CLIENTS, BATCH, SEED = 8, 16, 0
Epochs = deque[list[Tensor]]  # indices of the batches of every epoch that is still to be played


# ------------------------------------------------------------------------------------------------- data and start


def make_data() -> Federated:
    """Half of the handwritten digits, unevenly dealt, as colour images of 32 x 32 in float64: no download needed."""
    data = fa.load("digits", "dirichlet", clients=CLIENTS, seed=SEED, alpha=0.5)
    clients = tuple(replace(c, train=enlarge(c.train, 2), test=enlarge(c.test)) for c in data.clients)
    return replace(data, clients=clients, shape=(3, 32, 32), mean=(), std=())


def enlarge(split: Split, every: int = 1) -> Split:
    x = split.x[::every].double() / split.x.max() * 2 - 1
    return Split(x.repeat_interleave(4, -1).repeat_interleave(4, -2).repeat(1, 3, 1, 1), split.y[::every])


def in_whole_batches(data: Federated) -> Federated:
    """Every client with the samples that fill its batches."""
    kept = (
        replace(c, train=Split(*(part[: len(c.train.y) // BATCH * BATCH] for part in c.train))) for c in data.clients
    )
    return replace(data, clients=tuple(kept))


class DoubleTask(Task):
    """The library packs models as float32; here they start as float64, with the values of float32."""

    def init(self, seed: int) -> tuple[Tensor, Tensor]:
        theta, phi = super().init(seed)
        return theta.double(), phi.double()


def make_task(data: Federated, training: Training, rounds: int) -> Task:
    return DoubleTask(build_model("lenet5", data.shape, data.classes), data.classes, data.sizes, training, rounds)


@contextmanager
def float64() -> Iterator[None]:
    """Inside, new tensors are float64, counts of classes too, and one thread computes: always in the same order."""
    before, counts = torch.get_default_dtype(), Local.counts
    torch.set_default_dtype(torch.float64)
    try:
        with one_thread(), patch.object(Local, "counts", lambda local: counts(local).double()):
            yield
    finally:
        torch.set_default_dtype(before)


# ------------------------------------------------------------------------------------------------------- our side


@dataclass
class Recorder(Plain):
    """Trains as the plain engine does and keeps the batches; mixing weights (FedALA) see their samples in order."""

    epochs: Epochs

    def train(self, job: Job) -> Trained:
        size = job.task.training.batch
        if not job.params.keys() & {"theta", "phi"}:
            return super().train(job._replace(batches=lambda: iter(torch.split(torch.arange(len(job.data.y)), size))))
        batches = list(job.batches())
        self.epochs.extend(in_epochs(batches, len(job.data.y) // size))
        return super().train(job._replace(batches=lambda: iter(batches)))


def in_epochs(batches: Sequence[Tensor], per_epoch: int) -> Iterator[list[Tensor]]:
    per_epoch = max(per_epoch, 1)
    return (list(batches[k : k + per_epoch]) for k in range(0, len(batches), per_epoch))


@dataclass
class Recording:
    """A transport of one process and one thread that keeps every client's batches."""

    method: Method
    task: Task
    data: Federated
    kept: list[Record]
    epochs: list[Epochs]
    pending: dict[int, Record] = field(default_factory=dict)

    def exchange(self, requests: Sequence[Request]) -> Iterator[Reply]:
        for request in requests:
            i = request.client
            engine = Recorder(self.epochs[i])
            self.pending[i], reply = visit(
                self.method, self.task, self.data.clients[i], self.kept[i], request, SEED, engine
            )
            yield reply

    def commit(self, clients: Sequence[int]) -> None:
        for i in clients:
            self.kept[i] = self.pending[i]
        self.pending.clear()


@dataclass
class Ours:
    """A finished run of ours: what the other code needs to follow it, and what it is compared with."""

    task: Task
    logs: list[RoundLog]
    states: list[State]  # after every round
    clients: list[Tree]
    epochs: list[Epochs]

    @property
    def start(self) -> Tensor:
        """The model that everybody starts from, as one vector."""
        return torch.cat(self.task.init(SEED))

    @property
    def server(self) -> Tree:
        return self.states[-1].server

    def accuracies(self, when: str) -> list[float]:
        counts = [log.before if when == "before" else log.after for log in self.logs]
        return [float(c[:, 0, 0].sum() / c[:, 0, 1].sum()) for c in counts if c is not None]


def play(method: Method, data: Federated, training: Training, rounds: int, share: float = 1.0) -> Ours:
    """Our rounds; between ``share`` and all of the clients take part in each."""
    task = make_task(data, training, rounds)
    state, client = loop.start(method, task, SEED)
    epochs = [Epochs() for _ in data.clients]
    transport = Recording(method, task, data, [Record(client, {}) for _ in data.clients], epochs)
    logs, states = list[RoundLog](), list[State]()

    def sink(log: RoundLog, state: State) -> None:
        logs.append(log)
        states.append(state)

    expected, plan = Expected(method, task, data.clients[0].train.x[0]), Plan(rounds, (share, 1.0), "auto", SEED)
    loop.run(Context(method, task, transport, plan, expected), state, sink)  # type: ignore[arg-type]
    return Ours(task, logs, states, [record.state for record in transport.kept], epochs)


# ----------------------------------------------------------------------------------------------- the other side


class OutOfStepError(Exception):
    """The other code does not do what ours did."""


@dataclass
class Replay:
    """A data loader of theirs that hands out our batches; an epoch that is left early is handed out again."""

    data: Split
    epochs: Epochs

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if not self.epochs:
            raise OutOfStepError("it trains for more epochs than ours")
        for index in self.epochs[0]:
            yield self.data.x[index], self.data.y[index]
        self.epochs.popleft()

    def __len__(self) -> int:
        return max(len(self.data.y) // BATCH, 1)


def left_over(epochs: Sequence[Epochs]) -> str:
    """What is wrong if the other code did not train as often as ours."""
    rest = {i: len(kept) for i, kept in enumerate(epochs) if kept}
    return f"it left {sum(rest.values())} epochs of {len(rest)} clients unplayed" if rest else ""


@contextmanager
def checkout(folder: Path, absent: Sequence[str], stand_ins: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Inside, code of ``folder`` can be imported and is silent; nothing is written there and nothing stays loaded.

    Packages that it imports and that a lockstep never calls are ``absent``: a mock takes their place.
    """
    written, here, replaced = sys.dont_write_bytecode, Path.cwd(), dict(sys.modules)
    sys.modules.update({**{name: MagicMock() for name in absent}, **(stand_ins or {})})
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        os.chdir(here)
        sys.dont_write_bytecode = written
        sys.path.remove(str(folder))
        theirs = [name for name in sys.modules.keys() - replaced.keys() if lies_in(sys.modules[name], folder)]
        for name in {*absent, *(stand_ins or {}), *theirs}:
            del sys.modules[name]
        sys.modules.update(replaced)


def lies_in(module: ModuleType, folder: Path) -> bool:
    """Packages without ``__init__.py`` have no file, only places to search."""
    spec = getattr(module, "__spec__", None)
    places = [getattr(spec, "origin", None), *(getattr(spec, "submodule_search_locations", None) or ())]
    return any(isinstance(place, str) and Path(place).is_relative_to(folder) for place in places)


def commit_of(folder: Path) -> str:
    """The commit that is checked out, and whether somebody changed it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True).stdout.strip()

    changed = " with local changes" if git("status", "--porcelain") else ""
    return (git("rev-parse", "--short=12", "HEAD") or "of an unknown commit") + changed


def load_weights(module: nn.Module, vector: Tensor) -> None:
    """Our flat vector into their parameters, which stand in the same order."""
    nn.utils.vector_to_parameters(vector.clone(), module.parameters())


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])
