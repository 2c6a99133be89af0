"""The released FedAPA code in lockstep with ours: its own main.run(), with our start, data, batches and draws.

Changed from outside, while it runs: the making and loading of data, the weights of a new model, the draw of clients,
the loader of train data, and saving. Its config gives the learning rates; clients and batches are fewer and smaller.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from lockstep import BATCH, Ours, OutOfStepError, Replay, checkout, flat, left_over, load_weights, play
from torch import Tensor
from verdict import Row, farthest, judge

from fedapa.data.federated import Federated
from fedapa.methods.catalogue import make
from fedapa.training.settings import Training

ROUNDS, MOMENTUM = 5, 0.9  # their clients' SGD has this momentum built in
ABSENT = ("torchvision", "torchvision.transforms", "ujson", "calmsize")


class Tqdm:
    """A progress bar that shows nothing."""

    def __init__(self, items: Any, desc: str = "") -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def set_description(self, text: str) -> None:
        pass


class Seen(NamedTuple):
    """Their server after a round."""

    accuracy: float
    A: Tensor
    theta: Tensor
    phi: Tensor


def compare(folder: Path, data: Federated) -> Row:
    """``folder`` holds their main.py."""
    import yaml  # type: ignore[import-untyped]  # comes with Flower

    config = yaml.safe_load((folder / "configs" / "FedAPA.yaml").read_text(encoding="utf-8"))
    epochs, lr = config["client"]["local_epochs"], config["client"]["learning_rate"]
    training = Training(lr=lr, momentum=MOMENTUM, batch=BATCH, epochs=epochs, drop_last=True, keep_momentum=True)
    ours = play(make("fedapa-reference"), data, training, ROUNDS, config["server"]["lowest_join_rate"])
    config["server"] |= {"global_rounds": ROUNDS}
    config["client"] |= {"num_clients": len(data.clients), "batch_size": BATCH}

    def row(distances: dict[str, float], same: bool, verdict: str) -> Row:
        return Row("released FedAPA", "fedapa-reference", ROUNDS, len(data.clients), MOMENTUM, distances, same, verdict)

    try:
        with checkout(folder, ABSENT, {"tqdm": Namespace(tqdm=Tqdm)}):
            seen = run_theirs(config, data, ours)
    except OutOfStepError as error:
        return row({}, False, f"DIFFERS: {error}")
    if fault := left_over(ours.epochs):
        return row({}, False, f"DIFFERS: {fault}")
    distances = measure(seen, ours)
    same = all(abs(s.accuracy - a) < 1e-9 for s, a in zip(seen, ours.accuracies("after"), strict=True))
    return row(distances, same, judge(distances, same, {}))


def measure(seen: list[Seen], ours: Ours) -> dict[str, float]:
    """Largest distance over all rounds. Rows of A that were never used are zero there and e_i here: left out."""
    served = [sorted({i for log in ours.logs[: t + 1] for i in log.trained}) for t in range(len(seen))]
    states = [state.server for state in ours.states]
    rounds = list(zip(seen, states, served, strict=True))
    heads = torch.stack([client["phi"] for client in ours.clients])
    return {
        "A": farthest((s.A[rows], state["A"][rows]) for s, state, rows in rounds),
        "theta": farthest((s.theta, state["theta"]) for s, state, _ in rounds),
        "heads": farthest([(seen[-1].phi, heads)]),
    }


def run_theirs(config: dict[str, Any], data: Federated, ours: Ours) -> list[Seen]:
    """Their server after every round."""
    main = importlib.import_module("main")
    base, server = importlib.import_module("src.server_base"), main.ServerFedAPA
    client = importlib.import_module("src.FedAPA.client_FedAPA").ClientFedAPA
    theirs, seen, draws = main.Net, list[Seen](), iter([log.trained for log in ours.logs])
    sets = [[torch.utils.data.TensorDataset(*split) for split in splits] for splits in _by_part(data)]

    def net(*words: Any, **named: Any) -> Any:
        made = theirs(*words, **named)
        load_weights(made, ours.start)
        return made

    def evaluate(self: Any) -> float:
        accuracy: float = base.ServerBase.evaluate(self)
        seen.append(look(self, accuracy))
        return accuracy

    changes: list[tuple[Any, str, Any]] = [
        (main, "generate_dataset", lambda args: ({"distribution": "ours"}, [{} for _ in data.clients])),
        (main, "save_result", lambda **_: None),
        (main, "Net", net),
        (base, "load_data", lambda train, test: sets),
        (server, "select_join_clients", lambda self: [self.clients[i] for i in next(draws)]),
        (server, "evaluate", evaluate),
        (client, "get_train_loader", lambda self: replay(data, ours, self.client_id)),
    ]
    with ExitStack() as stack:
        for place, name, new in changes:
            stack.enter_context(patch.object(place, name, new))
        main.run(arguments(config))
    return seen


def look(server: Any, accuracy: float) -> Seen:
    theta = torch.stack([torch.cat([v.reshape(-1) for v in model.values()]) for model in server.client_models])
    phi = torch.stack([flat(client.model.head) for client in server.clients])
    return Seen(accuracy, server.client_weights.detach().clone(), theta.clone(), phi)


def replay(data: Federated, ours: Ours, i: int) -> Replay:
    return Replay(data.clients[i].train, ours.epochs[i])


def arguments(config: dict[str, Any]) -> Namespace:
    """What their command line would make of the config."""
    words = {"dataset": "cifar10", "algorithm": "FedAPA", "modelName": "LeNet5", "prefix": "", "debug": False}
    paths = {"paths": {"train": None, "test": None}, "device": torch.device("cpu"), "benignAlone": False}
    return Namespace(**{**config, **words, **paths, "num_repeat_times": 1})


def _by_part(data: Federated) -> tuple[list[Any], list[Any]]:
    return [c.train for c in data.clients], [c.test for c in data.clients]
