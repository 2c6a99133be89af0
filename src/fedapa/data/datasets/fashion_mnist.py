"""Fashion-MNIST (Xiao, Rasul, Vollgraf; 2017): pairs of idx files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedapa.data.dataset import Layout, SourceInfo, by_times, checked_labels, damaged, unreadable
from fedapa.data.download import Download

if TYPE_CHECKING:
    from fedapa.data.dataset import Bytes, Examples

IDX_UINT8 = 0x08  # third byte of the magic number: the type code of unsigned bytes


def idx_pair(info: SourceInfo, paths: Sequence[Path], count: int) -> Examples:
    images, labels = paths
    x = read_idx(images, (count, *info.shape[1:]))
    return x.reshape(count, *info.shape), checked_labels(labels, read_idx(labels, (count,)), info.classes)


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The unsigned bytes of an idx file (gzipped if it is called .gz) that must have this shape."""
    import numpy as np

    header = _idx_header(shape)
    size = len(header) + math.prod(shape)
    content = _read_at_most(path, size + 1)
    if content[: len(header)] != header:
        raise damaged(path, f"an idx file of {by_times(shape)} bytes", _describe_idx(content))
    if len(content) != size:
        found = "more" if len(content) > size else f"{len(content):,}: the file is truncated"
        raise damaged(path, f"{size:,} bytes", found)
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def _idx_header(shape: tuple[int, ...]) -> bytes:
    return bytes([0, 0, IDX_UINT8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def _read_at_most(path: Path, size: int) -> bytes:
    """One byte more than expected is asked for: it bounds memory and makes gzip verify its checksum."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, "a complete gzip file", str(error)) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _describe_idx(content: bytes) -> str:
    dimensions = content[3] if len(content) >= 4 else 0
    if content[:3] != bytes([0, 0, IDX_UINT8]) or len(content) < 4 + 4 * dimensions:
        return f"one that starts with {content[:4].hex(' ') or 'nothing'}"
    return f"{by_times(struct.unpack_from(f'>{dimensions}I', content, 4))} bytes"


CLASSES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
SHA256 = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
FILES = tuple(MD5)
FOLDERS = (
    "FashionMNIST/raw",  # as torchvision lays it out
    "fashion-mnist",
    ".",
    "/usr/share/datasets/fashion-mnist",  # Debian's package dataset-fashion-mnist
)
DATASETS = (
    SourceInfo(
        "fmnist",
        "Fashion-MNIST: articles of clothing, 28 x 28 grey",
        train=60_000,
        test=10_000,
        class_names=tuple(CLASSES.split(",")),
        shape=(1, 28, 28),
        layouts=tuple(Layout(folder, FILES[:2], FILES[2:], idx_pair) for folder in FOLDERS),
        downloads=tuple(Download(f"{URL}/{file}", md5, SHA256[file]) for file, md5 in MD5.items()),
    ),
)
