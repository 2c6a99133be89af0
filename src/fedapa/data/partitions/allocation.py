"""From a request to a partition: draw until every client has enough, or cut by known sizes."""

import numpy as np
import numpy.typing as npt

from fedapa.data.partitions import partition_math
from fedapa.data.partitions.partition import Partition
from fedapa.data.partitions.partition_math import Draw, Index
from fedapa.data.partitions.split_request import SplitRequest
from fedapa.errors import InputError


def drawn(request: SplitRequest, draw: Draw) -> Partition:
    """The partition of the first draw that gives every client enough."""
    check_enough(request)
    rng = np.random.default_rng(request.seed)
    bound = int(request.given["max_redraws"])
    search = partition_math.first_acceptable(draw, rng, request.counts, request.clients, request.minimum, bound)
    if search.shares is None:
        raise _exhausted(request, search)
    train, test = (partition_math.floor_sizes(search.shares, counts) for counts in request.counts)
    return cut(request, (train, test), search.redraws)


def _exhausted(request: SplitRequest, search: partition_math.Search) -> InputError:
    """The error: which minimum failed in the best draw."""
    part = "train" if search.best[0] <= request.minimum[0] else "test"
    size, minimum = (b[part == "test"] for b in (search.best, request.minimum))
    knob = "a larger alpha, " if "alpha" in request.given else ""
    return InputError(
        f"{request.rule}: none of {search.redraws:,} draws gave each of {request.clients} clients more than"
        f" {request.minimum[0]} train and {request.minimum[1]} test samples; in the best draw the smallest"
        f" {part} set had {size} <= {minimum}",
        hint=f"use fewer clients, {knob}or a smaller min_{part}",
    )


def cut(
    request: SplitRequest, sizes: tuple[Index, Index], redraws: int, shuffle: np.random.Generator | None = None
) -> Partition:
    """The partition in which every client gets as many samples of every class as ``sizes`` [C, M] say."""
    train, test = (
        partition_math.indices(partition_math.owners(codes, of_part, shuffle), request.clients)
        for codes, of_part in zip(request.codes, sizes, strict=True)
    )
    return Partition(train, test, header(request, redraws))


def header(request: SplitRequest, redraws: int) -> dict[str, object]:
    """Plain JSON values only: the header is stored with the indices."""
    numbers = {name: v for name, v in request.given.items() if np.ndim(v) == 0}
    parameters = {name: float(v) if isinstance(v, float) else int(v) for name, v in numbers.items()}
    return {
        "name": request.rule,
        "clients": int(request.clients),
        "seed": int(request.seed),
        "parameters": parameters,
        "redraws": redraws,
        "samples": [codes.size for codes in request.codes],
    }


def check_enough(request: SplitRequest) -> None:
    for part, counts, minimum in zip(("train", "test"), request.counts, request.minimum, strict=True):
        needed = request.clients * (minimum + 1)
        if needed > counts.sum():
            raise InputError(
                f"{request.rule}: {request.clients} clients with more than {minimum} {part} samples each need"
                f" {needed:,} samples, the data set has {counts.sum():,}",
                hint=f"use at most {counts.sum() // (minimum + 1)} clients, or a smaller min_{part}",
            )


def check_sizes(request: SplitRequest, train: Index, test: Index, names: npt.NDArray[np.str_] | None = None) -> None:
    for part, sizes, minimum in zip(("train", "test"), (train, test), request.minimum, strict=True):
        i = int(sizes.argmin())
        if sizes[i] <= minimum:
            who = i if names is None else f"'{names[i]}'"
            raise InputError(
                f"{request.rule}: client {who} would have {sizes[i]} {part} samples, not more than {minimum}",
                hint=f"use fewer clients or a smaller min_{part}",
            )
