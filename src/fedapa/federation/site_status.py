"""The status of a site for its operator: one small file, updated as the site works."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedapa.errors import RunError
from fedapa.store.atomic_io import write_atomically

FILE = "status.json"


def note(folder: Path, **facts: Any) -> None:
    """Update the status. Nothing depends on it, so a full disk does not stop the site. There the file is overwritten in
    place, which needs no space, so that it can report the full disk."""
    path = folder / FILE
    content = json.dumps(read(folder) | facts | {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}, indent=2).encode()
    try:
        write_atomically(path, content)
    except (OSError, RunError):
        with suppress(OSError), open(path, "r+b", buffering=0) as file:
            file.write(content)
            file.truncate()


def complain(text: str) -> None:
    """Write a line to the worker's log, unless the disk is full there too."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def read(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found
