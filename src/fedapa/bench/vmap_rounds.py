"""Rounds of many small clients: the vmap engine against torch, and against native where the kernel knows the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedapa.bench import image_data
from fedapa.bench.fixtures import How
from fedapa.bench.side_by_side import Row, interleaved, ratio, spread, threads
from fedapa.data.federated import Federated, from_arrays
from fedapa.methods.fedapa import FedAPA
from fedapa.rounds.transport import InProcess, Request
from fedapa.simulation import make_task
from fedapa.training.engines.choice import GAIN, native_kernel
from fedapa.training.settings import Engine, Training
from fedapa.training.task import Task

COLUMNS, CLASSES = 13, 2  # as in the heart-disease files


class Workload(NamedTuple):
    what: str
    model: str
    data: Federated
    target: float | None  # times that vmap has to be faster than torch; None where auto takes the native engine


def vmap(how: How) -> list[Row]:
    """The training of a round of many small clients in one vectorised step: vmap against torch."""
    return [_round(workload, how) for workload in workloads(how)]


def workloads(how: How) -> list[Workload]:
    """What the vmap engine is chosen for, small models without a native kernel, and LeNet-5 beside them."""
    clients, few = how.pick(64, 8), how.pick(20, 8)
    return [
        Workload(f"mlp, tables of {clients} sites", "mlp", tables(clients, how.pick(200, 32)), GAIN),
        Workload(f"cnn8, digits, {few} clients", "cnn8", image_data.equal("digits", few, 64, 10), GAIN),
        Workload(
            f"lenet5, Fashion-MNIST, {few} clients", "lenet5", image_data.equal("fmnist", few, how.pick(256, 64)), None
        ),
    ]


def tables(clients: int, rows: int) -> Federated:
    """Sites with as many rows each of random numbers."""
    rng = np.random.default_rng(0)

    def part(size: int) -> tuple[Any, Any]:
        return rng.normal(size=(size, COLUMNS)).astype(np.float32), rng.integers(0, CLASSES, size)

    return from_arrays([(*part(rows), *part(10)) for _ in range(clients)], CLASSES, name="random tables")


def _round(workload: Workload, how: How) -> Row:
    data, training = workload.data, Training(batch=32, drop_last=False)

    def task(engine: Engine) -> Task:
        return make_task(data, workload.model, training, engine=engine)

    engines: list[Engine] = ["torch", "vmap"]
    if native_kernel(task("torch").model, data) is not None:
        engines.append("native")
    with threads():
        found = interleaved({engine: _training(task(engine), data) for engine in engines}, how.pick(7, 2))
    detail: dict[str, Any] = {
        "data": data.name,
        "milliseconds": {name: 1000 * spread([t.cpu for t in times]).median for name, times in found.items()},
        "engine of auto": task("auto").engine,
    }
    if "native" in found:
        detail["vmap against native"] = ratio(found["native"], found["vmap"]).median
    what = f"vmap against torch, training of a round, {workload.what}"
    return Row("vmap", what, ratio(found["torch"], found["vmap"]), "x", workload.target, detail=detail)


def _training(task: Task, data: Federated) -> Callable[[], object]:
    """All clients train once, with one worker."""
    method = FedAPA()
    server, client = method.init(task, 0)
    transport = InProcess(method, task, data, 0, client, 1)

    def visit(i: int) -> Request:
        return Request(0, i, lambda: method.send(task, server, i), True, False)

    return lambda: list(transport.exchange([visit(i) for i in range(task.clients)]))
