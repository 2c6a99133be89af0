"""Download a file from its official location, check its hash, unpack it. The only module that touches the network."""

import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from fedapa.errors import FedapaError, InputError, RunError

CHUNK = 1 << 18
TIMEOUT_SECONDS = 30


class Download(NamedTuple):
    url: str
    md5: str  # as published beside the file; guards against accidents, https against the rest
    sha256: str = ""  # where known, it is the one that is checked

    @property
    def hash(self) -> str:
        return f"sha256:{self.sha256}" if self.sha256 else f"md5:{self.md5}"

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


class Progress:
    """The four calls that pooch makes to a progress bar, as one line of percentages on stderr."""

    def __init__(self, label: str) -> None:
        self.label, self.total, self.done, self.shown = label, 0, 0, -1

    def update(self, amount: int) -> None:
        self.done = min(self.done + amount, self.total)
        percent = 100 * self.done // self.total if self.total else 0
        if percent != self.shown:
            self.shown = percent
            print(f"\r{self.label} {percent:3d} %", end="", file=sys.stderr, flush=True)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        print(file=sys.stderr)


def download(item: Download, folder: Path, progress: bool) -> Path:
    """The file in the folder, downloaded if it is not there with the right hash. Never a partial file."""
    import pooch

    make_folder(folder)
    pooch.get_logger().setLevel("WARNING")
    bar = Progress(item.file_name) if progress else False
    downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=TIMEOUT_SECONDS)
    try:
        path = pooch.retrieve(item.url, item.hash, item.file_name, folder, downloader=downloader)
    except (OSError, ValueError) as error:
        raise _failed(item, folder, error) from error
    return Path(path)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be created: {error.strerror}", hint="choose another folder with --data-dir"
        ) from error


def _failed(item: Download, folder: Path, error: Exception) -> FedapaError:
    by_hand = f"or download it by hand into {folder}"
    if type(error) is ValueError:  # pooch's way to say that the hash differs
        return RunError(
            f"{item.url}: what arrived does not have the {item.hash.replace(':', ' ')} and was deleted",
            hint=f"try again later, {by_hand}",
        )
    return RunError(f"{item.url}: download failed: {_reason(error)}", hint=f"check the network, {by_hand}")


def _reason(error: Exception) -> str:
    """A short reason: the chain of nested messages that requests gives does not fit a line."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"HTTP status {status}" if status else getattr(error, "strerror", None) or type(error).__name__


def unpack(archive: Path, folder_name: str, files: Collection[str], check: Callable[[Path], object]) -> Path:
    """Put `folder_name` with these files beside the archive, all of it or nothing.

    The files are unpacked into a temporary neighbour, checked there, and moved in place by renaming.
    """
    target = archive.parent / folder_name
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=archive.parent) as scratch:
        _extract(archive, {f"{folder_name}/{file}" for file in files}, Path(scratch, "new"))
        check(Path(scratch, "new"))
        if target.exists():
            target.rename(Path(scratch, "old"))
        Path(scratch, "new", folder_name).rename(target)
    return target


def _extract(archive: Path, wanted: Collection[str], folder: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            members = [member for member in tar if member.isfile() and member.name in wanted]
            tar.extractall(folder, members, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise InputError(f"{archive}: not a complete tar.gz: {error}", hint="delete it and fetch again") from error
    except OSError as error:
        raise RunError(f"{archive}: cannot be unpacked: {error.strerror or error}", hint="check the disk") from error
