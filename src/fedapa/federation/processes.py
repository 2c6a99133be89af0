"""Long-lived processes: start them, keep them running, find them again and stop them."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Protocol

from fedapa.errors import InputError, RunError
from fedapa.store.atomic_io import make_folder
from fedapa.store.file_lock import flock

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONSAFEPATH": "1",  # inherited by grandchildren: no module is imported from the working folder
}
MOST_FILES = 65_536  # open files and connections of a process, where the system allows so many
LARGEST_LOG = 10 * 2**20  # bytes; the log before it is kept as well
SHORTEST, LONGEST = 1.0, 5.0  # seconds before a process is started again


@dataclass
class Child:
    """One process that must run. ``patient``: early exits are expected, so the pause before a restart does not grow."""

    name: str
    command: Sequence[str]
    log: Path
    home: Path
    left: Path | None = None  # a socket that a killed one leaves behind, and that the next could not bind
    process: subprocess.Popen[bytes] | None = None
    ended: float = 0.0
    pause: float = SHORTEST
    starts: int = 0

    def start(self) -> None:
        if self.left is not None:
            self.left.unlink(missing_ok=True)
        self.process = spawn(self.command, self.log, self.home)
        self.starts += 1

    def look(self) -> None:
        """Restart it if it ended; after a longer pause if that happens often."""
        if self.process is None:
            if time.monotonic() - self.ended >= self.pause:
                self.start()
        elif self.process.poll() is not None:
            _end_group(self.process)  # a worker of nginx outlives its master, and would keep the port
            self.process, self.ended = None, time.monotonic()
            self.pause = min(LONGEST, 1.5 * self.pause)

    def stop(self) -> None:
        if self.process is not None:
            end_process(self.process)


def spawn(command: Sequence[str], log: Path, home: Path, nice: int = 0) -> subprocess.Popen[bytes]:
    """Start a process that writes to a log."""
    make_folder(log.parent)
    environment = {**os.environ, **QUIET, "FLWR_HOME": str(home / "flwr")}
    with open(log, "ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=partial(_prepare, nice, _more_files()),
            umask=0o077,
        )


def _prepare(nice: int, more_files: Callable[[], None]) -> None:
    """Children end with a killed supervisor (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    os.nice(nice)
    more_files()


def _more_files() -> Callable[[], None]:
    """Raises this process's limit on open files: every local user can open connections, 1,024 are soon used up."""
    import resource  # not on Windows, where nothing is spawned

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    wanted = soft if soft == resource.RLIM_INFINITY else max(soft, most)
    return partial(resource.setrlimit, resource.RLIMIT_NOFILE, (wanted, hard))


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Stop it and everything that it started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(8)
        _end_group(process)
        process.wait()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Watched(Protocol):
    """What a supervisor keeps an eye on."""

    log: Path

    def start(self) -> None: ...

    def look(self) -> None: ...

    def stop(self) -> None: ...


@dataclass
class Supervisor:
    """Keeps its children running until it is stopped."""

    children: Sequence[Watched]
    pid: Path
    prepare: Callable[[], None] = lambda: None  # what must not happen while another one runs
    stopping: bool = field(default=False)

    def run(self) -> None:
        lock = claim(self.pid)
        self.prepare()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            for child in self.children:
                child.start()
            while not self.stopping:
                for child in self.children:
                    child.look()
                for log in {path for child in self.children for path in child.log.parent.glob("*.log")}:
                    rotate(log)
                time.sleep(0.3)
        finally:
            for child in reversed(self.children):
                child.stop()
            self.pid.unlink(missing_ok=True)
            lock.close()

    def _stop(self, *_: object) -> None:
        self.stopping = True


def claim(path: Path) -> IO[str]:
    """Lock a pid file until the returned file is closed. Of two processes that start at once, one is refused."""
    lock = open(path.with_suffix(".lock"), "w", encoding="utf-8")  # noqa: SIM115
    try:
        flock(lock, wait=False)
    except OSError:
        lock.close()
        raise InputError(f"already running as process {running(path) or '?'}", "stop that one first") from None
    path.write_text(f"{os.getpid()} {_started(os.getpid())}")
    return lock


def rotate(log: Path) -> None:
    """Keep the end of a log that has grown large. Its writers append, so it can be truncated while they run."""
    with suppress(OSError):
        if log.stat().st_size > LARGEST_LOG:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


def running(path: Path) -> int | None:
    """The running process of a pid file, else None. A pid that was reused by another process does not count."""
    with suppress(OSError, ValueError):
        number, started = path.read_text().split()
        if _started(int(number)) == started:
            return int(number)
    return None


def _started(pid: int) -> str:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def stop(path: Path, seconds: float = 30.0) -> bool:
    """Stop the process of a pid file; False if it was not running."""
    pid = running(path)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + seconds
    while running(path) is not None:
        if time.monotonic() > end:
            raise RunError(f"process {pid} does not stop", f"kill -9 {pid}")
        time.sleep(0.1)
    return True


def python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", module, *words]


def flower(function: str, *words: str) -> list[str]:
    """One of Flower's own programs, from this installation."""
    module, _, name = function.partition(":")
    return [sys.executable, "-P", "-c", f"from {module} import {name}; {name}()", *words]


def options(**values: object) -> list[str]:
    """Command-line arguments: ``options(port=1, verbose=True)`` is ``--port 1 --verbose``."""
    words = []
    for name, value in values.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
