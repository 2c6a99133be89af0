"""A server on a folder in a thread of its own, and a run that is being written."""

from __future__ import annotations

import fcntl
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from fedapa.dashboard.server import Server, make_app
from fedapa.rounds.round_log import RoundLog
from fedapa.store.run_db import Ledger


@contextmanager
def serving(folder: Path, port: int = 0, every: float = 0.1) -> Iterator[str]:
    """The address of the page; 10 looks a second, so that tests need not wait."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    server = Server(make_app(folder, every=every))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


class Writer:
    """Writes rounds into a run folder as a run does, with its lock held."""

    def __init__(self, folder: Path, clients: int, rounds: int, label: str = "fedapa") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = open(folder / ".lock", "w")  # noqa: SIM115
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.ledger, self.clients, self.done = Ledger(folder / "run.db"), clients, 0
        rng = np.random.default_rng(0)
        labels = [",".join(map(str, rng.integers(0, 50, 10))) for _ in range(clients)]
        about = {"label": label, "seed": "0", "rounds": str(rounds), "evaluated": "after", "status": "running"}
        about |= {"partition": "p", "source": "cifar10", "method": ""}
        self.ledger.describe(about, [(i, f"site {i}", 100, 10, 0, labels[i]) for i in range(clients)])
        self.weights = torch.softmax(torch.eye(clients) * 3 + torch.rand(clients, clients), 1)

    def play(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            after = np.array([[[(self.done + i) % 11, 10, 0, 0]] for i in range(self.clients)], dtype=float)
            log = RoundLog(self.done, list(range(self.clients)), np.maximum(after - [1, 0, 0, 0], 0), after)
            log.down_bytes = log.up_bytes = dict.fromkeys(range(self.clients), 1024)
            log.client_seconds = dict.fromkeys(range(self.clients), 0.01)
            log.seconds = {"clients": 0.9, "server": 0.1, "training": 0.8}
            log.watched = {"A": self.weights}
            self.ledger.record(log, self.clients)
            self.done += 1

    def finish(self) -> None:
        self.ledger.describe({"status": "finished"}, [])
        self.close()

    def close(self) -> None:
        self.ledger.close()
        self.lock.close()
