"""Small hypernetworks as pure functions: an MLP whose parameters are one flat vector, or one row per network.

``sizes`` (e, h, ..., k) are the widths of a chain of linear layers; ReLU between them, none after the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def size(sizes: Sequence[int]) -> int:
    """Number of parameters."""
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in _layers(sizes))


def init(sizes: Sequence[int], random: np.random.Generator) -> Tensor:
    """Flat parameters; weights and biases of a layer are uniform in +-1/sqrt(fan_in), as in ``nn.Linear``."""
    return torch.cat([uniform(random, (fan_in + 1) * fan_out, fan_in) for fan_in, fan_out in _layers(sizes)])


def uniform(random: np.random.Generator, count: int, fan_in: int) -> Tensor:
    """[count] values uniform in +-1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    return torch.from_numpy(random.random(count, dtype=np.float32)).mul_(2 * bound).sub_(bound)


def normal(random: np.random.Generator, *shape: int) -> Tensor:
    """Standard normal values, as in ``nn.Embedding``."""
    return torch.from_numpy(random.standard_normal(shape, dtype=np.float32))


def forward(psi: Tensor, sizes: Sequence[int], v: Tensor) -> Tensor:
    """Outputs [..., k] of network psi [H] on v [..., e], or of each network psi [S, H] on its v [S, e]."""
    layers, start = _layers(sizes), 0
    for depth, (fan_in, fan_out) in enumerate(layers):
        stop = start + (fan_in + 1) * fan_out
        W, b = psi[..., start : stop - fan_out], psi[..., stop - fan_out : stop]
        v = (W.reshape(*W.shape[:-1], fan_out, fan_in) @ v.unsqueeze(-1)).squeeze(-1) + b
        v = F.relu(v) if depth + 1 < len(layers) else v
        start = stop
    return v


def _layers(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(sizes))
