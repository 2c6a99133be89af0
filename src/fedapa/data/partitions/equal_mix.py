"""Partitions that give every client the same mix of classes: of equal size, or of Dirichlet sizes."""

import numpy as np

from fedapa.data.partitions.allocation import check_enough, check_sizes, cut, drawn
from fedapa.data.partitions.partition import Partition
from fedapa.data.partitions.partition_math import Floats
from fedapa.data.partitions.split_request import SplitRequest


def iid(request: SplitRequest) -> Partition:
    """The same number of samples of every class for everybody; the seed decides which ones."""
    check_enough(request)
    clients = request.clients
    # Whole numbers throughout: floor(n * (1 / M)) loses a sample to rounding, at n = M = 49 for example.
    train, test = (np.repeat(n[:, None] // clients, clients, axis=1) for n in request.counts)
    check_sizes(request, train.sum(0), test.sum(0))
    return cut(request, (train, test), redraws=0, shuffle=np.random.default_rng(request.seed))


def quantity(request: SplitRequest) -> Partition:
    """The same mix of classes everywhere, client sizes ~ Dirichlet(alpha)."""
    clients, alpha = request.clients, request.given["alpha"]

    def draw(rng: np.random.Generator, candidates: int) -> Floats:
        sizes = rng.dirichlet(np.full(clients, alpha), (candidates, 1))
        return np.broadcast_to(sizes, (candidates, request.classes, clients))

    return drawn(request, draw)
