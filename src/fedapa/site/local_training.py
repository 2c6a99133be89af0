"""Training alone: what a site has without anybody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData
from fedapa.errors import RunError
from fedapa.methods.local_only import LocalOnly
from fedapa.rounds.transport import Record, Request, reseed, visit
from fedapa.training.settings import Training
from fedapa.training.task import Task


def train_alone(
    task: Task,
    client: ClientData,
    i: int,
    seed: int,
    rounds: int,
    training: Training | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tree:
    """As many rounds of local training from the common start, to the bit those of client i in a run of `local`."""
    task = replace(task, vectorise=False, training=training or task.training)
    method = LocalOnly()
    record = Record(method.init(task, seed)[1], {})
    for t in range(rounds):
        request = Request(t, i, dict, train=True, evaluate=False)
        reseed(task, seed, request)
        record, reply = visit(method, task, client, record, request, seed)
        if reply.fault:
            raise RunError(f"{client.name} alone: {reply.fault}", "lower training.lr")
        if progress is not None:
            progress(t)
    return record.state
