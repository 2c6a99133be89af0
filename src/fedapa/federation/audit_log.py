"""The audit log of a coordinator or a site: who joined, what was agreed, what left, what was refused, alarms.

One JSON object per line, only ever appended. Every line holds the hash of the line before it, so a line that is
changed, removed or inserted later breaks the chain. The number and hash of the last line stand in a file of their own:
a log that was cut off at its end does not fit it, and no line is added to such a log, which would hide the cut. Whoever
may write both files can write both anew; against that, keep a hash that `fedapa audit` printed somewhere else, and give
it back with --expect.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedapa.errors import InputError, RunError
from fedapa.store.atomic_io import write_json
from fedapa.store.file_lock import flock

LOG, HEAD, LOCK = "audit.jsonl", "audit.head.json", ".audit.lock"
START = "0" * 64  # the previous hash in the first line
TAIL = 1 << 16  # bytes from the end in which the last line is looked for first


class Head(NamedTuple):
    """The last line: its number, from 1, and its hash."""

    number: int = 0
    hash: str = START


def append(folder: Path, event: str, /, **facts: Any) -> Head:
    """Add one line; it is on the disk when this returns."""
    try:
        with _locked(folder):
            head, before = _last(folder / LOG)
            _check_end(folder, head, before)
            row = {"number": head.number + 1, "at": _now(), "event": event, **facts, "before": head.hash}
            new = Head(head.number + 1, _hash(row))
            line = json.dumps({**row, "hash": new.hash}, sort_keys=True) + "\n"
            with open(folder / LOG, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            write_json(folder / HEAD, new._asdict())
            return new
    except OSError as error:
        raise RunError(f"cannot write {folder / LOG}: {error.strerror}", "is the disk full or read-only?") from error


def read(folder: Path) -> list[dict[str, Any]]:
    """Every line that can be read, checked or not."""
    path = folder / LOG
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def verify(folder: Path, expected: str | None = None) -> Head:
    """The last line of a log with a valid chain; otherwise an error that names the first line that does not fit.

    ``expected`` is a hash that was noted earlier: a line with it must be there.
    """
    path, head, seen = folder / LOG, Head(), [START]
    if not path.is_file():
        raise InputError(f"{folder} holds no {LOG}", "name a coordinator's folder or a site's kit")
    whole = path.read_bytes().rpartition(b"\n")[0]  # without a line that a killed process left half-written
    for number, line in enumerate(whole.splitlines(), 1):
        head = _next(path, number, line, head)
        seen.append(head.hash)
    _check_end(folder, head, seen[-2] if head.number else START)
    if expected is not None and expected not in seen:
        raise InputError(f"{path} holds no line with the hash {expected[:64]}", "the log was rewritten since")
    return head


def _next(path: Path, number: int, line: bytes, before: Head) -> Head:
    try:
        row = json.loads(line)
        kept, stored = {key: value for key, value in row.items() if key != "hash"}, row["hash"]
        sound = (row["number"], row["before"], stored) == (number, before.hash, _hash(kept))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        hint = "the log was changed or damaged"
        raise InputError(f"{path}, line {number} does not follow from the one before it", hint)
    return Head(number, stored)


def _check_end(folder: Path, last: Head, before: str) -> None:
    """Does the log end where it was noted to end? A killed process may have left its last line unnoted."""
    noted = _noted(folder)
    if noted not in (last, Head(last.number - 1, before)):
        cut = f"{folder / LOG} ends with line {last.number}, {HEAD} says {noted.number}"
        raise InputError(cut, "lines were cut off; keep both files for a look, and move them away to start a new log")


def _noted(folder: Path) -> Head:
    if not (folder / HEAD).exists():
        return Head()
    try:
        found = json.loads((folder / HEAD).read_text(encoding="utf-8"))
        return Head(int(found["number"]), str(found["hash"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{folder / HEAD} cannot be read: {error}", "it was removed or damaged") from None


def _last(path: Path) -> tuple[Head, str]:
    """The last line, and the hash of the one before it. A line that a killed process left half-written is removed:
    nobody saw it."""
    if not path.is_file():
        return Head(), START
    with open(path, "r+b") as file:
        size, tail, wanted = file.seek(0, os.SEEK_END), b"", TAIL
        while len(tail) < size and tail.count(b"\n") < 2:  # a coordinator's terms may be long
            file.seek(max(0, size - wanted))
            tail, wanted = file.read(), 8 * wanted
        if not tail.endswith(b"\n"):
            file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
            tail = tail[: tail.rfind(b"\n") + 1]
    lines = tail.splitlines()
    try:
        row: dict[str, Any] = json.loads(lines[-1]) if lines else {**Head()._asdict(), "before": START}
        return Head(int(row["number"]), str(row["hash"])), str(row["before"])
    except (ValueError, KeyError, TypeError, RecursionError):
        hint = "`fedapa audit` says where; move the log away to start a new one"
        raise RunError(f"{path} is damaged at its end", hint) from None


def _hash(row: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / LOCK, "w", encoding="utf-8") as lock:
        flock(lock)
        yield


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
