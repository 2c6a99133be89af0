"""Partitions by a group of every sample: one client per group, a site column for example."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.data.partitions import partition_math
from fedapa.data.partitions.allocation import check_sizes, header
from fedapa.data.partitions.partition import Partition, lengths
from fedapa.data.partitions.split_request import SplitRequest
from fedapa.errors import InputError


def by_group(request: SplitRequest) -> Partition:
    """One client per group, in the alphabetical order of the groups."""
    groups = [np.asarray(request.given[name]).astype(str) for name in ("groups_train", "groups_test")]
    names = np.unique(groups[0])
    _check_groups(request, names, groups)
    owners = [np.searchsorted(names, of_samples) for of_samples in groups]
    train, test = (partition_math.indices(owner, names.size) for owner in owners)
    check_sizes(request, lengths(train), lengths(test), names)
    return Partition(train, test, header(request, redraws=0) | {"names": names.tolist()})


def number_of_groups(given: Mapping[str, Any]) -> int:
    return np.unique(np.asarray(given["groups_train"]).astype(str)).size


def _check_groups(request: SplitRequest, names: npt.NDArray[np.str_], groups: Sequence[npt.NDArray[np.str_]]) -> None:
    for part, of_samples, codes in zip(("train", "test"), groups, request.codes, strict=True):
        if of_samples.shape != codes.shape:
            raise InputError(
                f"by-group: {of_samples.size} groups for {codes.size} {part} samples",
                hint=f"give one group per {part} sample",
            )
    odd = np.setxor1d(names, groups[1])
    if odd.size:
        raise InputError(
            f"by-group: group '{odd[0]}' is in only one of the train and the test set",
            hint="every group needs both train and test samples",
        )
    if request.clients != names.size:
        raise InputError(
            f"by-group: clients = {request.clients}, there are {names.size} groups",
            hint="leave out the number of clients",
        )
