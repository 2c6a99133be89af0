"""Partitions by class: shares of every class over the clients.

The rules `dirichlet` and `pathological` are those of the released FedAPA code: every class is cut into shares
over the clients, the same shares for the train and for the test set, rounded down, in the order of the data
set; what rounding leaves over is dropped; everything is drawn again until every client has enough.
"""

import math

import numpy as np

from fedapa.data.partitions import partition_math
from fedapa.data.partitions.allocation import drawn
from fedapa.data.partitions.partition import Partition
from fedapa.data.partitions.partition_math import Floats
from fedapa.data.partitions.planted import with_groups
from fedapa.data.partitions.split_request import SplitRequest
from fedapa.errors import InputError


def dirichlet(request: SplitRequest) -> Partition:
    """Shares of every class over the clients ~ Dirichlet(alpha), independently of the other classes."""
    _check_several_classes(request)
    clients, alpha = request.clients, request.given["alpha"]

    def draw(rng: np.random.Generator, candidates: int) -> Floats:
        return rng.dirichlet(np.full(clients, alpha), (candidates, request.classes))

    return drawn(request, draw)


def pathological(request: SplitRequest) -> Partition:
    """Every class goes to the first M*c/C clients that lack classes; shares ~ U(0.3, 0.7), normalised.

    Clients therefore come in groups of the very same classes (20 clients, 10 classes, 2 each: 5 groups of 4).
    """
    _check_several_classes(request)
    per_client = _checked_classes_per_client(request)
    _check_groups_come_out(request, per_client)
    holders = partition_math.greedy_holders(request.clients, request.classes, per_client)

    def draw(rng: np.random.Generator, candidates: int) -> Floats:
        return partition_math.normalised(holders * rng.uniform(0.3, 0.7, (candidates, *holders.shape)))

    return with_groups(drawn(request, draw), holders.argmax(0) // per_client)


def random_classes(request: SplitRequest) -> Partition:
    """Every client holds random classes, every class somebody's if possible, in shares ~ U(0.4, 0.6)."""
    _check_several_classes(request)
    per_client = _checked_classes_per_client(request)
    sizes = request.clients, request.classes

    def draw(rng: np.random.Generator, candidates: int) -> Floats:
        # One block of numbers per candidate: the batch size then does not change what is drawn.
        numbers = rng.random((candidates, sum(sizes) + 2 * math.prod(sizes)))
        holders, weights = partition_math.random_holders(numbers, *sizes, per_client)
        return partition_math.normalised(holders * (0.4 + 0.2 * weights))

    return drawn(request, draw)


def _check_several_classes(request: SplitRequest) -> None:
    if request.classes < 2:
        raise InputError(
            f"{request.rule}: all samples are of one class, there is nothing to distribute by class",
            hint="use the rule iid or quantity",
        )


def _checked_classes_per_client(request: SplitRequest) -> int:
    per_client: int = request.given["classes_per_client"]
    if per_client > request.classes:
        raise InputError(
            f"{request.rule}: classes_per_client = {per_client}, the data set has {request.classes} classes",
            hint=f"use at most {request.classes} classes per client",
        )
    return per_client


def _check_groups_come_out(request: SplitRequest, per_client: int) -> None:
    """Dealing class by class comes out even only if c divides C and C/c divides M.

    Otherwise some clients get fewer classes, or none at all, and no redraw ever helps.
    """
    clients, classes = request.clients, request.classes
    if classes % per_client == 0 and clients % (classes // per_client) == 0:
        return
    raise InputError(
        f"pathological: {clients} clients x {per_client} classes cannot be dealt evenly from {classes}"
        " classes (every class to equally many clients, every client equally many classes)",
        hint=_even_deals(clients, classes, per_client),
    )


def _even_deals(clients: int, classes: int, per_client: int) -> str:
    """Which number of clients, and which numbers of classes per client, would do."""
    divisors = [c for c in range(1, classes + 1) if classes % c == 0]
    fitting = [str(c) for c in divisors if clients % (classes // c) == 0]
    advice = f"with {clients} clients use {' or '.join(fitting)} classes per client"
    if classes % per_client:
        return f"{advice}; or use the rule random-classes"
    step = classes // per_client
    below, above = clients // step * step, (clients // step + 1) * step
    counts = " or ".join(str(m) for m in (below, above) if m)
    return f"with {per_client} classes per client use {counts} clients; {advice}"
