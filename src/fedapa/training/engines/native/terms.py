"""Terms that the kernel can add to cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ClassPull:
    """strength * mean over batch and features of (z - target_y)^2, for the classes y with present_y > 0."""

    target: Tensor  # [C, d]
    present: Tensor  # [C]
    strength: float


@dataclass(frozen=True)
class MeanPull:
    """strength / 2 * mean over features of (m - target)^2; with every batch m <- (1 - mu) m + mu * mean of its z."""

    m: Tensor  # [d]
    target: Tensor  # [d]
    mu: float
    strength: float


@dataclass(frozen=True)
class Mmd:
    """strength * MMD^2 between the features of the model and of a frozen extractor, under a sum of RBF kernels.

    Their bandwidths are multiples of the mean squared distance in the batch, at least ``floor``: the widest, and each
    of the others half of the one before.
    """

    theta: Tensor
    strength: float
    widest: float
    bandwidths: int
    floor: float


@dataclass(frozen=True)
class SoftLabels:
    """strength * cross-entropy against the softmax of a frozen model's logits / temperature."""

    theta: Tensor
    phi: Tensor
    strength: float
    temperature: float


@dataclass(frozen=True)
class Mixture:
    """The model is extra[0] * [theta; phi] + extra[1:] @ others; stiffness / 2 * |extra - origin|^2 is added."""

    others: Tensor  # [M - 1, theta_size + phi_size]
    origin: Tensor  # [M]
    stiffness: float


@dataclass(frozen=True)
class Terms:
    """The loss is share * cross-entropy plus what is given; with ``shift`` the head sees z + shift * extra."""

    share: float = 1.0
    pull: ClassPull | None = None
    mean: MeanPull | None = None
    teacher: Mmd | SoftLabels | None = None
    shift: float | None = None
    mixture: Mixture | None = None

    @property
    def plain(self) -> bool:
        """Cross-entropy alone."""
        return self == Terms()

    @property
    def has_extra(self) -> bool:
        """Whether a vector is trained along with theta and phi."""
        return self.shift is not None or self.mixture is not None
