"""Disk and memory of long runs with many clients, each in a process: python -m fedapa.bench.flat CLIENTS ROUNDS"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedapa.bench.fixtures import How
from fedapa.bench.side_by_side import Memory, Row, known, timed
from fedapa.data.federated import Federated, from_arrays
from fedapa.methods.fedapa import FedAPA
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import make_task, simulate
from fedapa.training.settings import Training

LOOK = 0.05  # seconds between two looks at the folder


class Budget(NamedTuple):
    clients: int
    rounds: int
    disk: float  # MB at most
    memory: float | None  # MB at most


BUDGETS = (Budget(1_000, 500, 2_000, 1_500), Budget(10_000, 50, 6_000, None))
QUICK = (Budget(20, 5, 2_000, 1_500),)


def flat(how: How) -> list[Row]:
    """The most that the folder of a run took at any time, checkpoints included, and the process."""
    return [row for budget in (QUICK if how.quick else BUDGETS) for row in _measured(budget)]


def _measured(budget: Budget) -> list[Row]:
    words = [sys.executable, "-m", "fedapa.bench.flat", str(budget.clients), str(budget.rounds)]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    what = f"FedAPA, {budget.clients:,} clients, {budget.rounds} rounds, a tenth of them in each"
    rows = [Row("flat", f"{what}: disk", known(found["disk MB"]), "MB", budget.disk, True, found)]
    if found["memory MB"] is not None:
        rows.append(Row("flat", f"{what}: memory", known(found["memory MB"]), "MB", budget.memory, True, found))
    return rows


def tables(clients: int) -> Federated:
    """Few rows of two classes for every client: what is measured are states and logs."""
    random = np.random.default_rng(0)
    y = np.arange(12) % 2
    x = (random.normal(size=(clients, 12, 8)) + y[:, None]).astype(np.float32)
    return from_arrays([(own[:8], y[:8], own[8:], y[8:]) for own in x], classes=2)


def play(clients: int, rounds: int) -> dict[str, object]:
    data = tables(clients)
    task, memory = make_task(data, "mlp", Training(epochs=1, batch=8, lr=0.1), rounds=rounds), Memory()
    plan = Plan(rounds, (0.1, 0.1), evaluate_every=10)
    with tempfile.TemporaryDirectory() as name, Watch(Path(name)) as watch:
        spent = timed(lambda: simulate(FedAPA(), task, data, plan, Path(name)))
        left = size_of(Path(name))
    return {
        "clients": clients,
        "rounds": rounds,
        "parameters": task.P + task.Q,
        "disk MB": watch.most / 1e6,
        "disk MB at the end": left / 1e6,
        "memory MB": memory.peak(),
        "seconds of the processor": spent.cpu,
    }


def size_of(folder: Path) -> int:
    """Bytes on the disk; files may come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


class Watch:
    """The most that a folder takes while it is watched."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most, self._over = folder, 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            self.most = max(self.most, size_of(self.folder))


if __name__ == "__main__":
    print(json.dumps(play(*(int(word) for word in sys.argv[1:]))))
