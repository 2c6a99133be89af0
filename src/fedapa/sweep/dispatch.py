"""Runs handed out to places, each of which plays one at a time. A place that is lost gives its run to another."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fedapa.errors import RunError
from fedapa.sweep import parcel
from fedapa.sweep.parcel import Item, Parcel
from fedapa.sweep.pool import ENDS, Event

TRIES = 3  # so many places lose a run before it is given up, and so many runs in a row a place
PAUSE = 0.2  # seconds between two looks for a run


class Lost(Exception):
    """A place ended before its run did."""


class Place(Protocol):
    """Plays one run at a time."""

    name: str

    def play(self, sent: Parcel) -> Iterator[Item]:
        """What happens to the run, until it ends; Lost if the place ended first."""

    def stop(self) -> None:
        """End what is being played."""


class Dispatch:
    """One thread per place; events are reported in the caller's thread."""

    def __init__(self, places: Sequence[Place], runs: Sequence[Path], shared: bool | None = None) -> None:
        self.places, self.shared, self.count = places, shared, len(runs)
        self._left, self._lock = list(runs), threading.Lock()
        self._there = {place.name for place in places}
        self._lost_by: defaultdict[Path, set[str]] = defaultdict(set)
        self._said: queue.Queue[Event | None] = queue.Queue()  # None: the last place gave up
        self._stopped = threading.Event()

    def play(self, report: Callable[[Event], None]) -> None:
        for place in self.places:
            threading.Thread(target=self._serve, args=(place,), daemon=True).start()
        try:
            self._report(report)
        finally:
            self._stopped.set()
            for place in self.places:
                with suppress(Exception):
                    place.stop()

    def _report(self, report: Callable[[Event], None]) -> None:
        ended = 0
        while ended < self.count:
            event = self._said.get()
            if event is None:
                raise RunError("every place was lost", "are they reachable? the same command goes on")
            ended += event.what in ENDS
            report(event)

    def _serve(self, place: Place) -> None:
        """Play runs until all have ended. A run that another place loses may come back, hence the wait."""
        failures = 0
        while not self._stopped.is_set() and failures < TRIES:
            if (path := self._next(place)) is None:
                self._stopped.wait(PAUSE)
                continue
            try:
                self._play(place, path)
                failures = 0
            except Lost as error:
                failures += 1
                self._lose(place, path, str(error))
            except Exception as error:
                self._said.put(Event(path, "failed", text=f"{place.name}: {type(error).__name__}: {error}"))
        self._leave(place)

    def _next(self, place: Place) -> Path | None:
        """The next run that this place has not lost, as long as there is another place for those."""
        with self._lock:
            alone = self._there == {place.name}
            found = next((run for run in self._left if alone or place.name not in self._lost_by[run]), None)
            if found is not None:
                self._left.remove(found)
            return found

    def _play(self, place: Place, path: Path) -> None:
        for item in place.play(parcel.send(path, self.shared)):
            if (event := parcel.receive(item, path)) is not None:
                self._said.put(event)
                if event.what in ENDS:
                    return
        raise Lost("it ended without a word")

    def _lose(self, place: Place, path: Path, why: str) -> None:
        """Give the run back. Lost by several places, or by all that there are, it is the run that ends them."""
        with self._lock:
            self._lost_by[path].add(place.name)
            by_all = len(self._there) > 1 and self._there <= self._lost_by[path]
            if len(self._lost_by[path]) < TRIES and not by_all:
                self._left.append(path)
                return
        names = ", ".join(sorted(self._lost_by[path]))
        self._said.put(Event(path, "failed", text=f"lost by {names}; the last said: {why}"))

    def _leave(self, place: Place) -> None:
        with self._lock:
            self._there.discard(place.name)
            if not self._there and not self._stopped.is_set():
                self._said.put(None)
