"""Samples that are no single tensor in memory: several named tensors, and rows that are read batch by batch.

Both are indexed like a tensor: ``x[index]`` are the samples of a batch, ``x[3]`` is one sample, ``len(x)`` counts them.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapa.errors import InputError


class Fields:
    """Several tensors per sample, by name, such as token ids and a mask. A model gets them as they are here:
    ``x["ids"]``, or ``**x``."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._tensors[key]
        return Fields({name: tensor[key] for name, tensor in self._tensors.items()})

    def __len__(self) -> int:
        return len(next(iter(self._tensors.values())))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def keys(self) -> KeysView[str]:
        return self._tensors.keys()

    def items(self) -> ItemsView[str, Tensor]:
        return self._tensors.items()

    def to(self, device: torch.device) -> Fields:
        return Fields({name: tensor.to(device) for name, tensor in self._tensors.items()})

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self)])

    @property
    def dtype(self) -> tuple[torch.dtype, ...]:
        return tuple(tensor.dtype for tensor in self._tensors.values())


class Lazy:
    """Rows of an array (``np.memmap``) or a data set, read when a batch asks for them.

    A data set has ``len`` and gives one sample, or a pair of sample and label, for every number.
    """

    def __init__(self, source: Any, rows: Any = None, device: torch.device | None = None) -> None:
        self._source, self._device = source, device
        self._rows = np.arange(len(source)) if rows is None else np.asarray(rows, dtype=np.int64)
        if not len(self._rows):
            raise InputError("a lazily read data set is empty", "give it samples or leave the client out")
        first = self[0]
        self.shape, self.dtype = torch.Size([len(self._rows), *first.shape]), first.dtype

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Tensor:
        rows = self._rows[key.cpu().numpy() if isinstance(key, Tensor) else key]
        found = self._one(int(rows)) if np.ndim(rows) == 0 else self._many(rows)
        return found if self._device is None else found.to(self._device)

    def rows(self, index: Any) -> Lazy:
        """The same with these samples alone, none of them read."""
        return Lazy(self._source, self._rows[index], self._device)

    def to(self, device: torch.device) -> Lazy:
        """Batches go to this device when they are read."""
        return Lazy(self._source, self._rows, device)

    def _one(self, row: int) -> Tensor:
        found = self._source[row]
        return as_samples(found[0] if isinstance(found, tuple | list) else found)

    def _many(self, rows: Any) -> Tensor:
        if isinstance(self._source, np.ndarray):
            return as_samples(self._source[rows])
        return torch.stack([self._one(int(row)) for row in rows])


def are_fields(x: Any) -> bool:
    return isinstance(x, Fields)


def in_memory(x: Any) -> bool:
    """Whether the samples are one tensor."""
    return isinstance(x, Tensor)


def as_samples(values: Any) -> Tensor:
    """Bytes stay bytes, other whole numbers are int64, floats float32."""
    found = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    if found.dtype == torch.uint8 or found.dtype == torch.bool:
        return found
    return found.to(torch.float32 if found.is_floating_point() else torch.int64)


def chosen(x: Any, index: Any) -> Any:
    """Some of the samples; what is read lazily stays unread."""
    return x.rows(index) if isinstance(x, Lazy) else x[index]


def pieces(x: Any, size: int) -> Sequence[Any]:
    """All samples, in order, some at a time."""
    if isinstance(x, Tensor):
        return torch.split(x, size)
    return [x[start : start + size] for start in range(0, len(x), size)]


def blank(sample: Any, count: int) -> Any:
    """So many samples of zeros that look like this one."""
    if isinstance(sample, Fields):
        return Fields({name: blank(tensor, count) for name, tensor in sample.items()})
    return torch.stack([torch.zeros_like(sample)] * count)


def tensors_of(x: Any) -> Iterator[Tensor]:
    """All of it, some at a time, for a fingerprint."""
    parts = [x] if isinstance(x, Tensor) else pieces(x, 1024)
    for part in parts:
        yield from ([part] if isinstance(part, Tensor) else [part[name] for name in part])
