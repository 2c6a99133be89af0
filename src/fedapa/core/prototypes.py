"""Class prototypes: mean features per class, dense over all C classes, count zero where one is absent."""

from __future__ import annotations

import torch
from torch import Tensor

MASKED = -1e9  # the logit of a class without a prototype: finite, far below every real one


def class_sums(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """[C, d] sum of the features of every class."""
    return z.new_zeros(classes, z.shape[1]).index_add(0, y, z)


def class_counts(y: Tensor, classes: int) -> Tensor:
    """[C] number of samples of every class, as floats."""
    return torch.zeros(classes).index_add(0, y, torch.ones(len(y)))


def class_means(sums: Tensor, counts: Tensor) -> Tensor:
    """[C, d] mean feature of every class; zero where the class is absent."""
    return sums / counts.clamp(min=1).unsqueeze(1)


def refreshed(prototypes: Tensor, counts: Tensor, sums: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
    """New prototypes and counts from fresh sums; a class that nobody reported keeps its last ones."""
    new = heard > 0
    means = torch.where(new.unsqueeze(1), class_means(sums, heard), prototypes)
    return means, torch.where(new, heard, counts)


def nearest_logits(z: Tensor, prototypes: Tensor, counts: Tensor) -> Tensor:
    """[n, C] negative squared distance to every prototype; absent classes get ``MASKED``."""
    squares = (z.unsqueeze(1) - prototypes).square().sum(2)
    return torch.where(counts > 0, -squares, torch.full_like(squares, MASKED))


def pull(z: Tensor, y: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Mean over batch and d of (z - c_y)^2; samples whose class is absent (present[y] = 0) add nothing."""
    gap = (z - prototypes[y]) * (present[y] > 0).unsqueeze(1)
    return gap.square().mean()
