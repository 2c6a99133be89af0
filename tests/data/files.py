"""Tiny files in the canonical formats, so that every reader is tested without real data."""

import gzip
import pickle
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedapa.data.dataset import SourceInfo
from fedapa.data.sources import SOURCES

RNG = np.random.default_rng(0)


def pixels(n: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, *shape), dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.asarray(array.shape, ">u4").tobytes() + array.tobytes()


def shrink(monkeypatch: pytest.MonkeyPatch, name: str, train: int, test: int, **changes: object) -> SourceInfo:
    """Let a data set consist of this many samples, and keep files of the system out of sight."""
    layouts = tuple(layout for layout in SOURCES[name].layouts if not layout.folder.startswith("/"))
    info = replace(SOURCES[name], train=train, test=test, **({"layouts": layouts} | changes))
    monkeypatch.setitem(SOURCES, name, info)
    return info


def write_fmnist(folder: Path, train: int = 30, test: int = 10, packed: bool = True) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        "train-images-idx3-ubyte": pixels(train, 28, 28),
        "train-labels-idx1-ubyte": (np.arange(train) % 10).astype(np.uint8),
        "t10k-images-idx3-ubyte": pixels(test, 28, 28),
        "t10k-labels-idx1-ubyte": (np.arange(test) % 10).astype(np.uint8),
    }
    for name, array in arrays.items():
        content = idx_bytes(array)
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return arrays


def cifar_labels(n: int, classes: int) -> np.ndarray:
    return (np.arange(n) % classes).astype(np.uint8)


def binary_records(x: np.ndarray, *labels: np.ndarray) -> bytes:
    return np.concatenate([*(y[:, None] for y in labels), x.reshape(len(x), -1)], axis=1).tobytes()


def write_cifar10_binary(folder: Path) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = pixels(60, 3, 32, 32), cifar_labels(60, 10)
    for i in range(5):
        part = slice(10 * i, 10 * i + 10)
        (folder / f"data_batch_{i + 1}.bin").write_bytes(binary_records(x[part], y[part]))
    (folder / "test_batch.bin").write_bytes(binary_records(x[50:], y[50:]))
    return x


def write_cifar100_binary(folder: Path) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    x, fine = pixels(300, 3, 32, 32), cifar_labels(300, 100)
    coarse = (fine // 5).astype(np.uint8)
    (folder / "train.bin").write_bytes(binary_records(x[:200], coarse[:200], fine[:200]))
    (folder / "test.bin").write_bytes(binary_records(x[200:], coarse[200:], fine[200:]))
    return x


def python3_batch(x: np.ndarray, labels: np.ndarray, key: str, protocol: int, as_bytes: bool = False) -> bytes:
    batch = {"data": x.reshape(len(x), -1), key: labels.tolist(), "batch_label": "tiny"}
    return pickle.dumps({k.encode() if as_bytes else k: v for k, v in batch.items()}, protocol)


def python2_batch(x: np.ndarray, labels: np.ndarray, key: str) -> bytes:
    """What Python 2 wrote, opcode by opcode: 8-bit strings as keys and as the bytes of the array."""
    short = b"U" + bytes([len(key)]) + key.encode()
    kind = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
    shape = b"M" + struct.pack("<H", len(x)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    raw = b"T" + struct.pack("<i", x.size) + x.tobytes()
    array = empty + b"(K\x01" + shape + kind + b"\x89" + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([int(y)]) for y in labels) + b"e"
    return b"\x80\x02}(" + b"U\x04data" + array + short + numbers + b"u."
