"""Atomic file writes; needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from fedapa.errors import InputError, RunError

Piece = bytes | memoryview
PUBLIC = 0o666  # for what is made to be shown


def make_folder(folder: Path) -> Path:
    """The folder and its parents, there even after a power cut: a new entry is safe once its parent was synced. What is
    new is for its owner alone: models and scores tell about the rows that they come from."""
    try:
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(new):
            path.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(path.parent)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {folder}: {error.strerror}", "choose another folder") from error
    return folder


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | Iterable[Piece], mode: int = 0o600) -> None:
    """All of it or nothing: a reader never sees a half-written file, not even after a power cut. It is for its owner
    alone unless ``mode`` lets others read, as far as the umask does."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(aside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}", "is the disk full or the folder read-only?") from error
    _sync_folder(path.parent)


def write_json(path: Path, content: object) -> None:
    write_atomically(path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
