"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), from their binary or their Python batches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedapa.data.dataset import Layout, SourceInfo, by_times, checked_labels, damaged, unreadable
from fedapa.data.download import Download

if TYPE_CHECKING:
    from fedapa.data.dataset import Bytes, Examples, Labels

    Batch = Callable[[Path, int, int], Examples]

CIFAR_SHAPE = (3, 32, 32)
CIFAR_PIXELS = 3 * 32 * 32


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
    import numpy as np

    parts = [batch(path, count // len(paths), info.classes) for path in paths]
    _check_balance(info, paths[0], np.concatenate([y for _, y in parts]), count)
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _check_balance(info: SourceInfo, path: Path, y: Labels, count: int) -> None:
    """CIFAR has equally many samples of every class: files of two versions mixed up would not."""
    import numpy as np

    counts = np.bincount(y, minlength=info.classes)
    if counts.min() != counts.max():
        expected = f"{count // info.classes} samples of every class"
        raise damaged(path.parent, expected, f"{counts.min()} to {counts.max()}")


# --- binary version ------------------------------------------------------------------------------


def read_cifar_binary(path: Path, count: int, classes: int, label_bytes: int) -> tuple[Bytes, Labels]:
    """Records of label bytes (coarse before fine in CIFAR-100; the last one counts) and 3072 pixels."""
    import numpy as np

    record = label_bytes + CIFAR_PIXELS
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise unreadable(path, error) from error
    if content.size != count * record:
        raise damaged(path, f"{count * record:,} bytes ({count:,} records of {record})", f"{content.size:,}")
    rows = content.reshape(count, record)
    labels = checked_labels(path, rows[:, label_bytes - 1], classes)
    return rows[:, label_bytes:].reshape(count, *CIFAR_SHAPE), labels


# --- Python version ------------------------------------------------------------------------------


class Recipe:
    """Stands in for numpy's own constructors while a pickle is read.

    It only remembers what it was called with. Neither numpy nor anything else runs on the content of the
    file before its shape, type and length have been checked.
    """

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def latin1(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 spells bytes in an old pickle protocol (_codecs.encode), for that one codec only."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding}")
    return text.encode("latin1")


class RestrictedUnpickler(pickle.Unpickler):
    """Reads containers, numbers, text and plain numpy arrays; refuses every other name unseen."""

    ADMITTED: ClassVar[dict[tuple[str, str], Callable[..., Any]]] = {
        ("numpy", "ndarray"): Recipe,
        ("numpy", "dtype"): Recipe,
        ("numpy.core.multiarray", "_reconstruct"): Recipe,
        ("numpy._core.multiarray", "_reconstruct"): Recipe,
        ("numpy.core.numeric", "_frombuffer"): Recipe,
        ("numpy._core.numeric", "_frombuffer"): Recipe,
        ("_codecs", "encode"): latin1,
    }

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        admitted = self.ADMITTED.get((module, name))
        if admitted is None:
            raise pickle.UnpicklingError(f"the forbidden name {module}.{name}")
        return admitted


def read_cifar_python(path: Path, count: int, classes: int, label_key: str) -> tuple[Bytes, Labels]:
    """A CIFAR -python batch: a dict of 'data' [count, 3072] and a list of labels."""
    import numpy as np

    content = _unpickle(path)
    try:
        batch = {_text(key): value for key, value in content.items()}
        pixels = _array(batch["data"])
        labels = np.asarray(batch[label_key])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"'data' and '{label_key}' of a CIFAR batch", "something else") from error
    if pixels.shape != (count, CIFAR_PIXELS):
        raise damaged(path, f"{count} x {CIFAR_PIXELS} pixels", by_times(pixels.shape))
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise damaged(path, f"{count} whole-number labels", f"{by_times(labels.shape)} of type {labels.dtype}")
    return pixels.reshape(count, *CIFAR_SHAPE), checked_labels(path, labels, classes)


def _unpickle(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            return RestrictedUnpickler(file, encoding="latin1").load()
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:  # a damaged pickle may raise anything at all
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise damaged(path, "a CIFAR batch", reason) from error


def _text(key: str | bytes) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else key


def _array(recipe: Recipe) -> Bytes:
    """Build the array that a pickle described; only unsigned bytes will do."""
    import numpy as np

    if recipe.state is None:  # _frombuffer of pickle protocol 5
        raw, kind, shape, order = recipe.arguments
    else:  # the state of an ndarray: version, shape, dtype, is_fortran, bytes
        _, shape, kind, is_fortran, raw = recipe.state
        order = "F" if is_fortran else "C"
    if _text(kind.arguments[0]) not in ("u1", "|u1"):
        raise ValueError(f"pixels of type {kind.arguments[0]}")
    content = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.ascontiguousarray(np.frombuffer(content, np.uint8).reshape(shape, order=order))


# --- the data sets -------------------------------------------------------------------------------

URL = "https://www.cs.toronto.edu/~kriz"
CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


def _numbered(suffix: str) -> tuple[str, ...]:
    return tuple(f"data_batch_{i}{suffix}" for i in range(1, 6))


DATASETS = (
    SourceInfo(
        "cifar10",
        "CIFAR-10: photos of animals and vehicles, 32 x 32 colour",
        train=50_000,
        test=10_000,
        class_names=tuple(CIFAR10_CLASSES.split()),
        shape=(3, 32, 32),
        layouts=(
            Layout(
                "cifar-10-batches-bin",
                _numbered(".bin"),
                ("test_batch.bin",),
                partial(cifar_binary, label_bytes=1),
            ),
            Layout(
                "cifar-10-batches-py",
                _numbered(""),
                ("test_batch",),
                partial(cifar_python, label_key="labels"),
            ),
        ),
        downloads=(Download(f"{URL}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
    ),
    SourceInfo(
        "cifar100",
        "CIFAR-100: photos of 100 kinds of things, 32 x 32 colour, fine labels",
        train=50_000,
        test=10_000,
        class_names=tuple(CIFAR100_CLASSES.split()),
        shape=(3, 32, 32),
        layouts=(
            Layout(
                "cifar-100-binary",
                ("train.bin",),
                ("test.bin",),
                partial(cifar_binary, label_bytes=2),
            ),
            Layout(
                "cifar-100-python",
                ("train",),
                ("test",),
                partial(cifar_python, label_key="fine_labels"),
            ),
        ),
        downloads=(Download(f"{URL}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
    ),
)
