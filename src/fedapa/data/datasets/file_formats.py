"""Readers of the canonical files: idx (Fashion-MNIST) and CIFAR's binary and Python batches.

Every reader is told how many samples the file must hold and accepts nothing else, so that a truncated,
half-downloaded or foreign file can never pass for data.
"""

import gzip
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedapa.errors import InputError

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

CIFAR_SHAPE = (3, 32, 32)
CIFAR_PIXELS = 3 * 32 * 32
IDX_UINT8 = 0x08  # third byte of the magic number: the type code of unsigned bytes


def damaged(path: Path, expected: str, found: str) -> InputError:
    """The one error of all readers: which file, what it should hold, what it holds.

    Readers do not know what the data set is called; `sources.load` puts it in the place of NAME.
    """
    return InputError(
        f"{path}: expected {expected}, found {found}",
        hint="delete it and run 'fedapa data fetch NAME'",
    )


def checked_labels(path: Path, labels: npt.NDArray[Any], classes: int) -> Labels:
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        raise damaged(path, f"labels in 0..{classes - 1}", f"label {_first_outside(labels, classes)}")
    return labels.astype(np.int64)


def _first_outside(labels: npt.NDArray[Any], classes: int) -> int:
    return int(labels[(labels < 0) | (labels >= classes)][0])


# --- idx ----------------------------------------------------------------------------------------


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The unsigned bytes of an idx file (gzipped if it is called .gz) that must have this shape."""
    header = _idx_header(shape)
    size = len(header) + int(np.prod(shape))
    content = _read_at_most(path, size + 1)
    if content[: len(header)] != header:
        raise damaged(path, f"an idx file of {_words(shape)} bytes", _describe_idx(content))
    if len(content) != size:
        found = "more" if len(content) > size else f"{len(content):,}: the file is truncated"
        raise damaged(path, f"{size:,} bytes", found)
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def _idx_header(shape: tuple[int, ...]) -> bytes:
    return bytes([0, 0, IDX_UINT8, len(shape)]) + np.asarray(shape, ">u4").tobytes()


def _read_at_most(path: Path, size: int) -> bytes:
    """One byte more than expected is asked for: it bounds memory and makes gzip verify its checksum."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, "a complete gzip file", str(error)) from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read: {error.strerror or error}", hint="check the file and its rights")


def _describe_idx(content: bytes) -> str:
    dimensions = content[3] if len(content) >= 4 else 0
    if content[:3] != bytes([0, 0, IDX_UINT8]) or len(content) < 4 + 4 * dimensions:
        return f"one that starts with {content[:4].hex(' ') or 'nothing'}"
    return f"{_words(tuple(np.frombuffer(content, '>u4', dimensions, 4).tolist()))} bytes"


def _words(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{n}" for n in shape)


# --- CIFAR, binary version -----------------------------------------------------------------------


def read_cifar_binary(path: Path, count: int, classes: int, label_bytes: int) -> tuple[Bytes, Labels]:
    """Records of label bytes (coarse before fine in CIFAR-100; the last one counts) and 3072 pixels."""
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


# --- CIFAR, Python version -----------------------------------------------------------------------


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
    content = _unpickle(path)
    try:
        batch = {_text(key): value for key, value in content.items()}
        pixels = _array(batch["data"])
        labels = np.asarray(batch[label_key])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"'data' and '{label_key}' of a CIFAR batch", "something else") from error
    if pixels.shape != (count, CIFAR_PIXELS):
        raise damaged(path, f"{count} x {CIFAR_PIXELS} pixels", _words(pixels.shape))
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise damaged(path, f"{count} whole-number labels", f"{_words(labels.shape)} of type {labels.dtype}")
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
    if recipe.state is None:  # _frombuffer of pickle protocol 5
        raw, kind, shape, order = recipe.arguments
    else:  # the state of an ndarray: version, shape, dtype, is_fortran, bytes
        _, shape, kind, is_fortran, raw = recipe.state
        order = "F" if is_fortran else "C"
    if _text(kind.arguments[0]) not in ("u1", "|u1"):
        raise ValueError(f"pixels of type {kind.arguments[0]}")
    content = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.ascontiguousarray(np.frombuffer(content, np.uint8).reshape(shape, order=order))
