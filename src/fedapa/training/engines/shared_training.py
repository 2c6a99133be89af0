"""Trainings that several runs have in common, computed once: METHOD+ema trains as METHOD does.

A training is a pure function of its job. The first run that asks for one computes it. Another run compares its own job
with that one, bit by bit, and trains itself where anything differs, so sharing changes no number of any run.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Condition
from typing import NamedTuple, TypeVar

from torch import Tensor

from fedapa.core.tree import Tree, digest
from fedapa.data.federated import Split
from fedapa.training.job import Job, Trained
from fedapa.training.local import Engine, Pass, outputs, train

T = TypeVar("T")
Key = tuple[int, int, int]  # round, client, which training of the visit


class Entry(NamedTuple):
    wanted: object
    done: Future[tuple[Trained, float]]  # and its seconds


class SharedTraining:
    """Runs in threads of one process, by number. They begin every round together, so one round's trainings are kept."""

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

    def train(self, key: Key, job: Job) -> tuple[Trained, float | None]:
        """The training, and the seconds that it took another run; None where this one computed it."""
        wanted = identity(job)
        with self._moved:
            entry = self._kept.get(key)
            if is_first := entry is None:
                entry = self._kept[key] = Entry(wanted, Future())
        if is_first:
            return self._first(entry, job), None
        if entry.wanted == wanted:
            with suppress(Exception):  # a training that fails there fails here, too, in this run's name
                return entry.done.result()
        return train(job), None

    def _first(self, entry: Entry, job: Job) -> Trained:
        begun = time.perf_counter()
        try:
            found = train(job)
        except BaseException as error:
            entry.done.set_exception(error)
            raise
        entry.done.set_result((found, time.perf_counter() - begun))
        return found


class Visit:
    """An engine whose trainings may come from another run. Its clock counts them as if they were its own."""

    def __init__(self, shared: SharedTraining, round: int, client: int) -> None:
        self._shared, self._at = shared, (round, client)
        self._trainings, self._ahead = 0, 0.0

    def train(self, job: Job) -> Trained:
        begun = time.perf_counter()
        found, seconds = self._shared.train((*self._at, self._trainings), job)
        self._trainings += 1
        if seconds is not None:
            self._ahead += seconds - (time.perf_counter() - begun)
        return found

    def outputs(self, wanted: Pass) -> Tensor:
        return outputs(wanted)

    def once(self, compute: Callable[[], T]) -> T:
        return compute()

    def clock(self) -> float:
        return time.perf_counter() + self._ahead


def identity(job: Job) -> object:
    """Equal where two trainings of runs with the same data and seed, in the same visit, are the same."""
    trees = [digest(tree) for tree in (job.params, job.velocity, job.given, job.carry, _computed(job.data))]
    local = getattr(job.batches, "args", None)
    options = sorted(job.rates.items()), job.rule, job.clip_norm, job.task.training, job.task.engine, local
    return trees, options, _same(job.loss), _same(job.project), job.held is None


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
