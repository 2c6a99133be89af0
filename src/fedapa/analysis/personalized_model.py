"""The model that a client has in use when a run is over, and what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData
from fedapa.errors import InputError
from fedapa.methods.method import Method
from fedapa.store import checkpoint
from fedapa.store.checkpoint import Checkpoint
from fedapa.training.local import Local, Pass, outputs
from fedapa.training.task import Task

Floats = npt.NDArray[np.float64]


def last_checkpoint(folder: Path, rounds: int) -> Checkpoint:
    """The last state of a finished run."""
    found = checkpoint.newest(folder / "checkpoints")
    if found is None or found.state.round < rounds:
        raise InputError(f"{folder} is not a finished run", "`fedapa resume` takes it to its end")
    return found


def in_use(method: Method, task: Task, point: Checkpoint, i: int, data: ClientData, seed: int) -> Tree:
    """Client i's state after its last training, or with what the server would send now, as the method is evaluated."""
    state = point.records[i].state
    if method.evaluated == "after":
        return state
    down = method.send(task, point.state.server, i)
    return method.receive(task, state, down, Local(task, i, point.state.round, seed, data.train))


def predictions(method: Method, task: Task, state: Tree, x: torch.Tensor) -> Floats:
    """What the personalized model says: probabilities [n, classes], or values [n, 1] in the unit of the target."""
    found = task.objective.predictions(outputs(Pass(method.predict, task, state, x)).double())
    return np.asarray(found.numpy(), dtype=np.float64)
