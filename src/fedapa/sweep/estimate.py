"""What a run will cost, in seconds: bytes from shapes alone, time from a few batches of one client.

Nothing is allocated that grows with the number of clients, and no more is trained than a budget of seconds allows.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fedapa.core.threads import one_thread
from fedapa.core.tree import Tree, count_bytes
from fedapa.data.federated import ClientData, Federated
from fedapa.methods.method import Method
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.round_log import WATCHED_BYTES
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import Record, Request, visit
from fedapa.store.checkpoint import KEEP, LEAST, WORTH
from fedapa.training.job import Job, Trained
from fedapa.training.local import Pass, Plain, outputs, train
from fedapa.training.model import build_model
from fedapa.training.task import Task

T = TypeVar("T")
FEW = (8, 16, 24)  # numbers of clients by which sizes are extrapolated to more
WIDTHS = (4, 8)  # inputs of two tiny models by which sizes are extrapolated to a large one
SMALL = 2**28  # bytes of models that may really be made
VISIT_ROW, SCORE_ROW, FIXED = 50, 60, 2e5  # bytes in run.db: of a client and round, of one of its scores, of the rest
LOG = 5e6  # bytes of run.db-wal, beside a round that is larger than that
ROWS = 512  # samples of a pass that are really taken


class Sizes(NamedTuple):
    """Bytes; of the messages of one client and round, of the server's state, of one client's, and what is watched."""

    down: float
    up: float
    server: float
    client: float
    watched: float


class Seconds(NamedTuple):
    """Of one client of ``rows`` train samples, on one core, and of the server in one round."""

    training: float
    other: float  # receiving and evaluating
    server: float
    rows: int


# ------------------------------------------------------------------------------------------------------------- bytes


def sizes(method: Method, task: Task, sample: Tensor) -> Sizes:
    """As counted in a federation that is small enough to make, extrapolated to more clients and to a larger model."""
    few = replace(task, kernel=None, vectorise=False)
    if 4 * (task.P + task.Q) * min(task.clients, FEW[-1]) < SMALL:
        return _over_clients(method, few, sample)
    small, large = (_with_model(few, width) for width in WIDTHS)
    pairs = zip((small, large), WIDTHS, strict=True)
    one, two = (_over_clients(method, part, torch.zeros(width)) for part, width in pairs)
    way = (task.P - small.P) / (large.P - small.P)
    return Sizes(*(a + (b - a) * way for a, b in zip(one, two, strict=True)))


def _over_clients(method: Method, task: Task, sample: Tensor) -> Sizes:
    """The parabola through the sizes at FEW: states and messages hold rows of clients, and at most a square of them."""
    if task.clients <= FEW[-1]:
        return _counted(method, task, sample)
    found = (_counted(method, _first(task, count), sample) for count in FEW)
    return Sizes(*(_at(task.clients, *three) for three in zip(*found, strict=True)))


def _first(task: Task, count: int) -> Task:
    """The same federation with its first clients alone."""
    return replace(task, sizes=task.sizes[:count], names=task.names[:count])


def _at(clients: int, one: float, two: float, three: float) -> float:
    a, b, _ = FEW
    slope, bend = (two - one) / (b - a), (three - 2 * two + one) / (2 * (b - a) ** 2)
    return one + slope * (clients - a) + bend * (clients - a) * (clients - b)


def _with_model(task: Task, width: int) -> Task:
    """The same task with a tiny extractor in front of a head of the same size."""

    def build(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(OrderedDict(body=nn.Linear(width, task.d), head=nn.Linear(task.d, outputs)))

    return replace(task, model=build_model(build, (width,), task.model.outputs), mean=(), std=())


def _counted(method: Method, task: Task, sample: Tensor) -> Sizes:
    server, client = method.init(task, 0)
    down, up = Expected(method, task, sample).exchanges(3)[-1]
    return Sizes(*(float(count_bytes(tree)) for tree in (down, up, server, client, method.watch(server))))


def states(found: Sizes, task: Task) -> float:
    """Bytes of the server's state and of all clients', with their optimisers': one whole checkpoint."""
    return found.server + task.clients * (found.client + 4 * (task.P + task.Q))


def disk(found: Sizes, task: Task, plan: Plan, validation: bool) -> float:
    """The most bytes that a run's folder takes at any time: checkpoints, run.db and the history of weights."""
    whole, low = states(found, task), plan.participation[0]
    partly = (1 - low) * (whole - found.server) >= max(LEAST, WORTH * whole)
    checkpoints = (2 + 3 * (1 - WORTH) if partly else KEEP + 1) * whole  # the last of them is being written
    scores = 2 * (1 + validation) * len(task.objective.scores) / max(plan.evaluate_every, 1)  # before and after
    rows = task.clients * plan.rounds * (VISIT_ROW + SCORE_ROW * scores)
    history = min(found.watched * plan.rounds, WATCHED_BYTES + 2 * found.watched)
    return checkpoints + rows + history + LOG + found.watched + FIXED


def memory(found: Sizes, task: Task, cores: int) -> float:
    """Bytes beside data and libraries: states, what an aggregation makes beside them, models in training."""
    return states(found, task) + 3 * found.watched + 5 * 4 * (task.P + task.Q) * cores


# -------------------------------------------------------------------------------------------------------------- time


@dataclass
class Sampled(Plain):
    """Trains the first batches of every training, and counts the others as if each took as long."""

    batches: int
    training: float = 0.0  # seconds that were not spent
    other: float = 0.0
    planned: int = field(default=0)

    def train(self, job: Job) -> Trained:
        whole = sum(1 for _ in job.batches())
        kept = min(whole, self.batches)
        done, spent = _timed(lambda: train(job._replace(batches=lambda: islice(job.batches(), kept))))
        self.training += spent * (whole / max(kept, 1) - 1)
        self.planned += whole
        return done

    def outputs(self, wanted: Pass) -> Tensor:
        rows = min(len(wanted.x), ROWS)
        part, spent = _timed(lambda: outputs(wanted._replace(x=wanted.x[:rows])))
        self.other += spent * (len(wanted.x) / max(rows, 1) - 1)
        return part[torch.arange(len(wanted.x)) % max(rows, 1)]


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


@one_thread()
def seconds(method: Method, task: Task, data: Federated, budget: float) -> Seconds:
    """From one visit of one batch, and if the budget is not spent then, another one of as many as it allows."""
    i = _typical(data)
    few = _first(task, max(2, min(task.clients, FEW[-1], int(SMALL // (4 * max(task.P + task.Q, 1))))))
    few = few if few.clients <= task.clients else task
    server, client = method.init(few, 0)
    down = method.send(few, server, 0)
    began = time.perf_counter()
    found, up, planned = _visited(method, few, data.clients[i], client, down, 1)
    spent = time.perf_counter() - began
    left = budget - spent
    if left > spent and planned > 1:
        batches = min(planned, max(1, int(left / max(spent, 1e-3))))
        found, up, _ = _visited(method, few, data.clients[i], client, down, batches)
    return found._replace(server=_server(method, few, server, down, up) * task.clients / few.clients)


def _typical(data: Federated) -> int:
    """The client of median size."""
    order = sorted(range(len(data.clients)), key=lambda i: len(data.clients[i].train.y))
    return order[len(order) // 2]


def _visited(
    method: Method, task: Task, data: ClientData, client: Tree, down: Tree, batches: int
) -> tuple[Seconds, Tree, int]:
    engine = Sampled(batches)
    request = Request(0, 0, lambda: down, train=True, evaluate=True)
    _, reply = visit(method, task, data, Record(client, {}), request, 0, engine)
    training = reply.train_seconds + engine.training
    other = reply.seconds - reply.train_seconds + engine.other
    return Seconds(training, other, 0.0, max(len(data.train.y), 1)), reply.up or {}, engine.planned


def _server(method: Method, task: Task, server: Tree, down: Tree, up: Tree) -> float:
    """Of one round in which all clients upload the same."""
    if not up:
        return 0.0
    ids = list(range(task.clients))
    return _timed(lambda: method.absorb(task, server, ids, [down] * len(ids), [up] * len(ids)))[1]


def per_round(found: Seconds, rows: float, clients: int, plan: Plan, workers: int) -> float:
    """Seconds of a round: ``rows`` are the train samples of all clients, of whom a share takes part."""
    low, high = plan.participation
    share, at_once = (low + high) / 2, min(workers, max(1, round((low + high) / 2 * clients)))
    evaluated = 1 / max(plan.evaluate_every, 1)
    work = found.training * share + found.other * evaluated
    return work * rows / found.rows / at_once + found.server
