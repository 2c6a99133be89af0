"""Arrays from an untrusted .npz file: no pickle, no decompression bomb, one kind of error."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.errors import InputError

SMALL, MOST_EXPANSION = 256 * 2**20, 64  # bytes that any file may take in memory; above, so many times its own size
BROKEN = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    SyntaxError,
    NotImplementedError,
    RuntimeError,
    MemoryError,
    OverflowError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)  # RuntimeError: encrypted, or nested too deeply


class Damaged(InputError):
    """A file that cannot be read; ``message`` says why."""


def check_expansion(path: Path, content: int, what: str, size: int = 0, most: int = MOST_EXPANSION) -> None:
    """Refuse a small file that takes much memory; compressed honestly, data does not shrink that far.

    Of a folder, ``size`` is that of its files.
    """
    size = size or path.stat().st_size
    if content > max(SMALL, most * size):
        said = f"{path}: {size:,} bytes hold {content / 2**20:,.0f} MiB of {what}"
        raise InputError(said, "a file that expands so far is refused; write it again without compression")


def read_npz(path: Path, hint: str) -> dict[str, npt.NDArray[Any]]:
    """All arrays of the file by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_expansion(path, sum(member.file_size for member in archive.infolist()), "arrays")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except InputError:
        raise
    except BROKEN as error:
        raise Damaged(f"{path}: not a readable .npz file ({_reason(error)})", hint) from None
    for name, array in arrays.items():
        if not array.nbytes and any(array.shape[:1]):  # its length costs its writer nothing
            raise Damaged(f"{path}: {name} has {len(array):,} rows of nothing", hint)
    return arrays


def _reason(error: Exception) -> str:
    """One line; numpy's own advice for arrays of objects is to load them unsafely."""
    if "allow_pickle" in str(error):
        return "it holds Python objects, which are never loaded"
    said = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return str(said) or type(error).__name__
