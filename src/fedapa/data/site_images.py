"""Images of a site: a folder of folders (one per class), or a table that names the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.data.arrays_file import BROKEN
from fedapa.errors import InputError

Pixels = npt.NDArray[np.uint8]
KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


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
    arrays: list[Pixels] = []
    for file in files:
        with _opened(file) as image:
            if size is not None and image.size != (size[1], size[0]):
                image = image.convert(mode).resize((size[1], size[0]))
            array = np.asarray(image.convert(mode), dtype=np.uint8)
        if arrays and array.shape != arrays[0].shape:
            one, other = (f"{a.shape[1]}x{a.shape[0]}" for a in (arrays[0], array))
            raise InputError(
                f"{file} has {other} pixels, {files[0].name} has {one}",
                "resize the images, or set image_size = [height, width]",
            )
        arrays.append(array)
    stacked = np.stack(arrays)
    return np.ascontiguousarray(stacked[:, None] if mode == "L" else np.moveaxis(stacked, -1, 1))


def _opened(file: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(file.read_bytes()))
        image.load()
    except FileNotFoundError:
        raise InputError(f"{file} does not exist", "are paths relative to the table's own folder?") from None
    except (*BROKEN, Image.DecompressionBombError) as error:
        reason = "of no known kind" if isinstance(error, UnidentifiedImageError) else str(error)
        raise InputError(f"{file} is not a readable image ({reason})", "fix it or remove it") from None
    return image


def paths_beside(table: Path, cells: Sequence[str]) -> Iterator[Path]:
    """Paths that a table names, relative to the table's folder."""
    for cell in cells:
        yield table.parent / cell
