"""The command under test, and a small config for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
