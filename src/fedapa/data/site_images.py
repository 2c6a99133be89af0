"""Images of a site: a folder of folders (one per class), or a table that names the files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.data.arrays_file import BROKEN, check_expansion
from fedapa.errors import InputError

Pixels = npt.NDArray[np.uint8]
KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
# So many times the files' size pixels may take, above 256 MiB. Measured: pages of text 85, drawings 70, a JPEG of one
# colour 192; a PNG of one colour 900, and 24,000 where it has one bit per pixel and is read as RGB.
MOST_EXPANSION = 256
LARGEST_PIXELS = 16 * 2**30  # bytes; images are held in memory


def in_folder(folder: Path) -> list[tuple[Path, str]]:
    """(file, class) of ``class/*.png`` and the like, in the order of their names."""
    found = [
        (file, sub.name)
        for sub in sorted(folder.iterdir())
        if sub.is_dir() and not sub.name.startswith(".")
        for file in sorted(sub.iterdir())
        if file.suffix.lower() in KINDS
    ]
    if not found:
        raise InputError(f"{folder} holds no class/image.png", f"one folder per class, images as {', '.join(KINDS)}")
    return found


def mode_of(file: Path) -> str:
    """L for a grey image, RGB for any other."""
    with _opened(file) as image:
        return "L" if image.mode in ("1", "L", "I", "I;16", "F") else "RGB"


def read_images(files: Sequence[Path], mode: str, size: tuple[int, int] | None = None) -> Pixels:
    """[n, channels, height, width]; all of one size, or all resized to (height, width)."""
    channels = 1 if mode == "L" else 3
    height, width = _checked_size(files, channels, size)
    images = np.empty((len(files), channels, height, width), dtype=np.uint8)
    for file, place in zip(files, images, strict=True):
        with _opened(file) as image:
            if image.size != (width, height):
                image = image.convert(mode).resize((width, height))
            place[:] = np.moveaxis(np.atleast_3d(np.asarray(image.convert(mode), dtype=np.uint8)), -1, 0)
    return images


def _checked_size(files: Sequence[Path], channels: int, wanted: tuple[int, int] | None) -> tuple[int, int]:
    """Height and width of every image, by headers alone: pixels are unpacked when all are known to fit."""
    sizes, stored = list[tuple[int, int]](), dict[tuple[int, int], int]()
    for file in files:
        with _opened(file) as image:
            sizes.append((image.height, image.width))
        check_expansion(file, math.prod(sizes[-1]) * channels, "pixels", most=MOST_EXPANSION)
        if not wanted and sizes[-1] != sizes[0]:
            one, other = (f"{width}x{height}" for height, width in (sizes[0], sizes[-1]))
            raise InputError(
                f"{file} has {other} pixels, {files[0].name} has {one}",
                "resize the images, or set image_size = [height, width]",
            )
        about = file.stat()
        stored[about.st_dev, about.st_ino] = about.st_size  # once, however often a table names it
    height, width = wanted or sizes[0]
    content = len(files) * channels * height * width
    if not wanted:  # else whoever chose the size chose what it takes
        check_expansion(files[0].parent, content, "pixels", sum(stored.values()), MOST_EXPANSION)
    if content > LARGEST_PIXELS:
        said = f"{files[0].parent}: {len(files):,} images take {content / 2**30:,.0f} GiB; they are held in memory"
        raise InputError(said, "set a smaller image_size = [height, width], or take fewer images")
    return height, width


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Its header; pixels are unpacked when somebody asks for them."""
    from PIL import Image, UnidentifiedImageError

    if not file.is_file():  # nor a device, which has no end
        raise InputError(f"{file} does not exist", "are paths relative to the table's own folder?")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is looked at here
            image = Image.open(file)
        with image:
            yield image
    except (*BROKEN, Image.DecompressionBombError) as error:
        reason = "of no known kind" if isinstance(error, UnidentifiedImageError) else str(error)
        raise InputError(f"{file} is not a readable image ({reason})", "fix it or remove it") from None


def paths_beside(table: Path, cells: Sequence[str]) -> Iterator[Path]:
    """Paths that a table names, relative to the table's folder."""
    for cell in cells:
        yield table.parent / cell
