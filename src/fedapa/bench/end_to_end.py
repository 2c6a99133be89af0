"""Whole rounds and runs on all cores: two workers against one, our run against the plain loop, what is left over."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import Tensor

from fedapa.bench import image_data, plain
from fedapa.bench.fixtures import MODEL, How, network
from fedapa.bench.side_by_side import Row, Times, interleaved, ratio, spread, threads, timed
from fedapa.core.threads import available_cores
from fedapa.core.tree import Tree
from fedapa.data.federated import Federated
from fedapa.methods.catalogue import make
from fedapa.methods.fedapa import FedAPA
from fedapa.methods.method import Method
from fedapa.rounds.loop import draw
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import InProcess, Request
from fedapa.simulation import make_task, simulate
from fedapa.training.job import Job, Trained
from fedapa.training.local import Local, Pass, Plain
from fedapa.training.task import Task

T = TypeVar("T")
FEW_ROUNDS = 10  # longer runs against the plain loop are made once: each takes it minutes
SYSTEM = (  # the paper's twelve methods and six baselines
    "local", "fedavg", "fedavg-ft", "fedprox", "fedper", "fedrep", "ditto", "fedphp", "fedamp", "apple", "fedala",
    "pfedhn-pc", "pfedla", "fedpac", "dbe", "fedproto", "fedgh", "fedapa",
)  # fmt: skip
SYSTEM_ROUNDS = 2  # more would take minutes; from the second on, prototypes and private models are there


def federation(how: How, clients: int, part: int = 1) -> tuple[Federated, Task]:
    """All images of CIFAR-10, or one in ``part`` of them."""
    train, test = how.pick(50_000 // part, 60 * clients), how.pick(10_000 // part, 10 * clients)
    data = image_data.unbalanced("cifar10", clients, train, test)
    return data, make_task(data, MODEL, rounds=how.rounds)


def workers(how: How) -> list[Row]:
    """The training of a round of 20 unbalanced clients."""
    if available_cores() < 2:
        return []
    data, task = federation(how, 20)
    method = FedAPA()
    server, client = method.init(task, 0)
    requests = [Request(0, i, _sends(method, task, server, i), True, False) for i in range(20)]
    ways = {str(n): partial(_exchange, InProcess(method, task, data, 0, client, n), requests) for n in (1, 2)}
    with threads():
        found = interleaved(ways, how.pick(5, 2))
    sizes = data.sizes.double()
    detail = {
        "data": data.name,
        "seconds": {n: spread([t.wall for t in times]).median for n, times in found.items()},
        "at best, for these sizes": float(sizes.sum() / max(sizes.max(), sizes.sum() / 2)),
    }
    what = "two workers against one, a round of 20 unbalanced clients"
    return [Row("workers", what, ratio(found["1"], found["2"], "wall"), "x", 1.8, detail=detail)]


def _exchange(transport: InProcess, requests: list[Request]) -> None:
    list(transport.exchange(requests))


def _sends(method: Method, task: Task, server: Tree, i: int) -> Callable[[], Tree]:
    return lambda: method.send(task, server, i)


def run(how: How) -> list[Row]:
    """Runs with all that belongs to them, against the plain loop: FedAPA, and every method of the paper's system."""
    return [_fedapa(how), _system(how._replace(rounds=min(how.rounds, SYSTEM_ROUNDS)))]


def _fedapa(how: How) -> Row:
    """FedAPA against a loop that trains the same clients and does nothing else."""
    data, task = federation(how, 20)
    peer = PlainRun(task, data)
    ours: Callable[[], object] = lambda: play(FedAPA(), task, data, how.rounds)  # noqa: E731
    found = interleaved(
        {"plain": lambda: peer.run(how.rounds), "ours": ours},
        how.pick(3, 1) if how.rounds <= FEW_ROUNDS else 1,
        warm=False,
    )
    detail = {
        "data": data.name,
        "rounds": how.rounds,
        "seconds": {way: spread([t.wall for t in times]).median for way, times in found.items()},
        "threads of the plain loop": available_cores(),
    }
    what = f"whole FedAPA run, 20 clients, {how.rounds} rounds, against the plain loop"
    return Row("run", what, ratio(found["plain"], found["ours"], "wall"), "x", 6.0, detail=detail)


def _system(how: How) -> Row:
    """The same run of every method twice: by default, and with all training and evaluation on the plain loop."""
    data, task = federation(how, 20, part=4)
    times = {name: _both_ways(name, task, data, how.rounds) for name in SYSTEM[:: how.pick(1, 6)]}
    ratios = {name: ratio(found["plain"], found["ours"], "wall").median for name, found in times.items()}
    detail = {
        "data": data.name,
        "train samples": int(data.sizes.sum()),
        "rounds": how.rounds,
        "seconds": {way: sum(found[way][0].wall for found in times.values()) for way in ("plain", "ours")},
        "plain loop": f"the torch engine (autograd, SGD), one client after another, {available_cores()} threads; suite "
        "train has it beside DataLoader and torch.optim.SGD (torch engine against plain)",
        "lowest, highest": "of the methods",
        "ratios": [{name: ratios[name]} for name in sorted(ratios, key=lambda name: ratios[name])],
    }
    length = f"{how.rounds} round{'' if how.rounds == 1 else 's'}"
    what = f"whole run, median of {len(ratios)} methods, 20 clients, {length}, against the plain loop doing the same"
    return Row("run", what, spread(list(ratios.values())), "x", 7.0, detail=detail)


def _both_ways(name: str, task: Task, data: Federated, rounds: int) -> dict[str, list[Times]]:
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: play_plain(make(name), task, data, rounds),
        "ours": lambda: play(make(name), task, data, rounds),
    }
    return interleaved(ways, 1, warm=False)


class OnAllThreads(Plain):
    """The plain loop as torch runs it by default: all cores inside every operation."""

    def train(self, job: Job) -> Trained:
        with threads(available_cores()):
            return super().train(job)

    def outputs(self, wanted: Pass) -> Tensor:
        with threads(available_cores()):
            return super().outputs(wanted)


def play_plain(method: Method, task: Task, data: Federated, rounds: int) -> Times:
    """The same run without any engine of ours, one client after another."""
    engine = OnAllThreads()
    task = replace(task, kernel=None, vectorise=False)
    return play(method, task, data, rounds, workers=1, share=lambda t, i: engine)


def play(method: Method, task: Task, data: Federated, rounds: int, **ways: Any) -> Times:
    """Evaluation before and after, checkpoint and ledger, every round."""
    about = {"label": "bench", "seed": "0", "rounds": str(rounds), "evaluated": "after", "partition": data.fingerprint}
    with tempfile.TemporaryDirectory() as folder:
        return timed(lambda: simulate(method, task, data, Plan(rounds), Path(folder), about, **ways))


class PlainRun:
    """One model and one optimiser per client, trained one after another; one evaluation of everybody per round."""

    def __init__(self, task: Task, data: Federated) -> None:
        theta, phi = task.init(0)
        self.task, start = task, {"theta": theta, "phi": phi}
        self.models = [network(task, data, start) for _ in data.clients]
        self.optimisers = [plain.optimiser(model, task.training) for model in self.models]
        self.train = [plain.samples(task, client.train) for client in data.clients]
        self.test = [plain.samples(task, client.test) for client in data.clients]

    def run(self, rounds: int) -> list[int]:
        """Right answers after every round, with torch's default threads."""
        with threads(available_cores()):
            return [self.round(t, rounds) for t in range(rounds)]

    def round(self, t: int, rounds: int) -> int:
        for i in draw(Plan(rounds), len(self.models), t):
            loader = plain.shuffled(self.train[i], self.task.training)
            for _ in range(self.task.training.epochs):
                plain.train(self.models[i], self.optimisers[i], loader)
        return sum(plain.count_correct(model, test) for model, test in zip(self.models, self.test, strict=True))


class Stopwatch:
    """A method whose training and predicting are timed, in all threads together."""

    def __init__(self, method: Method) -> None:
        self._method, self._lock = method, threading.Lock()
        self.spent = Times(0.0, 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __repr__(self) -> str:
        return repr(self._method)

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        return self._timed(lambda: self._method.train(task, client, down, local))

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return self._timed(lambda: self._method.predict(task, client, x))

    def _timed(self, work: Callable[[], T]) -> T:
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            return work()
        finally:
            spent = Times(time.thread_time() - cpu, time.perf_counter() - wall)
            with self._lock:
                self.spent = Times(*(a + b for a, b in zip(self.spent, spent, strict=True)))


def overhead(how: How) -> list[Row]:
    """What a run of 50 clients spends on anything but training and predicting."""
    data, task = federation(how, 50)
    shares = [_outside(task, data, how.rounds) for _ in range(how.pick(3, 1))]
    detail = {"data": data.name, "rounds": how.rounds, "share of the processor's time": spread([s[1] for s in shares])}
    what = "share of a FedAPA run outside training and evaluation, 50 clients (time of all cores, waiting included)"
    return [Row("overhead", what, spread([s[0] for s in shares]), "%", 8.0, True, detail)]


def _outside(task: Task, data: Federated, rounds: int) -> tuple[float, float]:
    """Percent of the cores' time, and of the processor's time, that was spent elsewhere."""
    watch = Stopwatch(FedAPA())
    whole = play(cast(Method, watch), task, data, rounds)
    cores = available_cores()
    return 100 * (1 - watch.spent.wall / (cores * whole.wall)), 100 * (1 - watch.spent.cpu / whole.cpu)
