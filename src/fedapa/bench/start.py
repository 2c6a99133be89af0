"""How long it takes until something happens: the command line, and the import beyond torch's own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from fedapa.bench.fixtures import How
from fedapa.bench.side_by_side import Row, Spread, interleaved, spread

CALL = "from fedapa.cli import main; main()"
IMPORT = "import time, torch; begin = time.perf_counter(); import fedapa; print(time.perf_counter() - begin)"


def start(how: How) -> list[Row]:
    """Seconds until the command line answers, and of the import."""
    repeats = how.pick(7, 2)
    found = interleaved({word: partial(_python, CALL, word) for word in ("--help", "ls")}, repeats)
    rows = [
        Row("start", f"fedapa {word}", spread([t.wall for t in times]), "s", 0.3, True) for word, times in found.items()
    ]
    return [*rows, Row("start", "import fedapa, beyond torch", _import(repeats), "s", 0.2, True)]


def _import(repeats: int) -> Spread:
    return spread([float(_python(IMPORT)) for _ in range(repeats)])


def _python(code: str, *words: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, text=True).stdout
