"""What a data set is: its arrays, its description for a listing, and what all readers of files share.

Every reader checks the number of samples in a file, so that a truncated, half-downloaded or foreign file is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedapa.data.download import Download
from fedapa.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fedapa.data.site_description import Sites

    Bytes = npt.NDArray[np.uint8]
    Labels = npt.NDArray[np.int64]
    Samples = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    Targets = Labels | npt.NDArray[np.float32]
    Examples = tuple[Samples, Targets]


@dataclass(frozen=True)
class Dataset:
    """Images as stored, one byte per pixel, mean and std apply to x / 255; or rows of floats."""

    name: str
    x_train: Samples  # [n, channels, height, width], or [n, columns]
    y_train: Targets  # [n] classes, or numbers
    x_test: Samples
    y_test: Targets
    classes: int  # 0: numbers
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Layout(NamedTuple):
    """One layout of a data set on disk; a data set of sites needs no ``read``."""

    folder: str  # below the data folder, or absolute
    train: tuple[str, ...]
    test: tuple[str, ...]
    read: Callable[[SourceInfo, Sequence[Path], int], Examples] | None = None


@dataclass(frozen=True)
class SourceInfo:
    """All that a listing needs, without opening a file, and how to get the data."""

    name: str
    description: str
    train: int
    test: int
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    layouts: tuple[Layout, ...] = ()
    downloads: tuple[Download, ...] = ()
    examples: Callable[[], tuple[Examples, Examples]] | None = None  # train and test set that come with a library
    sites: tuple[str, ...] = ()  # names of the clients, if the data set comes partitioned
    describe: Callable[[Sites, Path], Sites] | None = None  # the files of these sites in their folder

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(item.url for item in self.downloads)


def damaged(path: Path, expected: str, found: str) -> InputError:
    """The one error of all readers: which file, what it should hold, what it holds.

    Readers do not know what the data set is called; `sources.load` puts it in the place of NAME.
    """
    return InputError(
        f"{path}: expected {expected}, found {found}",
        hint="delete it and run 'fedapa data fetch NAME'",
    )


def checked_labels(path: Path, labels: npt.NDArray[Any], classes: int) -> Labels:
    """Labels as int64, each of them one of the classes."""
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        raise damaged(path, f"labels in 0..{classes - 1}", f"label {_first_outside(labels, classes)}")
    return labels.astype("int64")


def _first_outside(labels: npt.NDArray[Any], classes: int) -> int:
    return int(labels[(labels < 0) | (labels >= classes)][0])


def unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read: {error.strerror or error}", hint="check the file and its rights")


def by_times(shape: Sequence[int]) -> str:
    return " x ".join(f"{n}" for n in shape)
