"""The command under test, in a process if need be, and a small config for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from click.testing import CliRunner, Result

COMMAND = Path(sys.executable).with_name("fedapa")

SMALL = """\
methods = ["fedapa", "fedavg", "local"]

[data]
source = "digits"
partition = "dirichlet"
alpha = 0.5
clients = 4
min_train = 20
min_test = 2

[model]
name = "mlp"

[training]
lr = 0.1
batch = 32
epochs = 1

[run]
rounds = 3
"""


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


Call = Callable[..., Answer]


def invoke(command: click.Command, *words: object) -> Result:
    """One command in this process, with the help options of `fedapa`: click keeps those of the first call."""
    from fedapa.cli import group

    return CliRunner().invoke(command, [str(word) for word in words], **group.context_settings)


def listen_to_ctrl_c() -> None:
    """A shell starts background jobs deaf to Ctrl-C, and children inherit it; a user's terminal does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, which is gone afterwards."""
    process = subprocess.Popen(
        [COMMAND, *map(str, words)], start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=listen_to_ctrl_c,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 600
    while not happened():
        assert process.poll() is None, f"it ended: {process.communicate()}"
        assert time.monotonic() < end, "the run does not get there"
        time.sleep(0.002)
