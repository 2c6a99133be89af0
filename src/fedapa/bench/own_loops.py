"""A round of a run against the loop that somebody would write for it: models that only the torch engine runs."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapa.bench import image_data
from fedapa.bench.fixtures import How
from fedapa.bench.side_by_side import Row, interleaved, ratio, spread, threads
from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Federated, Split, from_arrays
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.fedper import FedPer
from fedapa.methods.method import Method
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import make_task, simulate
from fedapa.training.local import EVALUATION_BATCH, Local
from fedapa.training.optimizers import schedule_factor
from fedapa.training.settings import Training
from fedapa.training.task import Task

MOST = 1.05  # times the hand-written loop
CLIENTS, SEED = 5, 0
STEPS, VOCABULARY, CLASSES = 32, 200, 4  # of the token ids


class Workload(NamedTuple):
    what: str
    data: Federated
    method: Method
    task: Task


def own_loops(how: How) -> list[Row]:
    """Sending, training, aggregating and scoring of one round, in processor time."""
    return [_compared(workload, how) for workload in workloads(how)]


def workloads(how: How) -> list[Workload]:
    images = image_data.equal("cifar10", how.pick(CLIENTS, 2), how.pick(32, 24), 10)
    ids = tokens(how.pick(CLIENTS, 2), how.pick(256, 16))
    cosine = Training(
        lr=0.05, epochs=1, batch=how.pick(16, 12), momentum=0.9, lr_schedule="cosine", augment="flip+crop"
    )
    adam = Training(lr=1e-3, epochs=1, batch=how.pick(32, 4), optimizer="adamw", clip_norm=1.0)
    encoder = {"model": "transformer", "settings": {"vocabulary": VOCABULARY, "width": how.pick(128, 16), "depth": 4}}
    last = {"shared": ["layers.3*"], "frozen": ["tokens*", "positions", "layers.0*", "layers.1*", "layers.2*"]}
    return [
        Workload(
            "ResNet-18, CIFAR-10, flip and crop, SGD with cosine, FedAvg", images, FedAvg(),
            _task(images, cosine, model="resnet18"),
        ),
        Workload("Transformer, token ids, AdamW, FedAvg", ids, FedAvg(), _task(ids, adam, **encoder)),
        Workload(
            "the last block of a frozen Transformer, AdamW, FedPer", ids, FedPer(), _task(ids, adam, **encoder, **last)
        ),
    ]  # fmt: skip


def _task(data: Federated, training: Training, **options: Any) -> Task:
    return make_task(data, training=training, rounds=1, engine="torch", **options)


def tokens(clients: int, each: int) -> Federated:
    """Random ids; the class is that of the first."""
    random = np.random.default_rng(0)

    def part(size: int) -> tuple[Any, Any]:
        ids = random.integers(1, VOCABULARY, (size, STEPS))
        return ids, ids[:, 0] % CLASSES

    return from_arrays([(*part(each), *part(max(4, each // 4))) for _ in range(clients)], CLASSES, name="random ids")


def _compared(workload: Workload, how: How) -> Row:
    with threads():
        found = interleaved({"ours": partial(ours, workload), "plain": partial(plain, workload)}, how.pick(7, 2))
    detail = {
        "data": workload.data.name,
        "seconds": {name: spread([t.cpu for t in times]).median for name, times in found.items()},
    }
    what = f"a round against a hand-written loop, {workload.what}"
    return Row("loops", what, ratio(found["ours"], found["plain"]), "x", MOST, at_most=True, detail=detail)


def ours(workload: Workload) -> list[Tree]:
    """Every client's model after a round."""
    done = simulate(workload.method, workload.task, workload.data, Plan(1, seed=SEED), workers=1)
    return [record.state for record in done.records]


def plain(workload: Workload) -> list[Tree]:
    """The same round by hand: modules, torch.optim, a mean, and the same scores at the same times."""
    task, clients = workload.task, workload.data.clients
    model = task.model.module(*task.init(SEED))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    trained: list[dict[str, Tensor]] = []
    for i, data in enumerate(clients):
        model.load_state_dict(start)
        evaluate(model, task, data)
        train(model, task, i, data.train)
        evaluate(model, task, data)
        trained.append({name: value.clone() for name, value in model.state_dict().items()})
    mean = {name: torch.stack([one[name].float() for one in trained]).mean(0) for name in start}
    for data in clients:
        model.load_state_dict({name: mean[name].to(start[name].dtype) for name in start})
        evaluate(model, task, data)
    return [_vectors(task, model, one) for one in trained]


def train(model: nn.Module, task: Task, i: int, data: Split) -> None:
    """torch's own optimisers, on the batches that a run draws."""
    recipe, local = task.training, Local(task, i, 0, SEED, data)
    weights = [value for value in model.parameters() if value.requires_grad]
    rate = recipe.lr * schedule_factor(recipe, 0.0, task.rounds)
    optimiser = _optimiser(recipe, weights, rate)
    model.train()
    for k, index in enumerate(local._indices(1, None, None)):
        x = data.x[index] if task.augment is None else local._augmented(1, data.x[index], k)
        optimiser.zero_grad()
        F.cross_entropy(model(task.prepare(x)), data.y[index]).backward()  # type: ignore[no-untyped-call]
        if recipe.clip_norm:
            nn.utils.clip_grad_norm_(weights, recipe.clip_norm)
        optimiser.step()


def _optimiser(recipe: Training, weights: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(weights, rate, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(weights, rate, recipe.momentum, weight_decay=recipe.weight_decay)


def evaluate(model: nn.Module, task: Task, data: ClientData) -> tuple[float, int]:
    """Loss and right answers on the test samples."""
    model.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for x, y in zip(
            torch.split(data.test.x, EVALUATION_BATCH), torch.split(data.test.y, EVALUATION_BATCH), strict=True
        ):
            outputs = model(task.prepare(x))
            loss += float(F.cross_entropy(outputs, y, reduction="sum"))
            right += int((outputs.argmax(1) == y).sum())
    return loss, right


def _vectors(task: Task, model: nn.Module, values: dict[str, Tensor]) -> Tree:
    model.load_state_dict(values)
    return dict(zip(("theta", "phi"), task.model.vectors(model), strict=True))
