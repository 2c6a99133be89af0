"""Run folders made by hand, small enough to know every number of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from fedapa.rounds.round_log import RoundLog
from fedapa.store.run_db import Ledger

CONFIG = """\
methods = ["{label}"]
seeds = [{seed}]
[data]
source = "cifar10"
partition = "dirichlet"
alpha = {alpha}
clients = {clients}
[model]
name = "lenet5"
[training]
lr = 0.01
[run]
rounds = {rounds}
"""
Make = Callable[..., Path]


def make_run(
    folder: Path, label: str, right: Sequence[Sequence[int]], seed: int = 0, alpha: float = 0.1,
    evaluated: str = "after", names: Sequence[str] = (), weights: bool = False, status: str = "finished",
    method: str = "", rounds: int = 0,
) -> Path:  # fmt: skip
    """A run whose clients have 10 test samples each, and ``right[t][i]`` of them right in round t; before, 1 less."""
    folder.mkdir(parents=True)
    clients = len(right[0])
    words = {"label": label, "seed": seed, "alpha": alpha, "clients": clients, "rounds": rounds or len(right)}
    (folder / "config.toml").write_text(CONFIG.format(**words))
    ledger = Ledger(folder / "run.db")
    about = {
        "label": label,
        "seed": str(seed),
        "rounds": str(words["rounds"]),
        "evaluated": evaluated,
        "status": status,
    }
    about |= {"partition": f"p{seed}{alpha}", "source": "cifar10", "method": method}
    labels = [",".join(str(50 if c in (i % 10, (i + 1) % 10) else 0) for c in range(10)) for i in range(clients)]
    names = names or [str(i) for i in range(clients)]
    ledger.describe(about, [(i, names[i], 100, 10, 0, labels[i]) for i in range(clients)])
    for t, row in enumerate(right):
        after = np.array([[[n, 10, 0, 0]] for n in row], dtype=float)
        log = RoundLog(t, list(range(clients)), np.maximum(after - [1, 0, 0, 0], 0), after)
        log.down_bytes = log.up_bytes = dict.fromkeys(range(clients), 512 if label != "local" else 0)
        log.client_seconds = dict.fromkeys(range(clients), 2.0)
        log.seconds = {"clients": 4.0, "server": 1.0, "training": 1.5 * clients}
        if weights:
            log.watched = {"A": torch.full((clients, clients), 0.1) + torch.eye(clients) * (0.9 - 0.1 * t)}
        ledger.record(log, clients)
    ledger.close()
    return folder


def change(run: Path, *statements: str) -> None:
    with closing(sqlite3.connect(run / "run.db")) as db, db:
        for statement in statements:
            db.execute(statement)
