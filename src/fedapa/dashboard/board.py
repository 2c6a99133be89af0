"""The runs of a folder as they stand now: what changed is read again, the rest is remembered."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedapa.analysis.run_reader import Run, Scenario, Trouble, name_of, read_run, scenarios_of
from fedapa.config.experiment import read_config
from fedapa.errors import FedapaError, InputError
from fedapa.store import run_db, sweep_db
from fedapa.store.run_folder import CONFIG, is_at_work, runs_under
from fedapa.sweep import cost
from fedapa.sweep.runner import is_sweep

FRESH = 1.0  # seconds for which nobody looks at the files again
SITES_FRESH = 5.0  # seconds
WATCHED = ("run.db", "run.db-wal", CONFIG, "log.txt")
UNFINISHED = ("running", "cut off", "planned")
RECENT = 10  # rounds that say how fast a run is now
TICK = 0.1  # seconds: a file system's clock may give two changes within it the same time

Signature = tuple[tuple[int, int, int] | None, ...]


class Entry(NamedTuple):
    """One run: what its files say, and whether somebody is at it."""

    name: str
    folder: Path
    signature: Signature
    found: Run | Trouble
    pace: float | None  # seconds per round, lately
    done: int
    rounds: int | None
    has_weights: bool
    is_settled: bool = True  # no change since can have the same signature
    at_work: bool | None = None
    failure: str = ""  # what the sweep says of a run that never began

    @property
    def mark(self) -> tuple[Any, ...]:
        """Two settled entries of one mark say the same."""
        return self.signature, self.is_settled, self.at_work, self.failure

    @property
    def state(self) -> str:
        """planned, running, cut off (says that it runs, and nobody does), failed, finished or unreadable."""
        status = self.found.result.status if isinstance(self.found, Run) else self.found.status
        if status == "running" and self.at_work is False:
            return "cut off"
        return "failed" if status == "planned" and self.failure else status

    @property
    def reason(self) -> str:
        told = self.found.about.get("reason", "") if isinstance(self.found, Run) else self.found.reason
        return (self.failure or told) if self.state in ("failed", "unreadable") else ""

    @property
    def seconds_left(self) -> float | None:
        if self.pace is None or self.rounds is None:
            return None
        return self.pace * max(self.rounds - self.done, 0)


@dataclass(frozen=True)
class Snapshot:
    version: int
    entries: dict[str, Entry]
    scenarios: list[Scenario]
    sites: tuple[dict[str, Any], ...] = ()  # of a coordinator: name, state, refusals

    def entry(self, name: str) -> Entry:
        """By name alone: whatever else a request says never becomes a path."""
        if name not in self.entries:
            raise InputError(f"there is no run {name!r} here", "choose one of the list")
        return self.entries[name]

    def scenario_of(self, name: str) -> Scenario | None:
        return next((s for s in self.scenarios if any(str(r.result.folder) == name for r in s.runs)), None)


class Board:
    """One for all viewers. Files are looked at by their times and sizes; run.db is opened for moments, to read only."""

    def __init__(self, folder: Path, coordinator: Path | None = None) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder", "name a folder of runs; `fedapa run` makes one")
        self.folder, self.coordinator = folder, coordinator
        self._asked = float("-inf")
        self._sites: tuple[dict[str, Any], ...] = ()
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._now = Snapshot(0, {}, [])
        self._guesses: dict[str, tuple[cost.Kind, float] | None] = {}

    @property
    def kind(self) -> str:
        if is_sweep(self.folder):
            return "sweep"
        return "run" if any(entry.folder == self.folder for entry in self._now.entries.values()) else "runs"

    def look(self, at_most_old: float = FRESH) -> Snapshot:
        """The folder as it is, or as it was a moment ago. Nobody waits for another one who is looking just now, unless
        nothing is known yet or it must be the newest."""
        if not self._lock.acquire(blocking=self._now.version == 0 or at_most_old <= 0):
            return self._now
        try:
            if time.monotonic() - self._looked >= at_most_old:
                self._refresh()
                self._looked = time.monotonic()
            return self._now
        finally:
            self._lock.release()

    def _refresh(self) -> None:
        failures = self._failures()
        before = self._now.entries
        entries = {}
        for path in runs_under(self.folder):
            name = name_of(path, self.folder)
            entries[name] = _entry(path, name, before.get(name), failures.get(name, ""))
        marks, known = ({name: entry.mark for name, entry in group.items()} for group in (entries, before))
        sites = self._ask_for_sites()
        is_same = marks == known and all(entry.is_settled for entry in entries.values())
        if not is_same or sites != self._now.sites or self._now.version == 0:
            runs = [entry.found for entry in entries.values() if isinstance(entry.found, Run)]
            self._now = Snapshot(self._now.version + 1, entries, scenarios_of(runs), sites)

    def _ask_for_sites(self) -> tuple[dict[str, Any], ...]:
        """Who takes part, who is online and who was refused; the SuperLink is asked now and then."""
        if self.coordinator is not None and time.monotonic() - self._asked >= SITES_FRESH:
            from fedapa.federation.overview import overview
            from fedapa.federation.registry import Coordinator
            from fedapa.transports.flower.control import online

            with suppress(InputError):  # a damaged run: what was known of the sites stays
                coordinator = Coordinator(self.coordinator)
                self._sites = tuple(overview(coordinator, self.folder, online(coordinator))["sites"])
            self._asked = time.monotonic()
        return self._sites

    def _failures(self) -> dict[str, str]:
        if not is_sweep(self.folder):
            return {}
        try:
            return {run["path"]: run["reason"] for run in sweep_db.read(self.folder) if run["state"] == "failed"}
        except InputError:
            return {}  # the runs speak for themselves

    def seconds_left(self, now: Snapshot) -> float | None:
        """Until everything is finished, with as many processes as are at work now; None while nobody is."""
        workers = sum(entry.state == "running" for entry in now.entries.values())
        open_runs = [entry for entry in now.entries.values() if entry.state in UNFINISHED]
        if not workers:
            return None
        guesses = {entry.name: guess for entry in open_runs if (guess := self._guess(entry)) is not None}
        expected = cost.expected(guesses, [_cost(entry) for entry in now.entries.values()])
        left = []
        for entry in open_runs:
            whole = expected.get(entry.name)
            share = 1 - entry.done / entry.rounds if entry.rounds else 1.0
            left.append(entry.seconds_left if entry.seconds_left is not None else (whole or 0.0) * share)
        return max(sum(left) / workers, max(left, default=0.0)) if left else 0.0

    def _guess(self, entry: Entry) -> tuple[cost.Kind, float] | None:
        if entry.name not in self._guesses:
            try:
                config = read_config(entry.folder)
                kind = cost.Kind(entry.folder.parent.name, config.methods[0])
                self._guesses[entry.name] = kind, cost.guess(config, config.methods[0])
            except FedapaError:
                self._guesses[entry.name] = None
        return self._guesses[entry.name]


def _cost(entry: Entry) -> dict[str, Any]:
    """As the store of a sweep tells it."""
    is_whole = isinstance(entry.found, Run) and entry.found.is_whole
    label = entry.found.result.label if isinstance(entry.found, Run) else ""
    seconds = entry.found.result.seconds if is_whole and isinstance(entry.found, Run) else None
    return {"scenario": entry.folder.parent.name, "method": label, "seconds": seconds}


def _entry(path: Path, name: str, known: Entry | None, failure: str) -> Entry:
    signature = tuple(_mark(path / part) for part in WATCHED)
    if known is None or known.signature != signature or not known.is_settled:
        newest = max((mark[1] for mark in signature if mark is not None), default=0)
        is_settled = abs(time.time_ns() - newest) > TICK * 1e9
        found = read_run(path, name, with_matrices=False)
        known = Entry(name, path, signature, found, *_course(path), is_settled)
    status = known.found.result.status if isinstance(known.found, Run) else known.found.status
    at_work = is_at_work(path) if status == "running" else None
    return known._replace(at_work=at_work, failure=failure)


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _course(path: Path) -> tuple[float | None, int, int | None, bool]:
    """Seconds per round, rounds done and planned, is there an A; whatever cannot be read is not known."""
    try:
        if run_db.is_begun(path / "run.db"):
            with run_db.reading(path / "run.db") as db:
                seconds = run_db.round_seconds(db)
                rounds = run_db.meta(db).get("rounds", "")
                planned = int(rounds) if rounds.isdigit() else None
                return _median(seconds[-RECENT:]), len(seconds), planned, bool(run_db.weight_rounds(db))
        return None, 0, read_config(path).run.rounds, False
    except FedapaError:
        return None, 0, None, False


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
