"""How well a run found the groups that were planted in its allocation: the adjusted Rand index, round by round.

1: the same groups; 0: as good as chance, which is also one group of all, or nobody with anybody. The groups are a
method's own clusters (CFL, IFCA), or what hangs together by its weights (core.joined.found_groups): one rule for
all, of which a method knows nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.core import joined
from fedapa.store import run_db

Labels = npt.NDArray[Any]


def course(db: sqlite3.Connection, clients: int) -> tuple[float, ...]:
    """The index of every round that shows groups; empty where none were planted or none are shown."""
    planted = json.loads(run_db.meta(db).get("groups", "[]"))
    if len(planted) != clients:
        return ()
    return tuple(round(adjusted_rand(planted, found), 4) for _, found in shown(db, clients))


def shown(db: sqlite3.Connection, clients: int) -> Iterator[tuple[int, Labels]]:
    """(round from 1, group of every client): clusters where the method has some, else by its weights."""
    own = list(run_db.clusters(db, clients))
    yield from own or ((t, by_weights(A)) for t, A in run_db.matrices(db, clients))


def by_weights(A: npt.NDArray[np.float64]) -> Labels:
    return joined.found_groups(A)


def adjusted_rand(planted: Sequence[int], found: Labels) -> float:
    from sklearn.metrics import adjusted_rand_score  # costs most of a second

    return float(adjusted_rand_score(planted, found.astype(int)))
