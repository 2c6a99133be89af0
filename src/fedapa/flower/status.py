"""What a site says about itself to its own operator: one small file, written as it works."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

FILE = "status.json"


def note(folder: Path, **facts: Any) -> None:
    """Add facts; nothing depends on them, so a full disk is no reason to stop."""
    path = folder / FILE
    try:
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(read(folder) | facts | {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}, indent=2))
        os.replace(aside, path)
    except OSError:
        return


def read(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found
