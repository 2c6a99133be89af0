"""What a site says about itself to its own operator: one small file, written as it works."""

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
    """Add facts; nothing depends on them, so a full disk is no reason to stop. It is one to say so, though: where there
    is no room for another file, the present one is written over, as that needs none."""
    path = folder / FILE
    content = json.dumps(read(folder) | facts | {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}, indent=2).encode()
    try:
        write_atomically(path, content)
    except (OSError, RunError):
        with suppress(OSError), open(path, "r+b", buffering=0) as file:
            file.write(content)
            file.truncate()


def complain(text: str) -> None:
    """A line in the worker's log, unless that has no room either."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def read(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found
