"""Seconds per round of PFLlib and of the released FedAPA code beside fedapa, on the same partition, in turn.

    git clone https://github.com/TsingZ0/PFLlib
    git clone https://github.com/Yuxia-Sun/FedAPA
    python benchmarks/beside_others.py --pfllib PFLlib --authors FedAPA --data-dir DATA --repeats 3

One of the two is enough. ``--out benchmarks/DATE-others.json`` keeps the table for docs/performance.md.

Their code runs in processes of its own, and nothing is written into a clone. PFLlib's main.py runs with LeNet-5 in the
place of its CNN and reads the partition from files of its own format. The released FedAPA code runs by its main.run():
making and reading data, its progress bars and saving are replaced, and samples come as tensors that are normalised
already. Both sides play every client in every round, evaluate after every round (ours also before it), and use as many
threads as they take by default. PFLlib trains by SGD without momentum, the released code with momentum 0.9, and ours
like the one beside it. The released code plays one client after another; so does fedapa-reference, which is the same
rule, and so does fedapa with one worker. Theirs is timed from the first choice of clients, ours from the call of fit.
The machine should be idle: beside other work, threads inside an operation wait for each other.
"""

from __future__ import annotations

import argparse
import importlib
import json
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import nn

import fedapa as fa
from fedapa.bench.side_by_side import Row, Spread, Times, ratio, spread
from fedapa.bench.suites import machine
from fedapa.data.federated import Federated
from fedapa.errors import FedapaError
from fedapa.methods.catalogue import make

ABSENT = ("torchvision", "torchvision.models", "torchvision.transforms", "cvxpy", "h5py", "calmsize")
PARITY = Path(__file__).resolve().parents[1] / "tests" / "parity"
LR, BATCH, EPOCHS = 0.01, 64, 2
CLASSES = 10
NAME = "Partition"
WALL, CPU, RATIO_CPU = (
    "seconds per round on the wall",
    "processor's seconds per round",
    "ratio of the processor's seconds",
)
MET = {True: "met", False: "**not met**"}


class Clone(NamedTuple):
    """Code that is not ours, as somebody cloned it."""

    title: str
    address: str
    files: tuple[str, ...]  # by which it is known


CLONES = {  # by the name of their option
    "pfllib": Clone("PFLlib", "https://github.com/TsingZ0/PFLlib", ("system/main.py",)),
    "authors": Clone("the released FedAPA code", "https://github.com/Yuxia-Sun/FedAPA", ("main.py", "src/FedAPA")),
}


class Case(NamedTuple):
    """A method of theirs beside one of ours with the same recipe."""

    name: str
    clone: str
    target: float | None  # times that ours is to be faster
    method: str
    settings: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {"momentum": 0.0}
    workers: int = 0
    arguments: str = ""  # of PFLlib's main.py


def of_pfllib(algorithm: str, method: str, arguments: str = "", **settings: Any) -> Case:
    words = f"-algo {algorithm} {arguments}"
    return Case(f"PFLlib {algorithm} / {method}", "pfllib", 10.0, method, settings, arguments=words)


def of_authors(method: str, target: float | None, workers: int = 0, **training: Any) -> Case:
    name = f"released FedAPA / {method}{', one worker' if workers == 1 else ''}"
    return Case(name, "authors", target, method, training={"momentum": 0.9, **training}, workers=workers)


CASES = (
    of_pfllib("FedAvg", "fedavg"),
    of_pfllib("FedALA", "fedala"),
    of_pfllib("Ditto", "ditto", "-mu 1.0 -pls 2"),
    of_pfllib("FedProto", "fedproto", "-lam 1.0", lam=1.0, inference="global_prototype"),
    of_pfllib("FedDBE", "dbe", "-mo 1.0 -klw 50"),
    of_pfllib("FedPHP", "fedphp", "-lam 0.05 -mu 0.9", lam=0.05),
    of_pfllib("APPLE", "apple"),
    of_authors("fedapa-reference", 5.0, keep_momentum=True),
    of_authors("fedapa", 9.0),
    of_authors("fedapa", None, workers=1),
)


# ----------------------------------------------------------------------------------------------------------- data


def partition(data_dir: str | None, clients: int, share: float) -> Federated:
    """Allocation 0 of CIFAR-10, Dirichlet 0.1, and of every client a part."""
    whole = fa.load("cifar10", "dirichlet", clients=clients, alpha=0.1, seed=0, data_dir=data_dir)
    parts = [tuple(part[: max(1, int(share * len(part)))] for part in client) for client in arrays(whole)]
    return whole if share == 1 else fa.from_arrays(parts, whole.classes, mean=whole.mean, std=whole.std)


def arrays(data: Federated) -> list[tuple[np.ndarray, ...]]:
    """x_train, y_train, x_test, y_test of every client."""
    return [(c.train.x.numpy(), c.train.y.numpy(), c.test.x.numpy(), c.test.y.numpy()) for c in data.clients]


def normalised(data: Federated, samples: np.ndarray) -> np.ndarray:
    """As floats, which is what their code trains on."""
    mean, std = (np.asarray(v, dtype=np.float32).reshape(1, -1, 1, 1) for v in (data.mean, data.std))
    return ((samples.astype(np.float32) / 255 if samples.dtype == np.uint8 else samples) - mean) / std


def write_theirs(data: Federated, folder: Path) -> None:
    """Files as PFLlib reads them: normalised samples, one archive per client and part."""
    for k, (x, y, x_test, y_test) in enumerate(arrays(data)):
        for part, samples, labels in (("train", x, y), ("test", x_test, y_test)):
            path = folder / "dataset" / NAME / part / f"{k}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, data=np.array({"x": normalised(data, samples), "y": labels}, dtype=object))


def tensor_sets(data: Federated) -> tuple[list[Any], list[Any]]:
    """Train and test sets of every client, as the released code keeps them."""

    def sets(x: int) -> list[Any]:
        pairs = ((torch.from_numpy(normalised(data, c[x])), torch.from_numpy(c[x + 1])) for c in arrays(data))
        return [torch.utils.data.TensorDataset(*pair) for pair in pairs]

    return sets(0), sets(2)


# --------------------------------------------------------------------------------------------------------- theirs


class Clock:
    """Runs from the first time that their server chooses clients."""

    def __init__(self) -> None:
        self._began: Times | None = None

    def started_by(self, select: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def select_clients(server: Any) -> Any:
            self._began = self._began or _now()
            return select(server)

        return select_clients

    def per_round(self, rounds: int) -> Times:
        if self._began is None:
            raise SystemExit("it chose no clients")
        return _per_round(self._began, rounds)


def _now() -> Times:
    return Times(time.process_time(), time.perf_counter())


def _per_round(began: Times, rounds: int) -> Times:
    return Times(*((now - then) / rounds for now, then in zip(_now(), began, strict=True)))


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


def play_pfllib(clone: Path, case: Case, clients: int, rounds: int) -> Times:
    """Inside the folder of the data, in a process of its own: it is not left as it was."""
    sys.modules.update({name: MagicMock() for name in ABSENT})
    sys.path.insert(0, str(clone / "system"))
    sys.dont_write_bytecode = True
    import flcore.servers.serverbase as base
    import flcore.trainmodel.models as models

    def save_results(server: Any) -> None:
        raise DoneError

    models.FedAvgCNN, clock = LeNet5, Clock()
    base.Server.select_clients = clock.started_by(base.Server.select_clients)
    base.Server.save_results = save_results
    words = f"main.py -data {NAME} -m CNN -dev cpu -ncl {CLASSES} -lr {LR} -lbs {BATCH} -ls {EPOCHS} -gr {rounds - 1}"
    words += f" -fd 84 -jr 1.0 -nc {clients} -eg 1 {case.arguments}"
    with patch.object(sys, "argv", words.split()), suppress(DoneError):
        runpy.run_path(str(clone / "system" / "main.py"), run_name="__main__")
    return clock.per_round(rounds)


def play_authors(clone: Path, data: Federated, rounds: int) -> Times:
    """The released code, by its own config but for what both sides have in common here."""
    import yaml

    released, clock, sets = parity("released"), Clock(), tensor_sets(data)
    config = yaml.safe_load((clone / "configs" / "FedAPA.yaml").read_text(encoding="utf-8"))
    config["server"] |= {"global_rounds": rounds, "lowest_join_rate": 1.0}
    config["client"] |= {"num_clients": len(data.clients), "batch_size": BATCH}
    config["client"] |= {"learning_rate": LR, "local_epochs": EPOCHS}
    with parity("lockstep").checkout(clone, released.ABSENT, {"tqdm": SimpleNamespace(tqdm=released.Tqdm)}):
        main, base = importlib.import_module("main"), importlib.import_module("src.server_base")
        main.generate_dataset = lambda args: ({"distribution": "ours"}, [{} for _ in data.clients])
        main.save_result = lambda **_: None
        base.load_data = lambda train, test: sets
        base.ServerBase.select_join_clients = clock.started_by(base.ServerBase.select_join_clients)
        main.run(released.arguments(config))
        return clock.per_round(rounds)


def parity(name: str) -> ModuleType:
    """A module of tests/parity, whose lockstep drives the same code."""
    if str(PARITY) not in sys.path:
        sys.path.append(str(PARITY))
    return importlib.import_module(name)


# ----------------------------------------------------------------------------------------------------------- ours


def play_ours(data: Federated, case: Case, rounds: int) -> Times:
    method, began = make(case.method, **case.settings), _now()
    training = {"lr": LR, "batch": BATCH, "epochs": EPOCHS, **case.training}
    fa.fit(method, data, "lenet5", rounds=rounds, participation=1.0, workers=case.workers, **training)
    return _per_round(began, rounds)


# --------------------------------------------------------------------------------------------------- side by side


def measure(asked: argparse.Namespace, cases: Sequence[Case]) -> list[Row]:
    """Every case once per repeat, theirs and ours in turn, each in a process of its own."""
    data = partition(asked.data_dir, asked.clients, asked.share)
    found: dict[int, list[tuple[Times, Times]]] = {}
    with tempfile.TemporaryDirectory() as top:
        if asked.pfllib is not None:
            write_theirs(data, Path(top))
        (Path(top) / "system").mkdir()
        for repeat in range(asked.repeats):
            for k, case in enumerate(cases):
                theirs, ours = (in_process(who, case, asked, top) for who in ("theirs", "ours"))
                found.setdefault(k, []).append((theirs, ours))
                seconds = f"{theirs.wall:.2f} and {ours.wall:.2f} seconds per round"
                print(f"{repeat + 1} {case.name}: {seconds}", file=sys.stderr, flush=True)
    return [row(cases[k], pairs) for k, pairs in found.items()]


def row(case: Case, pairs: Sequence[tuple[Times, Times]]) -> Row:
    """How many times as long theirs takes, on the wall; three numbers are a median, the lowest and the highest."""
    theirs, ours = ([pair[k] for pair in pairs] for k in (0, 1))
    sides = {"theirs": theirs, "ours": ours}
    detail: dict[str, Any] = {
        name: {who: spread([getattr(one, clock) for one in times]) for who, times in sides.items()}
        for name, clock in ((WALL, "wall"), (CPU, "cpu"))
    }
    detail[RATIO_CPU] = ratio(theirs, ours)
    return Row("others", case.name, ratio(theirs, ours, "wall"), "x", case.target, detail=detail)


def in_process(who: str, case: Case, asked: argparse.Namespace, top: str) -> Times:
    out = Path(top) / "spent.json"
    out.unlink(missing_ok=True)
    words = [sys.executable, __file__, "--clients", str(asked.clients), "--rounds", str(asked.rounds)]
    words += ["--share", str(asked.share), "--threads", str(asked.threads), "--play", who, case.name, top]
    for name in ("pfllib", "authors", "data_dir"):
        words += [f"--{name.replace('_', '-')}", str(given)] if (given := getattr(asked, name)) is not None else []
    done = subprocess.run(words, cwd=Path(top) / "system", capture_output=True, text=True, check=False)
    if not out.exists():
        told = (done.stderr.strip().splitlines() or ["no output"])[-1]
        sys.exit(f"error: {case.name}, {who}: {told}")
    return Times(**json.loads(out.read_text()))


def play(asked: argparse.Namespace) -> None:
    """One side of one case, in this process; its seconds go into a file."""
    who, name, top = asked.play
    case = next(case for case in CASES if case.name == name)
    if who == "theirs" and asked.threads:
        torch.set_num_threads(asked.threads)
    if who == "ours":
        spent = play_ours(partition(asked.data_dir, asked.clients, asked.share), case, asked.rounds)
    elif case.clone == "pfllib":
        spent = play_pfllib(asked.pfllib, case, asked.clients, asked.rounds)
    else:
        spent = play_authors(asked.authors, partition(asked.data_dir, asked.clients, asked.share), asked.rounds)
    (Path(top) / "spent.json").write_text(json.dumps(spent._asdict()))


def about(asked: argparse.Namespace) -> str:
    """What was run, for whoever reads the table alone."""
    given = {name: folder for name in CLONES if (folder := getattr(asked, name)) is not None}
    codes = [f"{CLONES[name].title}, commit {parity('lockstep').commit_of(folder)}" for name, folder in given.items()]
    threads = f"{asked.threads} threads" if asked.threads else "default threads"
    return (
        f"Their seconds per round over ours, on the wall: {'; '.join(codes)}. Allocation 0 of CIFAR-10, Dirichlet 0.1, "
        f"{asked.clients} clients with {asked.share:g} of their samples, LeNet-5, {asked.rounds} rounds, every client "
        f"in every round, evaluated every round, {threads}; theirs and ours in turn, {asked.repeats} times, by the "
        "same recipe. Three numbers are the median, the lowest and the highest."
    )


def table(rows: Sequence[Row]) -> list[str]:
    head = "| seconds per round on the wall | theirs | ours | ratio [lowest, highest] | target | of the processor |"
    return [head, "|---|---|---|---|---|---|", *map(_line, rows)]


def _line(one: Row) -> str:
    seconds, target = one.detail[WALL], "" if one.target is None else f"{one.target:g} x {MET[one.holds]}"
    told = [f"{seconds[who].median:.2f}" for who in ("theirs", "ours")]
    return f"| {' | '.join([one.what, *told, _times(one.found), target, _times(one.detail[RATIO_CPU])])} |"


def _times(found: Spread) -> str:
    return f"{found.median:.1f} x [{found.low:.1f}, {found.high:.1f}]"


# -------------------------------------------------------------------------------------------------- the command


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, clone in CLONES.items():
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=f"a git clone of {clone.title}")
    parser.add_argument("--data-dir", help="folder with the files of CIFAR-10")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.25, help="of every client's samples")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="inside a tensor operation of theirs; 0: the default")
    methods = ", ".join(dict.fromkeys(case.method for case in CASES))
    parser.add_argument("--only", default="", metavar="METHOD,...", help=f"some of our methods: {methods}")
    parser.add_argument("--out", type=Path, help="write the table and the facts of the machine as JSON")
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    asked.data_dir = str(Path(asked.data_dir).absolute()) if asked.data_dir else None
    for name in CLONES:
        setattr(asked, name, checked(name, getattr(asked, name)))
    return asked


def checked(name: str, folder: Path | None) -> Path | None:
    """The folder of a clone as an absolute path."""
    clone = CLONES[name]
    if folder is not None and not all((folder / file).exists() for file in clone.files):
        sys.exit(f"error: --{name} {folder} is no clone of {clone.title}\nhint: git clone {clone.address}")
    return None if folder is None else folder.absolute()


def chosen(asked: argparse.Namespace) -> list[Case]:
    """The cases that were asked for, among those whose code is there."""
    given = [name for name in CLONES if getattr(asked, name) is not None]
    if not given:
        sys.exit("error: there is nothing to compare with\nhint: give --pfllib DIR, --authors DIR or both")
    there = [case for case in CASES if case.clone in given]
    wanted = asked.only.split(",") if asked.only else [case.method for case in there]
    for name in wanted:
        if not any(case.method == name for case in CASES):
            hint = ", ".join(dict.fromkeys(case.method for case in there))
            sys.exit(f"error: there is no case {name!r}\nhint: choose from {hint}")
        if not any(case.method == name for case in there):
            needed = next(case.clone for case in CASES if case.method == name)
            sys.exit(f"error: {name} is compared with {CLONES[needed].title}\nhint: give --{needed} DIR")
    return [case for case in there if case.method in wanted]


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parse(arguments)
    if asked.play:
        play(asked)
        return
    cases, facts = chosen(asked), machine()
    if asked.pfllib is not None and asked.rounds < 2:
        sys.exit("error: PFLlib divides by zero after a single round\nhint: give --rounds 2 or more")
    if asked.out is not None and not asked.out.parent.is_dir():
        sys.exit(f"error: --out {asked.out}: there is no folder {asked.out.parent}\nhint: make it first")
    try:
        rows = measure(asked, cases)
    except FedapaError as error:
        sys.exit(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
    print("\n".join(table(rows)))
    if asked.out:
        report = {"machine": facts, "quick": False, "about": about(asked), "rows": [one.as_dict() for one in rows]}
        asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
