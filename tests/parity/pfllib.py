"""PFLlib's methods in lockstep with ours: its own main.py runs, with our model, start, data and batches.

Changed from outside, while it runs: the reader of client data, the loader of train data, the model that "CNN" stands
for, the loss on train data (a lockstep has no use for it), and saving, at which the run ends. With momentum,
torch.optim.SGD gets it as a default: PFLlib asks for none, and keeps its optimizers from round to round.
"""

from __future__ import annotations

import pkgutil
import runpy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from lockstep import (
    BATCH,
    Ours,
    OutOfStepError,
    Replay,
    checkout,
    flat,
    in_whole_batches,
    left_over,
    load_weights,
    play,
)
from torch import Tensor, nn
from verdict import Row, Write, farthest, judge, relative

from fedapa.core.tree import Tree
from fedapa.data.federated import Federated, Split
from fedapa.methods.catalogue import make
from fedapa.training.architectures import factory
from fedapa.training.settings import Training

ROUNDS = 4
RATES = {0.0: 0.05, 0.9: 0.005}  # by momentum: ten times the steps at a tenth of the rate, or rounding grows by itself
ABSENT = ("torchvision", "cvxpy", "h5py", "calmsize")
NO_MOMENTUM = "PFLlib's own optimizer has no momentum"
KERNEL = "PFLlib's MMD has four fixed bandwidths; ours, as the authors', five relative to the mean distance"
APPLE = "PFLlib uploads the personal model as core, multiplies the rate by M and starts from p = 1/M"
DECAY = "PFLlib's inner optimizer decays weights by 0.001, which no paper and no argument has"
ALONE = "PFLlib trains the private model alone, mixes it into itself once a round and learns alpha by another gradient"
AMP = "PFLlib's FedAMP is Local: its penalty has no gradient and the mixture is never used"


Samples = dict[tuple[int, bool], list[tuple[Tensor, Tensor]]]  # of every client, for training or not


class Case(NamedTuple):
    """One algorithm of PFLlib beside one method of ours."""

    algorithm: str
    arguments: str
    method: str
    settings: Mapping[str, Any]
    parts: tuple[str, ...]
    epochs: int = 2
    first: int = 0  # round from which accuracies are compared
    early: int = 0  # rounds of ours that PFLlib plays before its first
    when: str = "before"  # PFLlib evaluates before or after local training
    take: slice = slice(None)  # of its accuracies, those of the model that ours evaluates
    reasons: Mapping[str, str] = {}
    proximal: tuple[str, ...] = ()  # parts that PFLlib trains with an optimizer of its own
    note: str = ""
    is_scored: bool = True  # both codes score the same model
    scores: str = "rs_test_acc"  # where PFLlib keeps its accuracies
    looks: int = 0  # epochs that PFLlib reads before it trains
    whole_batches: bool = False
    changes: Mapping[str, Any] = {}  # in PFLlib while it runs, by name

    @property
    def ours(self) -> str:
        return self.method + "".join(f" {key}={value}" for key, value in self.settings.items())

    @property
    def theirs(self) -> str:
        changed = " ".join(f"{key}={value:g}" for settings in self.changes.values() for key, value in settings.items())
        return f"PFLlib {self.algorithm} {self.arguments}".strip() + (f" and inside {changed}" if changed else "")

    def expected(self, momentum: float) -> dict[str, str]:
        return {**self.reasons, **(dict.fromkeys(self.proximal, NO_MOMENTUM) if momentum else {})}


WHOLE = ("global model", "client models")
HEIR = (*WHOLE, "inherited models")
PROTO = {"lam": 1.0, "inference": "global_prototype", "average": "clients", "prototypes": "during"}
ME, OWN = "-bt 1.0 -lam 15 -K 3 -lrp 0.01", {"inner_steps": 3, "used": "local"}
MU = 0.9 * (ROUNDS - 1) / ROUNDS  # PFLlib divides mu by the number of its last round, ours by that of all rounds
CASES = (
    Case("Local", "", "local", {}, ("client models",)),
    Case("FedAvg", "", "fedavg", {}, WHOLE),
    Case("FedProx", "-mu 0.5", "fedprox", {"mu": 0.5}, WHOLE, proximal=WHOLE),
    Case("FedPer", "", "fedper", {}, ("extractor", "heads")),
    Case("FedRep", "-pls 3", "fedrep", {"head_epochs": 3}, ("extractor", "heads")),
    Case(
        "Ditto",
        "-mu 1.0 -pls 2",
        "ditto",
        {"lam": 1.0},
        ("global model", "personal models"),
        take=slice(1, None, 2),  # it evaluates the global model, then the personal ones
        proximal=("personal models",),
    ),
    Case("FedALA", "-et 1.0 -s 100 -p 2", "fedala", {"s": 100.0}, (*WHOLE, "mixing weights")),
    Case("FedProto", "-lam 1.0", "fedproto", PROTO, ("client models", "prototypes"), epochs=1, first=1),
    Case("FedDBE", "-mo 1.0 -klw 5.0", "dbe", {"kappa": 5.0, "width": 0, "mu": 1.0}, (*WHOLE, "biases"), early=1),
    Case("FedAMP", "-lam 1.0 -alk 0.05", "local", {}, ("client models",), note=AMP),
    Case("FedPHP", f"-lam 0.0 -mu {MU:g}", "fedphp", {"lam": 0.0, "used": "local"}, HEIR, when="after"),
    Case(
        "FedPHP",
        f"-lam 0.05 -mu {MU:g}",
        "fedphp",
        {"lam": 0.05, "used": "local"},
        HEIR,
        when="after",
        reasons=dict.fromkeys(HEIR, KERNEL),
    ),
    Case("APPLE", "", "apple", {"lr_p": 0.0, "mu": 0.0}, ("client models",), reasons={"client models": APPLE}),
    Case("LG-FedAvg", "", "lg-fedavg", {}, ("shared head", "client models")),
    Case("FedBABU", "-fte 0", "fedbabu", {"tune_epochs": 0}, ("extractor",), take=slice(ROUNDS)),
    Case("FedROD", "", "fedrod", {"start": "head"}, (*WHOLE, "private heads"), looks=1, whole_batches=True),
    Case("SCAFFOLD", "-slr 1.0", "scaffold", {}, (*WHOLE, "control variate"), proximal=(*WHOLE, "control variate")),
    Case("MOON", "-mu 1.0 -tau 0.5", "moon", {"mu": 1.0, "tau": 0.5}, WHOLE),
    Case(
        "PerAvg",
        f"-lbs {BATCH // 2} -ls 1",  # it trains twice a round
        "perfedavg",
        {"alpha": RATES[0.0], "adapt_steps": 0},
        ("global model",),
        is_scored=False,
        proximal=("global model",),
    ),
    Case(
        "APFL",
        "-al 0.5",
        "apfl",
        {"alpha_lr": 0.0},
        ("global model", "personal models"),
        is_scored=False,
        reasons={"personal models": ALONE},
    ),
    Case("pFedMe", ME, "pfedme", OWN, WHOLE, scores="rs_test_acc_per", reasons=dict.fromkeys(WHOLE, DECAY)),
    Case(
        "pFedMe",
        ME,
        "pfedme",
        OWN,
        WHOLE,
        scores="rs_test_acc_per",
        proximal=WHOLE,
        note="with PFLlib's weight decay taken out",
        changes={"flcore.clients.clientpFedMe.pFedMeOptimizer": {"mu": 0.0}},
    ),
)


class OfServer(NamedTuple):
    """The same tensor in a server of theirs and in the server state of ours."""

    theirs: Callable[[Any], Tensor]
    ours: Callable[[Tree], Tensor]

    def distance(self, server: Any, ours: Ours) -> float:
        return relative(self.theirs(server), self.ours(ours.server))


class OfClients(NamedTuple):
    """The same of every client; the farthest counts."""

    theirs: Callable[[Any], Tensor]
    ours: Callable[[Tree], Tensor]

    def distance(self, server: Any, ours: Ours) -> float:
        return farthest((self.theirs(c), self.ours(ours.clients[c.id])) for c in server.clients)


def joined(tree: Tree, prefix: str = "") -> Tensor:
    return torch.cat([tree[f"{prefix}theta"], tree[f"{prefix}phi"]])


PARTS: dict[str, OfServer | OfClients] = {
    "global model": OfServer(lambda s: flat(s.global_model), lambda t: t["omega"]),
    "extractor": OfServer(lambda s: flat(s.global_model), lambda t: t["theta"]),
    "prototypes": OfServer(
        lambda s: torch.stack([mean for _, mean in sorted(s.global_protos.items())]),
        lambda t: t["prototypes"][t["counts"] > 0],
    ),
    "client models": OfClients(lambda c: flat(c.model), joined),
    "shared head": OfServer(lambda s: flat(s.global_model), lambda t: t["phi"]),
    "control variate": OfServer(lambda s: torch.cat([c.detach().reshape(-1) for c in s.global_c]), lambda t: t["c"]),
    "private heads": OfClients(lambda c: flat(c.head), lambda t: t["psi"]),
    "heads": OfClients(lambda c: flat(c.model.head), lambda t: t["phi"]),
    "personal models": OfClients(lambda c: flat(c.model_per), joined),
    "inherited models": OfClients(lambda c: flat(c.model_p), partial(joined, prefix="inherited_")),
    "biases": OfClients(lambda c: c.client_mean.detach(), lambda t: t["b"]),
    "mixing weights": OfClients(lambda c: torch.cat([w.reshape(-1) for w in c.ALA.weights]), lambda t: t["W"]),
}


class Net(nn.Module):
    """Our LeNet-5 with its head under the name that PFLlib cuts at."""

    def __init__(self, start: Tensor, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        whole = factory("lenet5")(shape, classes)
        assert isinstance(whole, nn.Sequential)
        self.body, self.fc = whole[:-1], whole[-1]
        load_weights(self, start)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.body(x))
        return z


class FinishedError(Exception):
    """Thrown where PFLlib would save its results: all rounds are played."""


def compare(folder: Path, data: Federated, wanted: set[str], write: Write) -> None:
    """A row for every case and momentum; ``folder`` holds PFLlib's main.py."""
    samples: Samples = {}
    with checkout(folder, ABSENT), _own_data(samples):
        for momentum in RATES:
            for case in CASES:
                if not wanted or case.algorithm in wanted:
                    mine = in_whole_batches(data) if case.whole_batches else data
                    samples |= _samples(mine)
                    with _changed(case.changes):
                        write(lockstep(case, mine, momentum))


def lockstep(case: Case, data: Federated, momentum: float) -> Row:
    training = Training(RATES[momentum], momentum, BATCH, case.epochs, drop_last=True, keep_momentum=True)
    ours = play(make(case.method, **case.settings), data, training, ROUNDS + case.early)
    for epochs in ours.epochs:
        epochs.extendleft([epochs[0]] * case.looks)
    fill = partial(Row, case.theirs, case.ours, ROUNDS, len(data.clients), momentum)
    try:
        server = _run_theirs(case, data, ours, momentum)
    except OutOfStepError as error:
        return fill({}, False, f"DIFFERS: {error}")
    if fault := left_over(ours.epochs):
        return fill({}, False, f"DIFFERS: {fault}")
    distances = {name: PARTS[name].distance(server, ours) for name in case.parts}
    accuracies = getattr(server, case.scores)[case.take], ours.accuracies(case.when)[case.early :]
    same = _alike(*(values[case.first :] for values in accuracies)) if case.is_scored else None
    return fill(distances, same, judge(distances, same, case.expected(momentum), case.note))


def _alike(theirs: list[float], ours: list[float]) -> bool:
    return len(theirs) == len(ours) and all(abs(a - b) < 1e-9 for a, b in zip(theirs, ours, strict=True))


def _run_theirs(case: Case, data: Federated, ours: Ours, momentum: float) -> Any:
    """PFLlib's server after its last round."""
    words = f"-data Cifar10 -m CNN -algo {case.algorithm} -dev cpu -lr {RATES[momentum]} -lbs {BATCH}"
    words += f" -ls {case.epochs} -gr {ROUNDS - 1} -jr 1.0 -nc {len(data.clients)} -ncl {data.classes} -eg 1"
    words += f" {case.arguments}"
    try:
        with (
            patch("flcore.trainmodel.models.FedAvgCNN", lambda **_: Net(ours.start, data.shape, data.classes)),
            patch("flcore.clients.clientbase.Client.load_train_data", _replay(data, ours)),
            patch("torch.optim.SGD", partial(torch.optim.SGD, momentum=momentum)),
            patch("sys.argv", ["main.py", *words.split()]),
        ):
            runpy.run_path("main.py", run_name="__main__")
    except FinishedError as finished:
        return finished.args[0]
    raise OutOfStepError("it ended without saving its results")


def _replay(data: Federated, ours: Ours) -> Callable[..., Replay]:
    return lambda client, batch_size=None: Replay(data.clients[client.id].train, ours.epochs[client.id])


@contextmanager
def _own_data(samples: Samples) -> Iterator[None]:
    """Our samples in the place of PFLlib's files, no losses on train data, and an end where it would save.

    PFLlib's modules keep the reader that they were loaded with, so that one reader serves all cases.
    """
    with (
        patch("utils.data_utils.read_client_data", lambda _, i, is_train=True, few_shot=0: samples[i, is_train]),
        patch("flcore.servers.serverbase.Server.train_metrics", _nothing),
        patch("flcore.servers.serverditto.Ditto.train_metrics_personalized", _nothing),
        patch("flcore.servers.serverpFedMe.pFedMe.train_metrics_personalized", _nothing_personal),
        patch("flcore.servers.serverbase.Server.save_results", _finish),
        patch("flcore.servers.serverpFedMe.pFedMe.save_results", _finish),
    ):
        yield


@contextmanager
def _changed(changes: Mapping[str, Any]) -> Iterator[None]:
    """Functions of PFLlib with other defaults."""
    with ExitStack() as stack:
        for name, defaults in changes.items():
            stack.enter_context(patch(name, partial(pkgutil.resolve_name(name), **defaults)))
        yield


def _samples(data: Federated) -> Samples:
    train = {(i, True): _pairs(client.train) for i, client in enumerate(data.clients)}
    return train | {(i, False): _pairs(client.test) for i, client in enumerate(data.clients)}


def _pairs(split: Split) -> list[tuple[Tensor, Tensor]]:
    return list(zip(split.x, split.y, strict=True))


def _nothing(server: Any) -> tuple[list[int], list[int], list[float]]:
    return [0], [1], [0.0]


def _nothing_personal(server: Any) -> tuple[list[int], list[int], list[float], list[float]]:
    return [0], [1], [0.0], [0.0]


def _finish(server: Any) -> None:
    raise FinishedError(server)
