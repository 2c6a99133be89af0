"""Seconds per round of PFLlib itself beside fedapa, on the same partition, in turn.

    git clone https://github.com/TsingZ0/PFLlib
    python benchmarks/beside_pfllib.py PFLlib --data-dir DATA --repeats 3

PFLlib's main.py runs unchanged in a process of its own, with LeNet-5 in the place of its CNN. It reads the partition
from files of its own format in a temporary folder; nothing is written into the clone. Both sides play every client in
every round, train with SGD without momentum, evaluate after every round, and use as many threads as they take by
default (``--threads`` says otherwise). Theirs is timed from the first choice of clients, ours from the call of ``fit``.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import nn

import fedapa as fa
from fedapa.data.federated import Federated
from fedapa.methods.catalogue import make

ABSENT = ("torchvision", "torchvision.models", "torchvision.transforms", "cvxpy", "h5py", "calmsize")
LR, BATCH, EPOCHS = 0.01, 64, 2
NAME = "Partition"


class Case(NamedTuple):
    """An algorithm of PFLlib with its arguments, and a method of ours with its settings."""

    algorithm: str
    arguments: str
    method: str
    settings: dict[str, Any]


CASES = (
    Case("FedAvg", "", "fedavg", {}),
    Case("FedALA", "", "fedala", {}),
    Case("Ditto", "-mu 1.0 -pls 2", "ditto", {}),
    Case("FedProto", "-lam 1.0", "fedproto", {"lam": 1.0, "inference": "global_prototype"}),
    Case("FedDBE", "-mo 1.0 -klw 50", "dbe", {}),
    Case("FedPHP", "-lam 0.05 -mu 0.9", "fedphp", {"lam": 0.05}),
    Case("APPLE", "", "apple", {}),
)


class Spent(NamedTuple):
    """Seconds per round: of the processor, in all threads, and on the wall."""

    cpu: float
    wall: float


# ----------------------------------------------------------------------------------------------------------- data


def partition(data_dir: str | None, clients: int, share: float) -> Federated:
    """Allocation 0 of CIFAR-10, Dirichlet 0.1, and of every client a part."""
    whole = fa.load("cifar10", "dirichlet", clients=clients, alpha=0.1, seed=0, data_dir=data_dir)
    parts = [tuple(part[: max(1, int(share * len(part)))] for part in client) for client in arrays(whole)]
    return whole if share == 1 else fa.from_arrays(parts, whole.classes, mean=whole.mean, std=whole.std)


def arrays(data: Federated) -> list[tuple[np.ndarray, ...]]:
    """x_train, y_train, x_test, y_test of every client."""
    return [(c.train.x.numpy(), c.train.y.numpy(), c.test.x.numpy(), c.test.y.numpy()) for c in data.clients]


def write_theirs(data: Federated, folder: Path) -> None:
    """Files as PFLlib reads them: normalised samples, one archive per client and part."""
    mean, std = (np.asarray(v, dtype=np.float32).reshape(1, -1, 1, 1) for v in (data.mean, data.std))
    for k, (x, y, x_test, y_test) in enumerate(arrays(data)):
        for part, samples, labels in (("train", x, y), ("test", x_test, y_test)):
            path = folder / "dataset" / NAME / part / f"{k}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            floats = samples.astype(np.float32) / 255 if samples.dtype == np.uint8 else samples
            np.savez(path, data=np.array({"x": (floats - mean) / std, "y": labels}, dtype=object))


# --------------------------------------------------------------------------------------------------------- theirs


class LeNet5(nn.Module):
    """The model of both sides, with the head under the name that PFLlib looks for."""

    def __init__(self, in_features: int = 3, num_classes: int = 10, dim: int = 1600) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(in_features, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.conv1, self.conv2):
            x = torch.max_pool2d(torch.relu(conv(x)), 2)
        return self.fc(torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1))))))


class DoneError(Exception):
    """PFLlib has played its rounds and is about to save."""


def play_theirs(clone: Path, case: Case, clients: int, classes: int, rounds: int) -> Spent:
    """Inside the folder of the data, in a process of its own: it is not left as it was."""
    sys.modules.update({name: MagicMock() for name in ABSENT})
    sys.path.insert(0, str(clone / "system"))
    sys.dont_write_bytecode = True
    import flcore.servers.serverbase as base
    import flcore.trainmodel.models as models

    models.FedAvgCNN = LeNet5
    began = SimpleNamespace(cpu=None, wall=None)
    select = base.Server.select_clients

    def select_clients(server: Any) -> Any:
        if began.wall is None:
            began.cpu, began.wall = time.process_time(), time.perf_counter()
        return select(server)

    def save_results(server: Any) -> None:
        raise DoneError

    words = f"main.py -data {NAME} -m CNN -dev cpu -ncl {classes} -lr {LR} -lbs {BATCH} -ls {EPOCHS} -gr {rounds - 1}"
    words += f" -fd 84 -jr 1.0 -nc {clients} -eg 1 -algo {case.algorithm} {case.arguments}"
    with patch.object(base.Server, "select_clients", select_clients), patch.object(sys, "argv", words.split()):
        base.Server.save_results = save_results
        with suppress(DoneError):
            runpy.run_path(str(clone / "system" / "main.py"), run_name="__main__")
    if began.wall is None:
        raise SystemExit(f"PFLlib's {case.algorithm} chose no clients")
    return Spent((time.process_time() - began.cpu) / rounds, (time.perf_counter() - began.wall) / rounds)


# ----------------------------------------------------------------------------------------------------------- ours


def play_ours(data: Federated, case: Case, rounds: int) -> Spent:
    method = make(case.method, **case.settings)
    cpu, wall = time.process_time(), time.perf_counter()
    fa.fit(method, data, "lenet5", rounds=rounds, participation=1.0, lr=LR, momentum=0.0, batch=BATCH, epochs=EPOCHS)
    return Spent((time.process_time() - cpu) / rounds, (time.perf_counter() - wall) / rounds)


# --------------------------------------------------------------------------------------------------- side by side


def measure(asked: argparse.Namespace, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Every case once per repeat, theirs and ours in turn, each in a process of its own."""
    data = partition(asked.data_dir, asked.clients, asked.share)
    found: dict[str, list[tuple[Spent, Spent]]] = {}
    with tempfile.TemporaryDirectory() as top:
        write_theirs(data, Path(top))
        (Path(top) / "system").mkdir()
        for repeat in range(asked.repeats):
            for case in cases:
                pair = (in_process("theirs", case, asked, top), in_process("ours", case, asked, top))
                found.setdefault(case.algorithm, []).append(pair)
                print(f"{repeat + 1} {case.algorithm}: theirs {pair[0]}, ours {pair[1]}", file=sys.stderr, flush=True)
    return [row(name, pairs) for name, pairs in found.items()]


def row(name: str, pairs: Sequence[tuple[Spent, Spent]]) -> dict[str, Any]:
    ratios = {clock: [getattr(a, clock) / getattr(b, clock) for a, b in pairs] for clock in ("cpu", "wall")}
    told: dict[str, Any] = {"algorithm": name}
    for clock, values in ratios.items():
        told[clock] = {"ratio": median(values), "low": min(values), "high": max(values)}
        told[clock] |= {
            who: median(getattr(pair[k], clock) for pair in pairs) for k, who in enumerate(("theirs", "ours"))
        }
    return told


def in_process(who: str, case: Case, asked: argparse.Namespace, top: str) -> Spent:
    out = Path(top) / "spent.json"
    out.unlink(missing_ok=True)
    words = [sys.executable, __file__, str(asked.clone), "--clients", str(asked.clients), "--rounds", str(asked.rounds)]
    words += ["--share", str(asked.share), "--threads", str(asked.threads), "--play", who, case.algorithm, top]
    words += ["--data-dir", asked.data_dir] if asked.data_dir else []
    done = subprocess.run(words, cwd=Path(top) / "system", capture_output=True, text=True, check=False)
    if not out.exists():
        told = (done.stderr.strip().splitlines() or ["no output"])[-1]
        sys.exit(f"error: {who}, {case.algorithm}: {told}")
    return Spent(**json.loads(out.read_text()))


def play(asked: argparse.Namespace) -> None:
    """One side of one case, in this process; its seconds go into a file."""
    who, algorithm, top = asked.play
    case = next(case for case in CASES if case.algorithm == algorithm)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    if who == "theirs":
        spent = play_theirs(asked.clone, case, asked.clients, 10, asked.rounds)
    else:
        spent = play_ours(partition(asked.data_dir, asked.clients, asked.share), case, asked.rounds)
    (Path(top) / "spent.json").write_text(json.dumps(spent._asdict()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a git clone of PFLlib")
    parser.add_argument("--data-dir", help="folder with the files of CIFAR-10")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.25, help="of every client's samples")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=0, help="inside a tensor operation, on both sides; 0: the default"
    )
    parser.add_argument("--only", default="", help=f"some of {', '.join(case.algorithm for case in CASES)}")
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    asked.clone = asked.clone.absolute()
    asked.data_dir = str(Path(asked.data_dir).absolute()) if asked.data_dir else None
    if not (asked.clone / "system" / "main.py").is_file():
        sys.exit(f"error: {asked.clone} is no clone of PFLlib\nhint: git clone https://github.com/TsingZ0/PFLlib")
    if asked.play:
        play(asked)
        return
    wanted = asked.only.split(",") if asked.only else [case.algorithm for case in CASES]
    if unknown := [name for name in wanted if name not in {case.algorithm for case in CASES}]:
        sys.exit(f"error: there is no case {unknown[0]}\nhint: {', '.join(case.algorithm for case in CASES)}")
    rows = measure(asked, [case for case in CASES if case.algorithm in wanted])
    print("| seconds per round | PFLlib, wall | fedapa, wall | ratio | lowest, highest | ratio of CPU seconds |")
    print("|---|---|---|---|---|---|")
    for one in rows:
        wall, cpu = one["wall"], one["cpu"]
        spread = f"{wall['low']:.1f}, {wall['high']:.1f}"
        told = f"{wall['theirs']:.2f} | {wall['ours']:.2f} | {wall['ratio']:.1f} x | {spread} | {cpu['ratio']:.1f} x"
        print(f"| {one['algorithm']} | {told} |")
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
