"""Named tensors as one flat vector, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Slot(NamedTuple):
    """Where one tensor of the module lives in its flat vector."""

    name: str
    shape: torch.Size
    start: int
    stop: int


def slots_of(named: Sequence[tuple[str, Tensor]]) -> tuple[Slot, ...]:
    slots, start = [], 0
    for name, tensor in named:
        slots.append(Slot(name, tensor.shape, start, start + tensor.numel()))
        start += tensor.numel()
    return tuple(slots)


def pack(values: Mapping[str, Tensor], slots: Sequence[Slot]) -> Tensor:
    if not slots:
        return torch.zeros(0)
    return torch.cat([values[slot.name].detach().reshape(-1).float() for slot in slots])


def unpack(vector: Tensor, slots: Sequence[Slot]) -> dict[str, Tensor]:
    if not slots:
        return {}
    pieces = torch.split(vector, [slot.stop - slot.start for slot in slots])
    return {slot.name: piece.view(slot.shape) for slot, piece in zip(slots, pieces, strict=True)}


def size_of(slots: Sequence[Slot]) -> int:
    return slots[-1].stop if slots else 0
