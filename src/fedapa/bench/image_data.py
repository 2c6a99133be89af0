"""Images to measure on: the real ones where their files are, random ones of the same shape elsewhere."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedapa.data import sources
from fedapa.data.dataset import Dataset
from fedapa.data.federated import Federated, federate
from fedapa.data.partitions import rules


@lru_cache(maxsize=2)
def dataset(name: str, train: int, test: int) -> Dataset:
    """The first samples of a data set, or as many random ones."""
    whole = sources.load(name) if sources.is_present(name) else random_images(name, train, test)
    parts = (whole.x_train[:train], whole.y_train[:train], whole.x_test[:test], whole.y_test[:test])
    return Dataset(f"{whole.name}", *parts, whole.classes, whole.class_names, whole.mean, whole.std)


def random_images(name: str, train: int, test: int) -> Dataset:
    info, rng = sources.source(name), np.random.default_rng(0)
    pixels = rng.integers(0, 256, (train + test, *info.shape), dtype=np.uint8)
    labels = rng.integers(0, info.classes, train + test)
    parts = (pixels[:train], labels[:train], pixels[train:], labels[train:])
    half = (0.5,) * info.shape[0]
    return Dataset(f"random, shaped as {name}", *parts, info.classes, info.class_names, half, half)


def unbalanced(name: str, clients: int, train: int, test: int, seed: int = 0, alpha: float = 0.1) -> Federated:
    """Clients as in the paper: Dirichlet shares of every class, so that some have many times as much as others."""
    data = dataset(name, train, test)
    parameters = {"alpha": alpha, "min_train": 4, "min_test": 0}
    return federate(data, rules.split("dirichlet", data.y_train, data.y_test, clients, seed, **parameters))


def equal(name: str, clients: int, each: int, test: int = 50) -> Federated:
    """Clients of one size, with samples of all classes."""
    data = dataset(name, clients * each, clients * test)
    return federate(data, rules.split("iid", data.y_train, data.y_test, clients, 0, min_train=0, min_test=0))
