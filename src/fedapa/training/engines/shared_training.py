"""Trainings that several runs have in common, computed once: METHOD+ema trains as METHOD does.

A training is a pure function of its job, and a pass over a client's samples one of its model. The first run that asks
for one computes it. Another run compares what it wants with that, bit by bit, and computes it itself where anything
differs, so sharing changes no number of any run.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Condition
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from fedapa.core.tree import Tree, digest, equal
from fedapa.data.federated import Split
from fedapa.training.job import Job, Trained
from fedapa.training.local import Engine, Pass, compute, outputs

T = TypeVar("T")
Key = tuple[int, int, int]  # round, client, which piece of work of the visit


class Entry(NamedTuple):
    wanted: object
    done: Future[tuple[Any, float]]  # and its seconds


class SharedTraining:
    """Runs in threads of one process, by number. They begin every round together, so one round's work is kept."""

    def __init__(self, runs: int) -> None:
        self._at = dict.fromkeys(range(runs), -1)  # the round that every run is in
        self._kept: dict[Key, Entry] = {}
        self._moved = Condition()

    def enter(self, run: int, round: int) -> None:
        """Wait until no run is in an earlier round; what belongs to earlier rounds is dropped."""
        with self._moved:
            if run not in self._at or self._at[run] == round:
                return
            self._at[run] = round
            self._moved.notify_all()
            self._moved.wait_for(lambda: min(self._at.values()) >= round)
            self._kept = {key: entry for key, entry in self._kept.items() if key[0] >= round}

    def leave(self, run: int) -> None:
        """Wait for this run no longer: it has ended."""
        with self._moved:
            self._at.pop(run, None)
            self._moved.notify_all()

    def engine(self, run: int, round: int, client: int) -> Engine:
        """The engine of one visit."""
        self.enter(run, round)
        return Visit(self, round, client)

    def find(self, key: Key, work: Job | Pass) -> tuple[Any, float | None]:
        """What the work gives, and the seconds that it took another run; None where this one computed it."""
        wanted = identity(work)
        with self._moved:
            entry = self._kept.get(key)
            if is_first := entry is None:
                entry = self._kept[key] = Entry(wanted, Future())
        if is_first:
            return self._first(entry, work), None
        if entry.wanted == wanted:
            with suppress(Exception):  # a training that fails there fails here, too, in this run's name
                return entry.done.result()
        return compute(work), None

    def _first(self, entry: Entry, work: Job | Pass) -> Any:
        begun = time.perf_counter()
        try:
            found = compute(work)
        except BaseException as error:
            entry.done.set_exception(error)
            raise
        entry.done.set_result((found, time.perf_counter() - begun))
        return found


class Visit:
    """An engine whose work may come from another run. Its clock counts that as if it were its own."""

    def __init__(self, shared: SharedTraining, round: int, client: int) -> None:
        self._shared, self._at = shared, (round, client)
        self._asked, self._ahead = 0, 0.0

    def train(self, job: Job) -> Trained:
        found: Trained = self._find(job)
        return found

    def outputs(self, wanted: Pass) -> Tensor:
        if inspect.ismethod(wanted.function):  # a method's own answers: a running mean has others
            return outputs(wanted)
        found: Tensor = self._find(wanted)
        return found.clone()

    def _find(self, work: Job | Pass) -> Any:
        begun = time.perf_counter()
        found, seconds = self._shared.find((*self._at, self._asked), work)
        self._asked += 1
        if seconds is not None:
            self._ahead += seconds - (time.perf_counter() - begun)
        return found

    def once(self, compute: Callable[[], T]) -> T:
        return compute()

    def clock(self) -> float:
        return time.perf_counter() + self._ahead


def identity(work: Job | Pass) -> object:
    """Equal where two pieces of work of runs with the same data and seed, in the same visit, are the same."""
    if isinstance(work, Pass):
        return _same(work.function), digest(work.tree), work.task.training, work.task.engine, Samples(work.x)
    trees = [digest(tree) for tree in (work.params, work.velocity, work.given, work.carry, _computed(work.data))]
    local = getattr(work.batches, "args", None)
    options = sorted(work.rates.items()), work.rule, work.clip_norm, work.task.training, work.task.engine, local
    return trees, options, _same(work.loss), _same(work.project), work.held is None


class Samples:
    """Equal where the bits of two sets of samples are. Most often both are the same object: a client's own."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        one, two = self.x, other.x if isinstance(other, Samples) else None
        if isinstance(one, Tensor) and isinstance(two, Tensor):
            return one is two or equal({"x": one}, {"x": two})
        return one is two

    __hash__ = None  # type: ignore[assignment]


def _computed(data: Split) -> Tree:
    """What two runs may differ in: features that a model made. Images as they are stored are the same for both."""
    is_computed = isinstance(data.x, Tensor) and data.x.is_floating_point()
    return {"x": data.x, "y": data.y} if is_computed else {"y": data.y}


def _same(function: object) -> object:
    """Equal for two functions that compute the same: a method's function and settings, a partial's parts."""
    if isinstance(function, partial):
        return _same(function.func), function.args, tuple(sorted(function.keywords.items()))
    if inspect.ismethod(function):
        return function.__func__, function.__self__
    return function
