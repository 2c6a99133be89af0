"""What a measurement stands on: one task for two engines, one client's data, one start."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from fedapa.core.tree import Tree
from fedapa.data.federated import Federated, Split
from fedapa.simulation import make_task
from fedapa.training.architectures import factory
from fedapa.training.local import Local
from fedapa.training.settings import Training
from fedapa.training.task import Task

MODEL = "lenet5"


class How(NamedTuple):
    """How thoroughly to measure."""

    quick: bool = False
    rounds: int = 3  # of a whole run

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full


class Bed(NamedTuple):
    native: Task
    torch: Task
    data: Federated
    start: Tree

    @property
    def own(self) -> Split:
        return self.data.clients[0].train

    def local(self, task: Task) -> Local:
        """The first client's toolbox; the same batches every time."""
        return Local(task, 0, 0, 0, self.own)


def make_bed(data: Federated, epochs: int = 1) -> Bed:
    native = make_task(data, MODEL, Training(epochs=epochs), engine="native")
    theta, phi = native.init(0)
    return Bed(native, replace(native, kernel=None), data, {"theta": theta, "phi": phi})


def network(task: Task, data: Federated, start: Tree) -> nn.Module:
    """The same model as an ordinary module."""
    model = factory(MODEL)(data.shape, data.classes)
    vector_to_parameters(task.join(start["theta"], start["phi"]), model.parameters())
    return model


def dense_flops(model: nn.Module, sample: Tensor) -> float:
    """Of training on one sample, if nothing is skipped; the first layer needs no gradient of its input."""
    counts: list[float] = []

    def count(layer: nn.Module, inputs: object, out: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        places = out[0, 0].numel() if weight.ndim == 4 else 1
        counts.append(2.0 * weight.numel() * places)

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    model(sample[None])
    for hook in hooks:
        hook.remove()
    return 3 * sum(counts) - counts[0]
