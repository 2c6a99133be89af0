"""Worker processes, each with one core, that play one run after another. A run that fails stops no other.

Runs that train alike, METHOD and METHOD+ema, are one item of work: a process plays them side by side, in threads that
compute every training once (training/engines/shared_training.py).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedapa.errors import FedapaError, RunError

if TYPE_CHECKING:
    from fedapa.rounds.transport import Share

TRIES = 5
Runs = tuple[Path, ...]  # run folders that one process plays side by side
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
    at: Runs = ()  # of its runs, those that have not ended


def play(parts: Sequence[Runs], workers: int, report: Callable[[Event], None]) -> None:
    """Play all runs in the given order, ``workers`` parts at a time; returns when all have ended."""
    todo = list(reversed(parts))
    with _workers(min(workers, len(parts))) as pool:
        for worker in pool:
            _next(worker, todo)
        while busy := [worker for worker in pool if worker.at]:
            ready = wait([worker.talk for worker in busy])
            for worker in busy:
                if worker.talk in ready:
                    _receive(worker, todo, report)


def _receive(worker: Worker, todo: list[Runs], report: Callable[[Event], None]) -> None:
    try:
        event = Event(*worker.talk.recv())
    except (EOFError, ConnectionResetError):
        worker.process.join()
        for path in worker.at:
            report(Event(path, "failed", text=_death(worker.process.exitcode)))
        _replace(worker)
        _next(worker, todo)
        return
    report(event)
    if event.what in ENDS:
        worker.at = tuple(path for path in worker.at if path != event.path)
        if not worker.at:
            _next(worker, todo)


def _next(worker: Worker, todo: list[Runs]) -> None:
    worker.at = todo.pop() if todo else ()
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
    speaking = threading.Lock()

    def say(*event: Any) -> None:
        with speaking:
            talk.send(event)

    while runs := talk.recv():
        try:
            play_side_by_side(runs, say)
        except BrokenPipeError:
            return


def _end_with_parent(alive: Connection) -> None:
    """Exit if the parent was killed. Runs resume from their last checkpoint, so nothing is lost."""
    try:
        alive.recv()
    except (EOFError, OSError):
        os._exit(1)


def play_side_by_side(runs: Runs, say: Callable[..., None]) -> None:
    """Play runs that train alike, a thread each; a single one in this thread."""
    if len(runs) == 1:
        play_one(runs[0], say)
        return
    import torch

    from fedapa.config.experiment import assemble, read_config
    from fedapa.core.threads import one_thread
    from fedapa.training.engines.shared_training import SharedTraining

    with suppress(Exception):  # data are read once, not once per thread; what is wrong is said by the run
        assemble(read_config(runs[0]))
    shared = SharedTraining(len(runs))

    def play(run: int) -> None:
        try:
            play_one(runs[run], say, partial(shared.engine, run))
        finally:
            shared.leave(run)

    # One thread inside torch, in every thread here, until all have ended: it is one setting for the whole process.
    with one_thread(), ThreadPoolExecutor(len(runs), initializer=torch.set_num_threads, initargs=(1,)) as threads:
        for done in [threads.submit(play, run) for run in range(len(runs))]:
            done.result()


def play_one(path: Path, say: Callable[..., None], share: Share | None = None) -> None:
    """Play one run and say what happens; what goes wrong ends this run alone."""
    from fedapa.config.experiment import execute
    from fedapa.store.run_folder import InUse

    say(path, "started")
    try:
        execute(path, lambda log: say(path, "round", log.round + 1), workers=1, share=share)
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
