"""One process at a time: a lock on an open file, which the operating system takes back when the process ends."""

from __future__ import annotations

import os
from typing import IO, Any

from fedapa.errors import RunError

WINDOWS = "Windows is not supported", "use the Windows Subsystem for Linux (WSL)"


def flock(handle: IO[Any], wait: bool = True) -> None:
    """Lock the file. Without ``wait``, OSError if somebody else has it."""
    if os.name == "nt":
        raise RunError(*WINDOWS)
    import fcntl  # not on Windows: an import above would fail before anything could say why

    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
