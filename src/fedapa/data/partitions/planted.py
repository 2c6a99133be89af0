"""Partitions with planted groups: which clients belong together is known, and kept in the header under ``groups``.

Whoever looks for groups (weights between clients, clusters) can then be compared with the truth. Clients of a group
follow each other. Classes are cut into shares ~ U(0.3, 0.7), as `pathological` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedapa.data.partitions import partition_math
from fedapa.data.partitions.allocation import drawn
from fedapa.data.partitions.equal_mix import iid
from fedapa.data.partitions.partition import Partition
from fedapa.data.partitions.partition_math import Bools, Floats, Index
from fedapa.data.partitions.sample_views import VIEWS, View, as_header
from fedapa.data.partitions.split_request import SplitRequest
from fedapa.errors import InputError

GROUPS = "groups"  # of a partition's header
PAIR = 2  # members that the smallest of uneven groups has
QUARTERS = 4


def with_groups(partition: Partition, groups: Index, **more: object) -> Partition:
    """The same partition that tells who belongs together."""
    return replace(partition, rule={**partition.rule, GROUPS: groups.tolist(), **more})


def uneven_groups(request: SplitRequest) -> Partition:
    """Groups of the same classes and of halving sizes, two members at least: 7, 5, 3, 3 and 2 of 20 clients.

    All clients are of about one size, so that small groups leave samples of their classes over.
    """
    count = _checked_groups(request, request.classes, "classes")
    if request.clients < PAIR * count:
        raise InputError(
            f"{request.rule}: {request.clients} clients in {count} groups of at least {PAIR}",
            hint=f"use at least {PAIR * count} clients or fewer groups",
        )
    groups = halving(request.clients, count)
    size = np.bincount(groups)[groups]
    return _of_classes(request, groups, blocks(request.classes, count), size / size.max())


def overlapping_groups(request: SplitRequest) -> Partition:
    """Equal groups in a ring: each has classes of its own, and the first of the next group's."""
    count = _checked_groups(request, request.classes, "classes")
    own = blocks(request.classes, count)
    first = np.zeros_like(own)
    first[np.arange(count), own.argmax(1)] = True
    return _of_classes(request, _equal(request, count), own | np.roll(first, -1, axis=0))


def nested_groups(request: SplitRequest) -> Partition:
    """Pairs of groups: both groups of a pair have one class in common, and pairs have none."""
    count = _checked_groups(request, request.classes, "classes")
    if count % 2 or request.classes < 3 * count // 2:
        raise InputError(
            f"{request.rule}: {request.classes} classes in {count} groups, two by two",
            hint=f"use an even number of groups, at most {request.classes // 3 * 2}",
        )
    families = blocks(request.classes, count // 2)
    holds = np.repeat(families, 2, axis=0)
    for g, row in enumerate(holds):
        common, *rest = np.flatnonzero(row)
        row[:] = False
        row[[common, *np.array_split(rest, 2)[g % 2]]] = True
    return _of_classes(request, _equal(request, count), holds)


def outlier(request: SplitRequest) -> Partition:
    """The last client alone has the last fifth of the classes; the others share the rest. All are of about one size."""
    if request.clients < 3 or request.classes < 2:
        raise InputError(
            f"{request.rule}: {request.clients} clients, {request.classes} classes", hint="use at least 3 and 2"
        )
    alone = max(1, request.classes // 5)
    holds = np.zeros((2, request.classes), bool)
    holds[0, :-alone], holds[1, -alone:] = True, True
    part = (request.classes - alone) / ((request.clients - 1) * alone)
    groups = np.array([0] * (request.clients - 1) + [1])
    return _of_classes(request, groups, holds, np.where(groups == 1, min(1.0, part), 1.0))


def rotated_groups(request: SplitRequest) -> Partition:
    """Everybody has the same mix of classes; the images of group g are turned by g quarters."""
    groups = _equal(request, _checked_groups(request, QUARTERS, "quarters of a turn"))
    return _seen(iid(request), groups, lambda g: View(turns=g))


def permuted_groups(request: SplitRequest) -> Partition:
    """Everybody has the same mix of images; every group but the first has drawn other names for the classes."""
    count = _checked_groups(request, request.clients, "clients")
    rng = np.random.default_rng([request.seed, 1])
    names = [tuple(range(request.classes)), *(_other_names(request.classes, rng) for _ in range(count - 1))]
    return _seen(iid(request), _equal(request, count), lambda g: View(labels=names[g]))


# ----------------------------------------------------------------------------------------------------------- arithmetic


def blocks(items: int, count: int) -> Bools:
    """[count, items] which of the items every block has, in order; sizes differ by at most one."""
    owner = np.repeat(np.arange(count), [len(part) for part in np.array_split(np.arange(items), count)])
    found: Bools = owner == np.arange(count)[:, None]
    return found


def halving(clients: int, count: int) -> Index:
    """[M] the group of every client: two members each, the rest in halves; remainders to the largest fractions."""
    rest = clients - PAIR * count
    wanted = rest * 0.5 ** np.arange(1, count + 1) / (1 - 0.5**count)
    sizes = np.floor(wanted).astype(np.int64)
    short = rest - int(sizes.sum())
    sizes[np.argsort(sizes - wanted, kind="stable")[:short]] += 1
    return np.repeat(np.arange(count), PAIR + sizes)


def _of_classes(request: SplitRequest, groups: Index, holds: Bools, part: Floats | None = None) -> Partition:
    """Clients hold the classes of their group, ``holds`` [G, C]; ``part`` [M] of what they would get."""
    holders = holds[groups].T

    def draw(rng: np.random.Generator, candidates: int) -> Floats:
        shares = partition_math.normalised(holders * rng.uniform(0.3, 0.7, (candidates, *holders.shape)))
        return shares if part is None else shares * part

    return with_groups(drawn(request, draw), groups)


def _seen(partition: Partition, groups: Index, view: Callable[[int], View]) -> Partition:
    return with_groups(partition, groups, **{VIEWS: as_header(tuple(view(int(g)) for g in groups))})


def _equal(request: SplitRequest, count: int) -> Index:
    if request.clients < count:
        raise InputError(
            f"{request.rule}: {request.clients} clients in {count} groups", hint=f"use at least {count} clients"
        )
    found: Index = blocks(request.clients, count).argmax(0)
    return found


def _other_names(classes: int, rng: np.random.Generator) -> tuple[int, ...]:
    """A permutation that changes something."""
    while (names := rng.permutation(classes)).tolist() == list(range(classes)) and classes > 1:
        pass
    return tuple(int(k) for k in names)


def _checked_groups(request: SplitRequest, most: int, of: str) -> int:
    count = int(request.given["groups"])
    if count > most:
        raise InputError(f"{request.rule}: {count} groups of {most} {of}", hint=f"use at most {most} groups")
    return count
