"""Worker processes, each with one core, that play one run after another. A run that fails stops no other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from fedapa.errors import FedapaError, RunError

TRIES = 5
ENDS = ("finished", "failed", "elsewhere")


class Event(NamedTuple):
    """What happened to the run that a process plays."""

    path: Path
    what: str  # started, round, finished, failed, elsewhere (another process plays it)
    round: int = 0
    text: str = ""


@dataclass
class Worker:
    process: BaseProcess
    talk: Connection
    alive: Connection  # never written to; closed when we are gone, which ends the process
    at: Path | None = None


def play(runs: Sequence[Path], workers: int, report: Callable[[Event], None]) -> None:
    """Play all runs in the given order, ``workers`` at a time; returns when all have ended."""
    todo = list(reversed(runs))
    with _workers(min(workers, len(runs))) as pool:
        for worker in pool:
            _next(worker, todo)
        while busy := [worker for worker in pool if worker.at is not None]:
            ready = wait([worker.talk for worker in busy])
            for worker in busy:
                if worker.talk in ready:
                    _receive(worker, todo, report)


def _receive(worker: Worker, todo: list[Path], report: Callable[[Event], None]) -> None:
    try:
        event = Event(*worker.talk.recv())
    except (EOFError, ConnectionResetError):
        assert worker.at is not None
        worker.process.join()
        report(Event(worker.at, "failed", text=_death(worker.process.exitcode)))
        _replace(worker)
        _next(worker, todo)
        return
    report(event)
    if event.what in ENDS:
        _next(worker, todo)


def _next(worker: Worker, todo: list[Path]) -> None:
    worker.at = todo.pop() if todo else None
    for _ in range(TRIES):
        try:
            worker.talk.send(worker.at)
            return
        except OSError:  # it died between two runs, so no run was lost
            _replace(worker)
    raise RunError(f"{TRIES} processes ended before they began a run", "is there memory for them? use fewer --jobs")


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-code).name}{hint}"
    return f"its process ended with code {code}"


# ----------------------------------------------------------------------------------------------- the processes' side


def _serve(talk: Connection, alive: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent handles it
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    while (path := talk.recv()) is not None:
        try:
            play_one(path, lambda *event: talk.send(event))
        except BrokenPipeError:
            return


def _end_with_parent(alive: Connection) -> None:
    """Exit if the parent was killed. Runs resume from their last checkpoint, so nothing is lost."""
    try:
        alive.recv()
    except (EOFError, OSError):
        os._exit(1)


def play_one(path: Path, say: Callable[..., None]) -> None:
    """Play one run and say what happens; what goes wrong ends this run alone."""
    from fedapa.config.experiment import execute
    from fedapa.store.run_folder import InUse

    say(path, "started")
    try:
        execute(path, lambda log: say(path, "round", log.round + 1), workers=1)
        say(path, "finished")
    except InUse:
        say(path, "elsewhere")
    except FedapaError as error:
        say(path, "failed", 0, error.message)
    except Exception as error:
        _leave_trace(path, error)
        say(path, "failed", 0, f"{type(error).__name__}: {error} (see {path / 'log.txt'})")


def _leave_trace(path: Path, error: Exception) -> None:
    import traceback
    from contextlib import suppress

    with suppress(OSError), open(path / "log.txt", "a", encoding="utf-8") as file:
        file.writelines(traceback.format_exception(error))


# ---------------------------------------------------------------------------------------------- starting and stopping


@contextmanager
def _workers(count: int) -> Iterator[list[Worker]]:
    pool = [_start() for _ in range(count)]
    try:
        yield pool
    finally:
        for worker in pool:
            _stop(worker)


def _start() -> Worker:
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # no module is taken from the working folder
    context: Any = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    watched, alive = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, watched), daemon=True)
    process.start()
    theirs.close()
    watched.close()
    return Worker(process, ours, alive)


def _replace(worker: Worker) -> None:
    _stop(worker)
    new = _start()
    worker.process, worker.talk, worker.alive = new.process, new.talk, new.alive


def _stop(worker: Worker) -> None:
    worker.talk.close()
    worker.alive.close()
    worker.process.join()
