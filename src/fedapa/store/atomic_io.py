"""Atomic file writes; needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from fedapa.errors import InputError, RunError

Piece = bytes | memoryview


def make_folder(folder: Path) -> Path:
    """The folder and its parents, there even after a power cut: a new entry is safe once its parent was synced."""
    try:
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in new:
            _sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"cannot create {folder}: {error.strerror}", "choose another folder") from error
    return folder


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | Iterable[Piece]) -> None:
    """All of it or nothing: a reader never sees a half-written file, not even after a power cut."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(aside, "wb") as file:
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
