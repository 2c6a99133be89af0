"""Download a data set and check it by reading it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fedapa.data.dataset import SourceInfo
from fedapa.data.download import download, unpack
from fedapa.data.sources import data_folder, load, located, source
from fedapa.errors import InputError


def fetch(name: str, data_dir: Path | None = None, progress: bool = True) -> Path:
    """Download what is missing or damaged; the folder that holds the data set afterwards."""
    info, base = source(name), data_folder(data_dir)
    if not info.downloads or _is_sound(name, base):
        return located(info, base)[0] if info.layouts else base
    if info.downloads[0].file_name.endswith(".tar.gz"):
        return _fetch_archive(info, base, progress)
    folder = base / info.layouts[0].folder
    for item in info.downloads:
        download(item, folder, progress)
    _check(info, base)
    return folder


def _check(info: SourceInfo, base: Path) -> None:
    """Read all of it once: what can be read is sound."""
    if info.sites:
        from fedapa.data.sites import read_source  # needs torch, which images do not

        read_source(info.name, base)
    else:
        load(info.name, base)


def _is_sound(name: str, base: Path) -> bool:
    try:
        _check(source(name), base)
    except InputError:
        return False
    return True


def _fetch_archive(info: SourceInfo, base: Path, progress: bool) -> Path:
    layout = info.layouts[0]
    archive = download(info.downloads[0], base, progress)
    folder = unpack(archive, layout.folder, layout.train + layout.test, partial(load, info.name))
    archive.unlink()
    return folder
