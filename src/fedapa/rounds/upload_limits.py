"""Limits on untrusted uploads beyond their shapes: norms, sample counts, classes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedapa.core.directions import cosines_to_others
from fedapa.core.tree import Tree
from fedapa.methods.method import COUNTS, Role, Roles
from fedapa.training.task import Task

FEWEST = 3  # updates for a meaningful median


@dataclass(frozen=True)
class Limits:
    """Bounds that honest training stays within, and what every client declared about its data.

    ``growth`` bounds the norm of every tensor: at most so many times the norm of what was sent, plus one. ``ratio``
    bounds what a client changed: at most so many times the median of its round. One large update that stays within
    ``growth`` can ruin the model of all, and then it is the honest clients whose training diverges. ``cosine`` bounds
    where an update points: its cosine to the median of the others' updates is at least so much. A flipped sign has a
    normal size and the wrong direction. -1 is no bound: where models are personal, honest updates may differ as much.
    """

    growth: float = 100.0
    ratio: float = math.inf
    classes: Sequence[frozenset[int]] = ()  # the classes that every client declared; empty: all of them
    cosine: float = -1.0

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

    @property
    def checks_directions(self) -> bool:
        return self.cosine > -1.0

    def find_opposed(self, updates: Mapping[int, Tree]) -> dict[int, str]:
        """Why updates of a round point away from the others', by client. The worst is refused first and the others are
        compared anew without it, so that it does not make honest ones look odd. A majority is never refused."""
        left, opposed = _comparable(updates), dict[int, str]()
        most = (len(left) - 1) // 2
        while self.checks_directions and len(left) >= FEWEST and len(opposed) < most:
            cosines = dict(zip(left, cosines_to_others(list(left.values())), strict=True))
            worst = min(cosines, key=cosines.__getitem__)
            if cosines[worst] >= self.cosine:
                break
            said = "its update has cosine {:.2f} to the median of the others', less than {:g}"
            opposed[worst] = said.format(cosines[worst], self.cosine)
            del left[worst]
        return opposed

    def _too_large(self, up: Tree, down: Tree, samples: int, roles: Roles) -> str | None:
        bound = self.growth * (1.0 + norm(down))
        for name, leaf in up.items():
            if roles.get(name) in COUNTS:
                continue
            most = bound * max(1, samples) if roles.get(name) is Role.SUMS else bound
            if not (found := norm({name: leaf})) <= most:  # a decoded tensor may hold NaN
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
    return norm(changed) if (changed := update_between(up, down)) else None


def update_between(up: Tree, down: Tree) -> Tree:
    """What a client changed of every tensor that was sent; empty where a method's upload has no counterpart."""
    pairs = {name: (leaf, down[name]) for name, leaf in up.items() if name in down and down[name].shape == leaf.shape}
    return {name: leaf - was for name, (leaf, was) in pairs.items() if leaf.is_floating_point()}


def _comparable(updates: Mapping[int, Tree]) -> dict[int, Tree]:
    """Those of the most frequent set of names: methods with phases may ask for different tensors in one round."""
    names = {i: frozenset(update) for i, update in updates.items() if update}
    common = statistics.mode(names.values()) if names else frozenset()
    return {i: updates[i] for i, found in names.items() if found == common}


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
