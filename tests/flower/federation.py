"""A real federation on this machine: a SuperLink and four authenticated SuperNodes over TLS, by the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from fleet import NAMES, client_digests, in_process, server_digest

from fedapa.core.tree import digest
from fedapa.federation import processes
from fedapa.federation.enrolment import read_agreement
from fedapa.federation.registry import Coordinator
from fedapa.federation.remote_transport import _from_record
from fedapa.federation.site_store import Store
from fedapa.store import checkpoint, run_db
from fedapa.store.run_folder import rounds_done
from fedapa.transports.flower import server_supervisor, site_supervisor
from fedapa.transports.flower.control import Control

# Tests of real processes: `make test-federation` runs them, and nothing of what `make test` runs anyway.
REAL = [
    pytest.mark.federation,
    pytest.mark.skipif(os.environ.get("FEDAPA_FEDERATION") != "1", reason="takes minutes: make test-federation"),
]


def real_processes(test: Callable[..., None]) -> Callable[..., None]:
    """The same marks for one test."""
    for mark in REAL:
        test = mark(test)
    return test


# Nodes ask and beat often, so that tests need not wait; a real site asks every 3 s and is offline after a minute.
FAST = {"FEDAPA_NODE_POLL": "1.0", "FEDAPA_NODE_HEARTBEAT": "10"}
OFFLINE = 20.0  # seconds after which a silent node counts as offline, with FAST
PATIENCE = 900.0  # seconds for what takes seconds on a quiet machine: no test fails because others are at work
CONFIG = """methods = ["fedapa"]
[data]
source = "digits"
clients = 4
alpha = 0.5
[model]
name = "mlp"
[training]
lr = 0.05
batch = 32
epochs = 1
[run]
rounds = 5
participation = 1.0
engine = "torch"
[federation]
min_sites = 4
rejoin = 300.0
"""


def fedapa(*words: object, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedapa.cli", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=1800)
    if check and done.returncode:
        raise AssertionError(f"{words}: {done.stdout}\n{done.stderr}")
    return done


class Federation:
    def __init__(
        self,
        folder: Path,
        proxy_port: int = 0,
        names: list[str] = NAMES,
        host: str = "127.0.0.1",
        pace: Mapping[str, str] = FAST,
    ) -> None:
        self.folder, self.started, self.pace = folder, list[subprocess.Popen[bytes]](), pace
        self.within: dict[str, list[str]] = {}  # words before the command of a site that lives elsewhere
        (folder / "fed.toml").write_text(CONFIG)
        self.port = processes.free_port()
        fedapa("coordinator", "init", "--port", self.port, "--proxy-port", proxy_port, "--host", host, cwd=folder)
        for name in names:
            self.coordinator.enrol(name, folder / "kits" / name)

    @property
    def coordinator(self) -> Coordinator:
        return Coordinator(self.folder / "coordinator")

    def start(self, sites: list[str] = NAMES) -> None:
        self.spawn("coordinator", "start")
        # A node that comes too early ends and is started again, which takes longer than to wait.
        wait(lambda: all(site.node for site in self.coordinator.members()))
        self.join(sites)
        self.wait_online(len(sites))

    def join(self, sites: list[str]) -> None:
        for name in sites:
            self.spawn("site", "join", f"kits/{name}", before=self.within.get(name, ()))

    def spawn(self, *words: str, before: Sequence[str] = (), **environment: str) -> subprocess.Popen[bytes]:
        command = [*before, sys.executable, "-m", "fedapa.cli", *words]
        with open(self.folder / f"{words[1]}.log", "ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **self.pace, **environment}
            )
        self.started.append(process)
        return process

    def status(self, runs: str | None = None) -> dict:
        words = ["coordinator", "status", *([runs] if runs else []), "--format", "json"]
        return json.loads(fedapa(*words, cwd=self.folder).stdout)

    def wait_online(self, count: int, seconds: float = PATIENCE) -> None:
        """Asked in this process: a command takes seconds to start."""
        control = Control(self.coordinator)
        try:
            wait(control.is_up, seconds)
            wait(lambda: sum(node.status == "online" for node in control.nodes()) == count, seconds)
        finally:
            control.close()

    def run(self, out: str, *words: str) -> subprocess.Popen[bytes]:
        return self.spawn("coordinator", "run", "fed.toml", "--out", out, *words)

    def child(self, pid_file: Path, word: str) -> int:
        """The process below a supervisor whose command has this word."""
        boss = processes.running(pid_file)
        assert boss is not None
        listed = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(boss)], capture_output=True, text=True
        ).stdout
        (line,) = [line for line in listed.splitlines() if word in line]
        return int(line.split()[0])

    def node(self, name: str) -> int:
        return self.child(self.folder / "kits" / name / site_supervisor.PID, "fedapa.transports.flower.supernode")

    def worker(self, name: str) -> int:
        return self.child(self.folder / "kits" / name / site_supervisor.PID, "fedapa.transports.flower.worker")

    def superlink(self) -> int:
        return self.child(self.folder / "coordinator" / server_supervisor.PID, "fedapa.transports.flower.superlink")

    def close(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait(ready: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0.2) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(pause)


def wait_for_round(run: Path, rounds: int, seconds: float = PATIENCE) -> None:
    """Until so many rounds are written down: the next one is then under way."""
    wait(lambda: (run / "run.db").is_file() and rounds_done(run) >= rounds, seconds)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def assert_same(federation: Federation, run: Path, absent: frozenset[tuple[int, int]] = frozenset()) -> None:
    """Server and every site's state, on the server's word and on the sites' disks, equal the run in one process."""
    agreement = read_agreement(run)
    found = checkpoint.newest(run / "checkpoints")
    here = in_process(agreement.terms, absent, agreement.since, agreement.until)
    standings = [_from_record(record) for record in found.records]
    assert digest(found.state.server) == server_digest(here)
    assert [standing.digest for standing in standings] == client_digests(here)
    for name, standing in zip(agreement.terms.names, standings, strict=True):
        store = Store(federation.folder / "kits" / name / "states")
        record = store.load(agreement.terms.run, standing.accepted, standing.digest)
        assert digest(checkpoint.from_record(record)) == standing.digest


def events(run: Path) -> list[tuple[int, int | None, str, str]]:
    with run_db.reading(run / "run.db") as db:
        return run_db.events(db)


def trained(run: Path) -> list[int]:
    with run_db.reading(run / "run.db") as db:
        return [row[0] for row in db.execute("SELECT trained FROM round ORDER BY round")]


def absences(run: Path) -> frozenset[tuple[int, int]]:
    return frozenset((t, i) for t, i, kind, _ in events(run) if kind == "absent" and i is not None)
