"""A part of a data set for a quick trial: every class keeps its share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedapa.data.dataset import Dataset
from fedapa.data.federated import ClientData, Federated, Split, set_aside, strata
from fedapa.data.samples import chosen
from fedapa.errors import InputError
from fedapa.streams import stream


def smaller(dataset: Dataset, wanted: float | int | None, seed: int) -> Dataset:
    """``wanted`` is a share below 1, or a number of train samples; the test set keeps the same share."""
    share = _share(wanted, len(dataset.y_train))
    if share is None:
        return dataset
    labels = strata(dataset.y_train, dataset.y_test)
    train, test = (np.flatnonzero(set_aside(y, share, stream(seed, "subset", k))) for k, y in enumerate(labels))
    x = {"x_train": dataset.x_train[train], "x_test": dataset.x_test[test]}
    return replace(dataset, **x, y_train=dataset.y_train[train], y_test=dataset.y_test[test])  # type: ignore[arg-type]


def smaller_clients(data: Federated, wanted: float | int | None, seed: int) -> Federated:
    """The same share of every client."""
    share = _share(wanted, int(data.sizes.sum()))
    if share is None:
        return data
    return replace(data, clients=tuple(_part(client, share, seed, i) for i, client in enumerate(data.clients)))


def _part(client: ClientData, share: float, seed: int, i: int) -> ClientData:
    def part(split: Split, k: int) -> Split:
        kept = np.flatnonzero(set_aside(split.y.numpy(), share, stream(seed, "subset", i, k)))
        return split if not len(kept) else Split(chosen(split.x, kept), split.y[kept])

    return replace(client, train=part(client.train, 0), test=part(client.test, 1))


def _share(wanted: Any, samples: int) -> float | None:
    if wanted is None:
        return None
    share = wanted / samples if wanted >= 1 else float(wanted)
    if share >= 1:
        raise InputError(f"data.subset is {wanted}, there are {samples} train samples", "leave it out, or take fewer")
    return share
