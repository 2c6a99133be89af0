"""A partition: the sample indices of every client, their fingerprint and their label counts."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.data.partitions.partition_math import Index
from fedapa.data.partitions.sample_views import View, numbers, views_of
from fedapa.errors import InputError


@dataclass(frozen=True)
class Partition:
    """Sorted sample indices of every client, and the rule, parameters and seed that gave them."""

    train: tuple[Index, ...]
    test: tuple[Index, ...]
    rule: dict[str, object]

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def views(self) -> tuple[View, ...]:
        """What every client does with its samples; where nobody does anything, views that change nothing."""
        return views_of(self.rule, self.clients)


def fingerprint(partition: Partition) -> str:
    """16 hex digits that change with any index and any view of any client, equal on every platform."""
    return fingerprint_of(partition.train, partition.test, views=partition.views)


def fingerprint_of(*parts: Sequence[Index], views: tuple[View, ...] = ()) -> str:
    digest = hashlib.sha256()
    seen = [np.array(row, np.int64) for row in numbers(views)]
    for part in (*parts, seen) if seen else parts:
        digest.update(_little_endian([len(part), *lengths(part)]))
        for index in part:
            digest.update(_little_endian(index))
    return digest.hexdigest()[:16]


def _little_endian(numbers: npt.ArrayLike) -> bytes:
    return np.asarray(numbers).astype("<i8").tobytes()


def lengths(part: Sequence[Index]) -> Index:
    return np.array([index.size for index in part], np.int64)


class LabelCounts(NamedTuple):
    train: Index  # [M, C]
    test: Index


def label_counts(partition: Partition, y_train: npt.ArrayLike, y_test: npt.ArrayLike) -> LabelCounts:
    """How many samples of every class every client has."""
    labels = np.asarray(y_train), np.asarray(y_test)
    check_fits(partition, labels[0].size, labels[1].size)
    classes = 1 + max(int(y.max()) for y in labels)
    return LabelCounts(
        *(
            np.stack([_counted(y[index], view, classes) for index, view in zip(part, partition.views, strict=True)])
            for y, part in zip(labels, (partition.train, partition.test), strict=True)
        )
    )


def _counted(y: npt.NDArray[np.integer[Any]], view: View, classes: int) -> Index:
    return np.bincount(view.label(y), minlength=classes)


def check_fits(partition: Partition, n_train: int, n_test: int) -> None:
    """Refuse a partition whose indices point outside a data set of this size."""
    for part, lists, size in (("train", partition.train, n_train), ("test", partition.test, n_test)):
        for i, index in enumerate(lists):
            if index.size and (index.min() < 0 or index.max() >= size):
                raise InputError(
                    f"partition: client {i} has {part} index {_outside(index)}, the data set has"
                    f" {size:,} {part} samples",
                    hint="use the data set that the partition was made for",
                )


def _outside(index: Index) -> int:
    return int(index.min() if index.min() < 0 else index.max())
