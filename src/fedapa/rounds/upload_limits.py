"""Limits on untrusted uploads beyond their shapes: norms, sample counts, classes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.methods.method import COUNTS, Role, Roles
from fedapa.training.task import Task

FEWEST = 3  # updates for a meaningful median


@dataclass(frozen=True)
class Limits:
    """Bounds that honest training stays within, and what every client declared about its data.

    ``growth`` bounds the norm of every tensor: at most so many times the norm of what was sent, plus one. ``ratio``
    bounds what a client changed: at most so many times the median of its round. One large update that stays within
    ``growth`` can ruin the model of all, and then it is the honest clients whose training diverges.
    """

    growth: float = 100.0
    ratio: float = math.inf
    classes: Sequence[frozenset[int]] = ()  # the classes that every client declared; empty: all of them

    def with_client(self, classes: frozenset[int]) -> Limits:
        """The same limits with one more client, which declared these classes."""
        return replace(self, classes=[*self.classes, classes] if self.classes else ())

    def find_excess(self, task: Task, i: int, up: Tree, down: Tree, roles: Roles) -> str | None:
        """Why an upload of client i is refused, else None. Shapes, dtypes and finiteness are checked before."""
        samples = int(task.sizes[i])
        return (
            self._too_large(up, down, samples, roles)
            or _miscounted(up, samples, roles)
            or self._undeclared(i, up, roles)
        )

    def find_extremes(self, changes: Mapping[int, float | None]) -> dict[int, str]:
        """Why uploads of a round are too far from what was sent, by client. ``changes`` are the norms of the updates,
        None where a method's upload has no counterpart. Among fewer than three, an outlier cannot be determined."""
        known = {i: change for i, change in changes.items() if change is not None}
        if len(known) < FEWEST or not math.isfinite(self.ratio):
            return {}
        middle = statistics.median(known.values())
        said = "its update has norm {:.3g}, more than {:g} times {:.3g}, the median of the round"
        far = {i: change for i, change in known.items() if change > self.ratio * middle > 0.0}
        return {i: said.format(change, self.ratio, middle) for i, change in far.items()}

    def _too_large(self, up: Tree, down: Tree, samples: int, roles: Roles) -> str | None:
        bound = self.growth * (1.0 + norm(down))
        for name, leaf in up.items():
            if roles.get(name) in COUNTS:
                continue
            most = bound * max(1, samples) if roles.get(name) is Role.SUMS else bound
            if (found := norm({name: leaf})) > most:
                return f"{name} has norm {found:.3g}, more than {most:.3g}"
        return None

    def _undeclared(self, i: int, up: Tree, roles: Roles) -> str | None:
        if not self.classes:
            return None
        counts = [leaf for name, leaf in up.items() if roles.get(name) is Role.CLASS_COUNTS]
        outside = {c for leaf in counts for c in leaf.nonzero().flatten().tolist()} - self.classes[i]
        return f"it counts samples of class {min(outside)}, which it did not declare" if outside else None


def change_between(up: Tree, down: Tree) -> float | None:
    """The norm of an update: of all tensors that answer one that was sent."""
    pairs = {name: (leaf, down[name]) for name, leaf in up.items() if name in down and down[name].shape == leaf.shape}
    floats = {name: leaf - was for name, (leaf, was) in pairs.items() if leaf.is_floating_point()}
    return norm(floats) if floats else None


def _miscounted(up: Tree, samples: int, roles: Roles) -> str | None:
    for name, counts in up.items():
        if (role := roles.get(name)) not in COUNTS:
            continue
        if not bool((counts >= 0).all()) or not torch.equal(counts, counts.round()):
            return f"{name} is not a number of samples"
        total = float(counts.double().sum())
        if total > samples or (role is Role.SAMPLES and total != samples):
            return f"{name} is {total:g}, it declared {samples} samples"
    return None


def norm(tree: Mapping[str, Tensor]) -> float:
    """Euclidean norm of all floating-point leaves, in double precision."""
    squares = (float(leaf.double().square().sum()) for leaf in tree.values() if leaf.is_floating_point())
    return math.sqrt(sum(squares))
