"""Side by side: every way once per repeat, in turn, so that a busy moment hits all of them; medians and spread."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

Way = Callable[[], object]


class Times(NamedTuple):
    """Seconds of one call: of the processor in all threads, and on the wall."""

    cpu: float
    wall: float


class Spread(NamedTuple):
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One line of the results: what was measured, how much is wanted, how much was found."""

    suite: str
    what: str
    found: Spread
    unit: str  # x (a ratio), %, s, MB, or a rate
    target: float | None = None
    at_most: bool = False  # the target is an upper limit
    detail: dict[str, Any] = field(default_factory=dict)
    every: bool = False  # each repeat has to meet the target, not only their median

    @property
    def holds(self) -> bool | None:
        if self.target is None:
            return None
        if self.at_most:
            return (self.found.high if self.every else self.found.median) <= self.target
        return (self.found.low if self.every else self.found.median) >= self.target

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "found": self.found._asdict(), "holds": self.holds}


def timed(way: Way) -> Times:
    cpu, wall = time.process_time(), time.perf_counter()
    way()
    return Times(time.process_time() - cpu, time.perf_counter() - wall)


def interleaved(ways: Mapping[str, Way], repeats: int, warm: bool = True) -> dict[str, list[Times]]:
    """Call every way in turn, ``repeats`` times around, after one round that is not counted."""
    if warm:
        for way in ways.values():
            way()
    rounds = [{name: timed(way) for name, way in ways.items()} for _ in range(repeats)]
    return {name: [one[name] for one in rounds] for name in ways}


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratio(slow: Sequence[Times], fast: Sequence[Times], clock: str = "cpu") -> Spread:
    """How many times as long ``slow`` takes, repeat by repeat."""
    pairs = zip(slow, fast, strict=True)
    return spread([getattr(one, clock) / getattr(other, clock) for one, other in pairs])


def rate(work: float, times: Sequence[Times], clock: str = "cpu") -> Spread:
    """Work per second."""
    return spread([work / getattr(one, clock) for one in times])


def known(value: float) -> Spread:
    """A number that was measured once."""
    return Spread(value, value, value)


def gemm(size: int = 1024) -> tuple[Way, float]:
    """A square matrix product and its floating-point operations: what this machine can do at best."""
    one, other, out = (torch.rand(size, size) for _ in range(3))
    return (lambda: torch.mm(one, other, out=out)), 2.0 * size**3


def exponents(sizes: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """The powers p of seconds = c * a^p1 * b^p2 ... that fit best."""
    logs = np.log(np.array(sizes, dtype=float))
    with_constant = np.column_stack([logs, np.ones(len(logs))])
    found, *_ = np.linalg.lstsq(with_constant, np.log(np.array(seconds)), rcond=None)
    return [float(p) for p in found[:-1]]


@contextmanager
def threads(count: int = 1) -> Iterator[None]:
    """So many threads inside a tensor operation; as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Memory:
    """The most resident memory since it was made; None where the system does not tell."""

    def __init__(self) -> None:
        self._before: int | None = None
        if sys.platform == "linux" and Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forgets the highest mark so far
            self._before = _resident("VmRSS")

    def peak(self) -> float | None:
        """MB, of the whole process."""
        return None if self._before is None else _resident("VmHWM") / 1024

    def beyond(self) -> float | None:
        """MB, beyond what there was at the beginning."""
        return None if self._before is None else (_resident("VmHWM") - self._before) / 1024


def _resident(mark: str) -> int:
    """KiB, from this process's status."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{mark}:"))
