"""Checked arguments of the kernel's functions: nothing else may reach the library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedapa.errors import InputError
from fedapa.training.engines.native.network_shape import Shape
from fedapa.training.engines.native.terms import SoftLabels, Terms
from fedapa.training.optimizers import Rule


@dataclass(frozen=True)
class TrainingCall:
    """Local training with mean cross-entropy, terms beside it, and the steps of a rule.

    Labels that are numbers (float32) instead of classes (int64) make it the squared error of the only output.
    The cross-entropy of a sample is multiplied by its class's weight, where there are weights, and `smoothing` is the
    share of its label that is spread over all classes. Gradients are scaled together, so that their joint norm is at
    most `clip_norm`; 0 leaves them. A state (`velocity_*`) is SGD's velocity, or with Adam both moments and the number
    of steps, one after another.
    Batch b is `order[bounds[b]:bounds[b+1]]`. With anchors, rho/2 * |w - anchor|^2 is added to the loss; the
    reported one is without it and without terms. `last` is the number of batches at the end whose mean loss is
    reported, all by default. `extra` is the vector that a shift or a mixture trains along with theta and phi.
    Terms need a theta that is not frozen, a mixture a phi that is not, and soft labels plain cross-entropy.
    """

    theta: Tensor
    phi: Tensor
    x: Tensor
    y: Tensor
    order: Tensor
    bounds: Tensor
    lr_theta: float
    lr_phi: float | None = None  # that of theta
    rule: Rule = Rule()
    clip_norm: float = 0.0
    class_weights: Tensor | None = None  # [C]
    smoothing: float = 0.0
    velocity_theta: Tensor | None = None  # at rest
    velocity_phi: Tensor | None = None
    anchor_theta: Tensor | None = None
    anchor_phi: Tensor | None = None
    rho: float = 0.0
    freeze_theta: bool = False
    freeze_phi: bool = False
    last: int | None = None
    terms: Terms = field(default_factory=Terms)
    extra: Tensor | None = None
    velocity_extra: Tensor | None = None  # at rest
    lr_extra: float = 0.0
    freeze_extra: bool = False

    @property
    def batches(self) -> int:
        return self.bounds.shape[0] - 1

    @property
    def plain_loss(self) -> bool:
        """Cross-entropy without weights and smoothing."""
        return self.class_weights is None and self.smoothing == 0 and not self.y.is_floating_point()

    @property
    def rates(self) -> tuple[float, float]:
        return self.lr_theta, self.lr_theta if self.lr_phi is None else self.lr_phi


@dataclass(frozen=True)
class Trained:
    """Result of `Kernel.train`; `loss` is the mean over the reported batches, without terms and anchors."""

    theta: Tensor
    phi: Tensor
    velocity_theta: Tensor
    velocity_phi: Tensor
    loss: float
    extra: Tensor | None = None
    velocity_extra: Tensor | None = None
    mean: Tensor | None = None  # the running mean of the features


@dataclass(frozen=True)
class MixingCall:
    """Training of a head global + (local - global) * (1 - W) on features, in its weights W, which stay within 0..1."""

    W: Tensor
    arrived: Tensor  # the global head
    own: Tensor  # the local one
    z: Tensor  # [n, d]
    y: Tensor
    order: Tensor
    bounds: Tensor
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    velocity: Tensor | None = None  # at rest


@dataclass(frozen=True)
class Mixed:
    """Result of `Kernel.mix_head`; `loss` is that of the last batch, 0 without one."""

    W: Tensor
    velocity: Tensor
    loss: float


class Index(NamedTuple):
    """Which samples: indices, or (None) a range."""

    where: Tensor | None
    start: int
    samples: int


def vector(name: str, value: Tensor | None, *size: int) -> Tensor:
    """A float32 tensor of this shape on the CPU, its numbers one after another."""
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.device.type != "cpu":
        raise InputError(f"{name} must be a float32 tensor on the CPU")
    if value.shape != size:
        raise InputError(f"{name} must have shape {size}, not {tuple(value.shape)}")
    return value.detach().contiguous()


def own_vector(name: str, value: Tensor | None, size: int) -> Tensor:
    """A copy that the kernel may write to; zeros for None."""
    return torch.zeros(size) if value is None else vector(name, value, size).clone()


def own_state(name: str, value: Tensor | None, size: int, rule: Rule) -> Tensor:
    """A copy of the state of a vector of this size; at rest for None."""
    return own_vector(name, value, size if rule.name == "sgd" else 2 * size + 1)


def optional_vector(name: str, value: Tensor | None, size: int) -> Tensor | None:
    return None if value is None else vector(name, value, size)


def address(value: Tensor | None) -> int | None:
    return None if value is None else value.data_ptr()


def data(x: Tensor, shape: Shape) -> Tensor:
    want = (shape.channels, shape.size, shape.size)
    if not isinstance(x, Tensor) or x.device.type != "cpu":
        raise InputError("x must be a tensor on the CPU")
    if x.dtype not in (torch.uint8, torch.float32):
        raise InputError(f"x must be uint8 or float32, not {x.dtype}")
    if x.dim() != 4 or tuple(x.shape[1:]) != want:
        raise InputError(f"x must have shape (n, {want[0]}, {want[1]}, {want[2]}), not {tuple(x.shape)}")
    if not x.is_contiguous():
        raise InputError("x must be contiguous")
    return x.detach()


def labels_or_none(y: Tensor, x: Tensor) -> Tensor:
    """Classes; where labels are numbers, a class that nothing depends on."""
    is_number = isinstance(y, Tensor) and y.dtype == torch.float32
    return labels(torch.zeros(len(x), dtype=torch.int64) if is_number else y, x)


def labels(y: Tensor | None, x: Tensor) -> Tensor:
    if not isinstance(y, Tensor) or y.device.type != "cpu" or y.dtype != torch.int64:
        raise InputError("y must be an int64 tensor on the CPU")
    if y.shape != (x.shape[0],):
        raise InputError(f"y must have shape ({x.shape[0]},), one label per sample, not {tuple(y.shape)}")
    return y.contiguous()


def index_of(index: Tensor | range | None, x: Tensor) -> Index:
    if index is None:
        return Index(None, 0, x.shape[0])
    if isinstance(index, range):
        return _index_of_range(index, x.shape[0])
    if not isinstance(index, Tensor) or index.device.type != "cpu" or index.dtype != torch.int64:
        raise InputError("index must be an int64 tensor on the CPU, a range or None")
    if index.dim() != 1:
        raise InputError(f"index must have one dimension, not {index.dim()}")
    return Index(index.contiguous(), 0, index.shape[0])


def _index_of_range(index: range, samples: int) -> Index:
    if index.step != 1:
        raise InputError("an index range must have step 1")
    if len(index) and not 0 <= index.start <= index.stop <= samples:
        raise InputError(f"index {index} is out of range for {samples} samples")
    return Index(None, index.start if len(index) else 0, len(index))


def batches(order: Tensor, bounds: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The order of the samples; the starts of all batches in it, and the end of the last."""
    where, _, count = index_of(order, x)
    if where is None:
        raise InputError("order must be an int64 tensor")
    if not isinstance(bounds, Tensor) or bounds.dtype != torch.int64 or bounds.device.type != "cpu":
        raise InputError("bounds must be an int64 tensor on the CPU")
    if bounds.dim() != 1 or bounds.shape[0] < 1:
        raise InputError("bounds must hold the start of every batch and the end of the last")
    bounds = bounds.contiguous()
    if int(bounds[0]) != 0 or int(bounds[-1]) != count or bool((bounds[1:] <= bounds[:-1]).any()):
        raise InputError(f"bounds must rise from 0 to the length of order ({count}), without empty batches")
    return where, bounds


def number(name: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{name} must be finite and not negative, not {value}")
    return value


def check_settings(call: TrainingCall) -> None:
    """Refuse rates and a number of batches that cannot be meant."""
    if call.last is not None and not 0 <= call.last <= call.batches:
        raise InputError(f"last must be between 0 and {call.batches}, not {call.last}")
    rates = dict(zip(("lr_theta", "lr_phi"), call.rates, strict=True))
    rates |= {"rho": call.rho}
    for name, value in rates.items():
        number(name, value)
    if not call.terms.plain and call.freeze_theta:
        raise InputError("a frozen theta takes cross-entropy alone, without terms")
    if call.terms.mixture is not None and call.freeze_phi:
        raise InputError("a mixture needs a phi that is not frozen")
    if not call.plain_loss and isinstance(call.terms.teacher, SoftLabels):
        raise InputError("soft labels need plain cross-entropy, without class weights and smoothing")
    if call.rho > 0 and call.anchor_theta is None and call.anchor_phi is None:
        raise InputError("rho needs anchor_theta, anchor_phi or both")


def check_statistics(mean: Sequence[float] | None, std: Sequence[float] | None, channels: int) -> None:
    if (mean is None) != (std is None):
        raise InputError("give both mean and std, or neither")
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) != channels:
            raise InputError(f"{name} must have {channels} values, one per channel, not {len(values)}")
        if values is not None and not all(math.isfinite(v) for v in values):
            raise InputError(f"{name} must be finite")
    if std is not None and min(std) <= 0:
        raise InputError("std must be positive")
