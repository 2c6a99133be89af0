"""Atomic file writes; needs no torch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fedapa.errors import InputError, RunError

Piece = bytes | memoryview
PUBLIC = 0o666  # for files that are meant to be shared


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents, safe against a power cut: each parent is synced. Only the owner can read new
    folders, because models and scores reveal something about the rows behind them."""
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
    """Write a file atomically: no reader sees a half-written one, even after a power cut. Only its owner can read it
    unless ``mode``, within the umask, allows others."""
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


def replace_folder(new: Path, folder: Path) -> Path:
    """Put a finished folder in the place of another one, whose files are gone then: no reader sees a mixture."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    try:
        if folder.exists():
            os.replace(folder, aside)
        os.replace(new, folder)
        _sync_folder(folder.parent)
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}", "is the folder read-only?") from error
    shutil.rmtree(aside, ignore_errors=True)
    return folder


def write_json(path: Path, content: object) -> None:
    write_atomically(path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
