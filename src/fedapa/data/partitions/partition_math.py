"""Arithmetic of partitions: shares of classes, the first draw that gives everybody enough, indices.

C classes, M clients; shares [..., C, M] say which part of each class goes to each client.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Draw = Callable[[np.random.Generator, int], Floats]  # (rng, candidates B) -> shares [B, C, M]

NUMBERS_AT_ONCE = 1 << 20  # bounds the memory of a batch of candidates, whatever C and M are
CANDIDATES_AT_ONCE = 256


class Search(NamedTuple):
    """The outcome of drawing until a draw is acceptable."""

    shares: Floats | None  # [C, M]; None: no acceptable draw
    redraws: int  # rejected draws
    best: tuple[int, int]  # smallest train and test set in the draw that came nearest


def first_acceptable(
    draw: Draw,
    rng: np.random.Generator,
    counts: tuple[Index, Index],
    clients: int,
    minimum: tuple[int, int],
    max_redraws: int,
    at_once: int = CANDIDATES_AT_ONCE,
) -> Search:
    """Draw shares until all train sets > minimum[0] and all test sets > minimum[1] samples.

    Candidates are drawn and measured in batches, without building indices; the result is that of drawing
    one by one, because a batch consumes the random stream in the same order.
    """
    at_once = max(1, min(at_once, NUMBERS_AT_ONCE // (counts[0].size * clients)))
    best, best_shortfall, rejected = (0, 0), -1.0, 0
    while rejected <= max_redraws:
        shares = draw(rng, min(at_once, max_redraws + 1 - rejected))
        smallest = np.stack([floor_sizes(shares, n).sum(1).min(1) for n in counts], 1)  # [B, 2]
        accepted = np.flatnonzero((smallest > minimum).all(1))
        if accepted.size:
            first = int(accepted[0])
            return Search(shares[first], rejected + first, (int(smallest[first, 0]), int(smallest[first, 1])))
        nearness = (smallest / (np.asarray(minimum) + 1.0)).min(1)  # 1 or more would be acceptable
        nearest = int(nearness.argmax())
        if nearness[nearest] > best_shortfall:
            best, best_shortfall = (int(smallest[nearest, 0]), int(smallest[nearest, 1])), nearness[nearest]
        rejected += len(shares)
    return Search(None, rejected, best)


def floor_sizes(shares: Floats, counts: Index) -> Index:
    """Whole samples: floor(share * class size). [..., C, M]"""
    return np.floor(shares * counts[:, None]).astype(np.int64)


def subset_of(codes: Index, share: float, rng: np.random.Generator) -> Index:
    """A share of the samples of every class, rounded up, drawn at random; ascending."""
    order = rng.permutation(codes.size)
    chosen = [order[codes[order] == k] for k in np.unique(codes)]
    return np.sort(np.concatenate([mine[: int(np.ceil(share * mine.size))] for mine in chosen]))


def normalised(weights: Floats) -> Floats:
    """Weights of each class divided by their sum; a class that nobody holds keeps shares of 0."""
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def greedy_holders(clients: int, classes: int, per_client: int) -> Bools:
    """[C, M]: class after class to the M*c/C clients of lowest id that still lack classes."""
    holders = np.zeros((classes, clients), bool)
    for k in range(classes):
        lacking = np.flatnonzero(holders.sum(0) < per_client)
        holders[k, lacking[: clients * per_client // classes]] = True
    return holders


def random_holders(numbers: Floats, clients: int, classes: int, per_client: int) -> tuple[Bools, Floats]:
    """Turn uniform numbers [B, M + C + 2*M*C] into holders [B, C, M] and weights [B, C, M].

    A random order of the classes is dealt to a random order of the clients until every class is out or every
    hand is full; the other places of each hand are filled at random.
    """
    of_clients, of_classes, keys, weights = np.split(numbers, np.cumsum([clients, classes, clients * classes]), axis=1)
    dealt = np.arange(min(classes, clients * per_client))
    who = of_clients.argsort(1)[:, dealt // per_client]
    what = of_classes.argsort(1)[:, dealt]
    keys = keys.reshape(-1, clients, classes).copy()
    keys[np.arange(len(keys))[:, None], who, what] -= 1.0  # below all others: sure to be chosen
    holders = keys.argsort(2).argsort(2) < per_client
    return holders.transpose(0, 2, 1), weights.reshape(-1, classes, clients)


def owners(codes: Index, sizes: Index, rng: np.random.Generator | None = None) -> Index:
    """The client of every sample (-1: nobody's) for sizes [C, M]; in data set order, or shuffled by rng."""
    order = np.arange(codes.size) if rng is None else rng.permutation(codes.size)
    order = order[np.argsort(codes[order], kind="stable")]
    ends = np.cumsum(np.bincount(codes, minlength=len(sizes)))
    owner = np.full(codes.size, -1)
    for members, of_class in zip(np.split(order, ends[:-1]), sizes, strict=True):
        given = np.repeat(np.arange(len(of_class)), of_class)[: len(members)]
        owner[members[: len(given)]] = given
    return owner


def indices(owner: Index, clients: int) -> tuple[Index, ...]:
    """Sorted sample indices of each client."""
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner + 1, minlength=clients + 1))
    return tuple(np.split(order, ends[:-1])[1:])
