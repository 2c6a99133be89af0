"""Own data by name: ``file.py:function``, ``package.module:function``, or arrays in a .npz file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedapa.data.arrays_file import read_npz
from fedapa.data.dataset import Dataset
from fedapa.data.federated import Federated, from_arrays
from fedapa.errors import InputError
from fedapa.plugins import is_own, load_object

NAMES = ("x_train", "y_train", "x_test", "y_test")
WANTED = "x_train, y_train, x_test, y_test"


def is_own_source(name: str) -> bool:
    return is_own(name) or name.endswith(".npz")


def own_source(name: str) -> Dataset | Federated:
    """One data set to be dealt to clients, or clients as they come."""
    if not is_own(name):
        return _from_file(Path(name))
    made = load_object(name, "data source")
    if not callable(made):
        raise InputError(f"data.source {name!r} is no function", f"it takes nothing and returns {WANTED}")
    return _from_answer(name, made())


def _from_answer(name: str, found: Any) -> Dataset | Federated:
    if isinstance(found, Dataset | Federated):
        return found
    if isinstance(found, Mapping) and found.keys() >= set(NAMES):
        found = tuple(found[one] for one in NAMES)
    if isinstance(found, Mapping):
        return from_arrays(list(found.values()), names=list(found), name=name)
    if isinstance(found, tuple | list) and len(found) == 4:
        return _dataset(name, *found)
    hint = f"return {WANTED}, a dictionary of such four arrays by client, a Dataset or fedapa's Federated"
    raise InputError(f"data.source {name!r} returned {type(found).__name__}", hint)


def _from_file(path: Path) -> Dataset | Federated:
    """x_train, y_train, x_test, y_test; with client_train and client_test, whose every sample is."""
    hint = f"give the file {WANTED}"
    found = read_npz(path, hint)
    if missing := [name for name in NAMES if name not in found]:
        raise InputError(f"{path} lacks {missing[0]}", hint)
    if "client_train" not in found or "client_test" not in found:
        return _dataset(path.stem, *(found[name] for name in NAMES))
    x, y, x_test, y_test = (found[name] for name in NAMES)
    whose, whose_test = found["client_train"], found["client_test"]
    masks = {str(who): (whose == who, whose_test == who) for who in np.unique(whose)}
    clients = {who: (x[a], y[a], x_test[b], y_test[b]) for who, (a, b) in masks.items()}
    return from_arrays(list(clients.values()), names=list(clients), name=path.stem)


def _dataset(name: str, x_train: Any, y_train: Any, x_test: Any, y_test: Any) -> Dataset:
    """Checked as one client's arrays would be."""
    checked = from_arrays([(x_train, y_train, x_test, y_test)], name=name)
    train, test = checked.clients[0].train, checked.clients[0].test
    if not hasattr(train.x, "numpy"):
        raise InputError(f"data.source {name!r}: such samples are not dealt", "return a dictionary of arrays by client")
    arrays = (train.x.numpy(), train.y.numpy(), test.x.numpy(), test.y.numpy())
    names = tuple(map(str, range(checked.classes)))
    return Dataset(name, *arrays, checked.classes, names, checked.mean, checked.std)
