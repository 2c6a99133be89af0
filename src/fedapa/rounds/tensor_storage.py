"""Storage for the server's tensors: in memory, or above a size limit in a memory-mapped file."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.errors import RunError

MAP_ABOVE_MB = 2048


class TensorStore:
    """Maps tensors of more than ``limit`` bytes to files in ``folder``; a file disappears with its tensor.

    Methods see ordinary tensors and compute the same bits. A mapped state is always given away to ``absorb``, since a
    copy of it would be in memory.
    """

    def __init__(self, limit: float = math.inf, folder: Path | None = None) -> None:
        self.limit, self.folder = limit, folder

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if math.prod(shape) * dtype.itemsize <= self.limit:
            return torch.empty(tuple(shape), dtype=dtype)
        return _mapped(self.folder or Path(tempfile.gettempdir()), shape, dtype)

    def copy(self, leaf: Tensor) -> Tensor:
        return self.empty(leaf.shape, leaf.dtype).copy_(leaf)

    def hold(self, tree: Mapping[str, Tensor]) -> Tree:
        """The same values, each tensor stored where it belongs; tensors that already are there are not copied."""
        return {name: leaf if self._is_stored(leaf) else self.copy(leaf) for name, leaf in tree.items()}

    def _is_stored(self, leaf: Tensor) -> bool:
        return leaf.device.type != "cpu" or (leaf.is_contiguous() and (leaf.nbytes <= self.limit or is_mapped(leaf)))


def is_mapped(leaf: Tensor) -> bool:
    return leaf.device.type == "cpu" and leaf.untyped_storage().filename is not None


def _mapped(folder: Path, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    count = math.prod(shape)
    try:
        handle, name = tempfile.mkstemp(".mapped", ".", folder)
        try:
            _reserve(handle, count * dtype.itemsize)
            return torch.from_file(name, shared=True, size=count, dtype=dtype).view(tuple(shape))
        finally:
            os.close(handle)
            os.unlink(name)  # the mapping keeps the space until it goes, however the process ends
    except OSError as error:
        size = f"{count * dtype.itemsize / 1e9:.1f} GB"
        raise RunError(
            f"cannot map {size} in {folder}: {error.strerror}", "raise run.mmap_above_mb, or free disk"
        ) from error


def _reserve(handle: int, size: int) -> None:
    """Take the disk space now: a full disk later would kill the process at some store."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.truncate(handle, size)
