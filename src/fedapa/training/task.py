"""What every party of a federation agrees on: model, objective, classes, how many clients, how they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedapa.core.tree import Tree
from fedapa.data.samples import are_fields
from fedapa.training.engines.native import Kernel
from fedapa.training.model import Architectures
from fedapa.training.objective import Classification, Objective
from fedapa.training.settings import Training
from fedapa.training.split_model import SplitModel

CPU = torch.device("cpu")
Augment = Callable[[Any, np.random.Generator], Any]  # the samples of a batch, changed at random

# A user's own training loop: training/own_trainer.py.
Trainer = Callable[[nn.Module, Any, Training, torch.Generator], object]


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Task:
    model: SplitModel
    classes: int
    sizes: Tensor  # [M] training samples of every client, declared at enrolment
    training: Training = field(default_factory=Training)
    rounds: int = 50
    participation: float = 1.0  # mean share of the clients that take part in a round
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    kernel: Kernel | None = None  # the native engine, for models that it knows; PyTorch runs the others
    vectorise: bool = False  # the vmap engine: clients of a round are trained together
    objective: Objective = field(default_factory=Classification)
    trainer: Trainer | None = None  # a user's own training loop
    architectures: Architectures | None = None  # where clients have different ones; ``model`` is then the first
    donate: bool = False  # the loop gives the server state away: absorb may update it in place
    augment: Augment | None = None  # train batches pass through it
    devices: tuple[torch.device, ...] = (CPU,)  # where clients compute, in turn
    server_device: torch.device = CPU  # where the server's state is
    device: torch.device = CPU  # where this party computes

    @property
    def clients(self) -> int:
        return len(self.sizes)

    def with_client(self, name: str, samples: int) -> Task:
        """The same task with one client more, the last."""
        sizes = torch.cat([self.sizes, torch.tensor([samples])])
        return replace(self, sizes=sizes, names=(*self.names, name) if self.names else ())

    def placed(self, device: torch.device) -> Task:
        """The task of a client that computes there."""
        return self if device == self.device else replace(self, device=device, sizes=self.sizes.to(device))

    def at(self, y: Tensor) -> Task:
        """The task as a client with these train labels sees it; the same object where nothing depends on them."""
        own = self.objective.at(y, self.classes)
        return self if own is self.objective else replace(self, objective=own)

    def for_client(self, i: int) -> Task:
        """The task as client i has it: with its own architecture and recipe; the same object where it has neither."""
        name = self.names[i] if self.names else str(i)
        training = self.training.of_client(i, name)
        model = self.model if self.architectures is None else self.architectures.of(i, name)
        is_common = training is self.training and model is self.model
        return self if is_common else replace(self, model=model, training=training)

    @property
    def is_stochastic(self) -> bool:
        """Whether training draws from torch's own generator."""
        models = (self.model,) if self.architectures is None else self.architectures.models
        return any(model.stochastic for model in models)

    def name(self, i: int) -> str:
        return f"client {self.names[i] if self.names else i}"

    @property
    def engine(self) -> str:
        if self.kernel is not None:
            return "native"
        return "vmap" if self.vectorise else "torch"

    @property
    def P(self) -> int:
        """Size of theta, the extractor."""
        return self.model.theta_size

    @property
    def Q(self) -> int:
        """Size of phi, the head."""
        return self.model.phi_size

    @property
    def d(self) -> int:
        """Size of a feature."""
        return self.model.feature_size

    def init(self, seed: int) -> tuple[Tensor, Tensor]:
        """theta and phi that everybody starts from."""
        return self.model.init(seed)

    def join(self, theta: Tensor, phi: Tensor) -> Tensor:
        """omega = [theta; phi]."""
        return torch.cat([theta, phi])

    def parts(self, omega: Tensor) -> Tree:
        """The parameters theta and phi out of omega (or out of every row of a matrix of models)."""
        return {"theta": omega[..., : self.P], "phi": omega[..., self.P :]}

    def features(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel.features(params["theta"], x)
        return _whole(self.model.features(params["theta"], params.get("phi"), self.prepare(x)))

    def logits(self, params: Mapping[str, Tensor], z: Tensor) -> Tensor:
        return _whole(self.model.logits(params["phi"], z, params.get("theta")))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The objective's mean loss of a batch."""
        return self.objective.mean_loss(outputs, y)

    def predict(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        if self.kernel is not None and not torch.is_grad_enabled():
            return self.kernel.logits(params["theta"], params["phi"], x)
        return self.logits(params, self.features(params, x))

    def prepare(self, x: Tensor) -> Tensor:
        """Bytes become floats and both are normalised per channel here, batch by batch; fields are as the user made
        them."""
        if are_fields(x):
            return x
        if x.dtype == torch.uint8:
            x = x.float().div_(255)
        if not x.is_floating_point():
            return x  # token ids
        if not self.mean or (set(self.mean) == {0.0} and set(self.std) == {1.0}):
            return x
        channels = (1, -1) + (1,) * (x.ndim - 2)
        return (x - torch.tensor(self.mean).view(channels)).div_(torch.tensor(self.std).view(channels))


def _whole(outputs: Tensor) -> Tensor:
    """Half precision ends where methods begin: what they compute from features and outputs is float32."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


def task_loss(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """The objective's loss of the whole model [theta; phi] on a batch."""
    return task.loss(task.predict({**given, **params}, batch.x), batch.y)


def proximal(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """The task's loss plus rho/2 |params - anchor|^2, with ``given`` holding rho and anchor_<name> per parameter."""
    return task_loss(task, params, batch, given) + pull(params, given)


def pull(params: Tree, given: Tree) -> Tensor:
    """rho/2 |params - anchor|^2 over the parameters that have an anchor."""
    square = sum((params[k] - given[f"anchor_{k}"]).square().sum() for k in params if f"anchor_{k}" in given)
    return 0.5 * given["rho"] * square
