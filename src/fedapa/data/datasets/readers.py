"""Whole data sets as arrays: from scikit-learn, from idx pairs, from CIFAR's batches.

Apart from ``sources``, so that a listing of the data sets needs no NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedapa.data.datasets.file_formats import (
    Bytes,
    Labels,
    checked_labels,
    damaged,
    read_cifar_binary,
    read_cifar_python,
    read_idx,
)

if TYPE_CHECKING:
    from fedapa.data.datasets.sources import SourceInfo

Examples = tuple[Bytes, Labels]


def digits() -> tuple[Examples, Examples]:
    """8 x 8 digits of scikit-learn; every sixth sample of every class is a test sample."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    y = labels.astype(np.int64)
    is_test = rank_in_class(y) % 6 == 5
    return (x[~is_test], y[~is_test]), (x[is_test], y[is_test])


def rank_in_class(y: Labels) -> Labels:
    """How many samples of the same class come before each sample."""
    counts = np.bincount(y)
    starts = np.cumsum(counts) - counts
    ranks = np.empty_like(y)
    ranks[np.argsort(y, kind="stable")] = np.arange(y.size) - np.repeat(starts, counts)
    return ranks


def idx_pair(info: SourceInfo, paths: Sequence[Path], count: int) -> Examples:
    images, labels = paths
    x = read_idx(images, (count, *info.shape[1:]))
    return x.reshape(count, *info.shape), checked_labels(labels, read_idx(labels, (count,)), info.classes)


Batch = Callable[[Path, int, int], Examples]


def cifar_binary(info: SourceInfo, paths: Sequence[Path], count: int, label_bytes: int) -> Examples:
    return _batches(
        lambda path, n, classes: read_cifar_binary(path, n, classes, label_bytes=label_bytes), info, paths, count
    )


def cifar_python(info: SourceInfo, paths: Sequence[Path], count: int, label_key: str) -> Examples:
    return _batches(
        lambda path, n, classes: read_cifar_python(path, n, classes, label_key=label_key), info, paths, count
    )


def _batches(batch: Batch, info: SourceInfo, paths: Sequence[Path], count: int) -> Examples:
    """Files of equal size, one after the other."""
    parts = [batch(path, count // len(paths), info.classes) for path in paths]
    _check_balance(info, paths[0], np.concatenate([y for _, y in parts]), count)
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _check_balance(info: SourceInfo, path: Path, y: Labels, count: int) -> None:
    """CIFAR has equally many samples of every class: files of two versions mixed up would not."""
    counts = np.bincount(y, minlength=info.classes)
    if counts.min() != counts.max():
        expected = f"{count // info.classes} samples of every class"
        raise damaged(path.parent, expected, f"{counts.min()} to {counts.max()}")
