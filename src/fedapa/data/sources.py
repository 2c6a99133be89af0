"""The list of data sets: look one up by name, find its files, read it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from fedapa.data import datasets
from fedapa.data.dataset import Dataset, Layout, SourceInfo
from fedapa.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedapa.data.dataset import Examples


def _listed() -> dict[str, SourceInfo]:
    """Whatever the files of the folder ``datasets`` offer: small images before large ones, then tables, then sites."""
    modules = [import_module(f"{datasets.__name__}.{module.name}") for module in iter_modules(datasets.__path__)]
    found: list[SourceInfo] = [info for module in modules for info in module.DATASETS]
    return {info.name: info for info in sorted(found, key=_place)}


def _place(info: SourceInfo) -> tuple[bool, bool, int, int]:
    return bool(info.sites), len(info.shape) < 3, math.prod(info.shape), info.classes


SOURCES = _listed()
OWN = "own"  # the source of a run whose sites bring their own data


def load(name: str, data_dir: Path | None = None) -> Dataset:
    """Read a data set, from a library or from its files in the data folder."""
    info = source(name)
    if info.sites:
        raise InputError(f"{name} comes in sites and is not dealt to clients", f'write [sites] source = "{name}"')
    if info.examples is not None:
        return _dataset(info, *info.examples())
    folder, layout = located(info, data_folder(data_dir))
    train = _read(info, layout, folder, layout.train, info.train)
    test = _read(info, layout, folder, layout.test, info.test)
    return _dataset(info, train, test)


def _read(info: SourceInfo, layout: Layout, folder: Path, files: Sequence[str], count: int) -> Examples:
    assert layout.read is not None
    try:
        return layout.read(info, [_on_disk(folder, file) for file in files], count)
    except InputError as error:
        raise InputError(error.message, hint=error.hint.replace("NAME", info.name)) from error


def source(name: str) -> SourceInfo:
    if name in SOURCES:
        return SOURCES[name]
    if name == OWN:
        hint = "`fedapa coordinator run` plays it with them; to simulate it, describe their files: [sites]"
        raise InputError("the data of this config are at the sites", hint)
    hint = did_you_mean(name, SOURCES, f"known data sets: {', '.join(SOURCES)}")
    raise InputError(f"there is no data set called '{name}'", hint)


def data_folder(explicit: Path | str | None = None) -> Path:
    """The folder that was asked for, else FEDAPA_DATA, else ~/.cache/fedapa."""
    return Path(explicit or os.environ.get("FEDAPA_DATA") or "~/.cache/fedapa").expanduser()


def locate(name: str, data_dir: Path | None = None) -> Path:
    """The folder where all files of a data set are."""
    return located(source(name), data_folder(data_dir))[0]


def is_present(name: str, data_dir: Path | None = None) -> bool:
    """Are all files there? (Only reading shows whether they are valid.)"""
    info, base = source(name), data_folder(data_dir)
    return not info.layouts or any(not _missing(base, layout) for layout in info.layouts)


def located(info: SourceInfo, base: Path) -> tuple[Path, Layout]:
    """The first layout whose files are all there."""
    for layout in info.layouts:
        if not _missing(base, layout):
            return base / layout.folder, layout
    raise _not_found(info, base)


def _missing(base: Path, layout: Layout) -> list[str]:
    files = layout.train + layout.test
    return [file for file in files if not _on_disk(base / layout.folder, file).is_file()]


def _on_disk(folder: Path, file: str) -> Path:
    """A .gz file may also be there unpacked."""
    packed, plain = folder / file, folder / file.removesuffix(".gz")
    return plain if plain.is_file() and not packed.is_file() else packed


def _not_found(info: SourceInfo, base: Path) -> InputError:
    """Name the files that are missing from a half-filled folder, else the folders that were tried."""
    where = base / info.layouts[0].folder
    hint = f"run 'fedapa data fetch {info.name}', or put the files into {where}"
    for layout in info.layouts:
        missing = _missing(base, layout)
        if len(missing) < len(layout.train + layout.test):
            return InputError(f"{info.name}: {base / layout.folder} lacks {', '.join(missing)}", hint=hint)
    folders = ", ".join(dict.fromkeys(str(base / layout.folder) for layout in info.layouts))
    return InputError(f"{info.name}: no data files found (looked in {folders})", hint=hint)


def _dataset(info: SourceInfo, train: Examples, test: Examples) -> Dataset:
    """Bytes are scaled by 0.5 / 0.5, as the released FedAPA code does for every data set; floats are scaled already."""
    centre, scale = (0.5, 0.5) if train[0].dtype == "uint8" else (0.0, 1.0)
    mean, std = (centre,) * info.shape[0], (scale,) * info.shape[0]
    return Dataset(info.name, *train, *test, info.classes, info.class_names, mean=mean, std=std)
