"""Partitions in files: the index arrays of all clients and a JSON header in one .npz."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.data.arrays_file import read_npz
from fedapa.data.partitions.partition import Partition, fingerprint, lengths
from fedapa.data.partitions.partition_math import Index
from fedapa.errors import InputError
from fedapa.store.atomic_io import write_atomically

FORMAT = "fedapa-partition-1"


def save(partition: Partition, path: Path) -> None:
    """Write index arrays and a JSON header into one .npz, atomically."""
    header = {"format": FORMAT, "rule": partition.rule, "fingerprint": fingerprint(partition)}
    arrays = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    for name, part in (("train", partition.train), ("test", partition.test)):
        arrays[name] = np.concatenate(part).astype("<i8")
        arrays[f"{name}_lengths"] = lengths(part).astype("<i8")
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_atomically(Path(path), content.getvalue())


def load(path: Path) -> Partition:
    """Read a file written by `save`; a damaged or other file is refused."""
    header, arrays = _read(Path(path))
    try:
        train, test = (_split_lists(arrays[name], arrays[f"{name}_lengths"]) for name in ("train", "test"))
        partition = Partition(train, test, header["rule"])
        intact = header["fingerprint"] == fingerprint(partition) and len(train) == len(test)
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_partition(path, f"its arrays are damaged ({error})") from error
    if not intact:
        raise _not_a_partition(path, "its indices do not match its fingerprint")
    return partition


def _read(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    try:
        path.stat()
        arrays = read_npz(path, "")
        header = json.loads(arrays["header"].tobytes())
        recognised = header["format"] == FORMAT
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such partition file", hint="make one with 'fedapa data split'") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _not_a_partition(path, str(error).splitlines()[0] if str(error) else "it is empty") from error
    if not recognised:
        raise _not_a_partition(path, f"its format is {header['format']!r}, not {FORMAT!r}")
    return header, arrays


def _not_a_partition(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: not a sound partition file: {reason}", hint="make it again with 'fedapa data split'")


def _split_lists(values: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> tuple[Index, ...]:
    if values.dtype.kind != "i" or lengths.dtype.kind != "i" or lengths.sum() != values.size:
        raise ValueError("lengths and indices disagree")
    return tuple(np.split(values.astype(np.int64), np.cumsum(lengths)[:-1]))
