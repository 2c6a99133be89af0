"""What the tests of commands and runs share: the command itself, a small config, small data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from browser import Looker, open_browser
from command import COMMAND, SMALL, Answer, Call

FILES = Path("/dev/shm")  # a file system in memory, on Linux
ROOM = 4 * 2**30  # bytes that must be free there


def use_memory_for_files() -> None:
    """Every round of a run waits until the disk has it, thousands of times in all; memory does not keep it waiting."""
    if hasattr(os, "statvfs") and os.access(FILES, os.W_OK):
        found = os.statvfs(FILES)
        if found.f_bavail * found.f_frsize > ROOM and not found.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("TMPDIR", str(FILES))


# Before PyTorch and NumPy are loaded, for this process and those that tests start: the workers share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
use_memory_for_files()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A config of three methods that takes a second."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def fedapa(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """The command, called in this process (a process of its own takes seconds to load PyTorch)."""
    from fedapa.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedapa", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Answer(code, out, err)

    return call


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a sweep are played in this process; one of its own takes seconds to load PyTorch."""
    from fedapa.sweep import pool

    def play(parts: Sequence[pool.Runs], workers: int, report: Callable[[pool.Event], None]) -> None:
        for runs in parts:
            pool.play_side_by_side(runs, lambda *event: report(pool.Event(*event)))

    monkeypatch.setattr(pool, "play", play)


@pytest.fixture
def process(tmp_path: Path) -> Call:
    """The command as a real process with its output in pipes."""

    def call(*words: object, **environment: str) -> Answer:
        done = subprocess.run(
            [COMMAND, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, **environment},
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="module")  # while it is open its event loop is the only one of this thread
def browser() -> Iterator[Looker]:
    """A real browser for pages; tests that ask for it are skipped where there is none."""
    with open_browser() as found:
        yield found
