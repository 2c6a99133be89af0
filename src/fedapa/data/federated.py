"""Federated data: tensors per client, from a data set and a partition, or from own arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedapa.data.dataset import Dataset
from fedapa.data.partitions.partition import Partition, check_fits, fingerprint_of
from fedapa.data.partitions.planted import GROUPS
from fedapa.data.partitions.sample_views import View, check_views
from fedapa.data.samples import Fields, Lazy, chosen, tensors_of
from fedapa.errors import InputError
from fedapa.streams import stream

Index = npt.NDArray[np.int64]
Array = npt.NDArray[Any] | Tensor
Inputs = Array | Mapping[str, Array] | Fields | Lazy
OwnArrays = tuple[Inputs, Array, Inputs, Array]  # x_train, y_train, x_test, y_test


class Split(NamedTuple):
    x: Tensor  # uint8, int64 or float32 [n, *shape]; or Fields, or Lazy, which are indexed alike
    y: Tensor  # [n] int64 classes, or float32 numbers


@dataclass(frozen=True)
class ClientData:
    name: str
    train: Split
    test: Split
    validation: Split | None = None


@dataclass(frozen=True)
class Federated:
    """What every client has. Bytes stay bytes; mean and std apply to x / 255 if x is uint8, else to x."""

    name: str
    clients: tuple[ClientData, ...]
    classes: int  # 0: labels are numbers
    shape: tuple[int, ...]  # of one sample
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str
    target: tuple[float, float] = (0.0, 1.0)  # mean and standard deviation of numbers, over all train samples
    groups: tuple[int, ...] = ()  # the planted group of every client, where the partition has some

    @property
    def sizes(self) -> Tensor:
        """Train samples of every client. [M] int64"""
        return torch.tensor([len(client.train.y) for client in self.clients])

    def with_target(self, kind: Literal["class", "number"]) -> Federated:
        """The same with labels as an objective wants them; whole numbers can be read either way."""
        if kind == "class":
            if self.classes == 0:
                hint = 'use the objective "regression", or cut them into classes'
                raise InputError(f"the labels of {self.name} are numbers, not classes", hint)
            return self
        clients = tuple(_with_numbers(client) for client in self.clients)
        target = target_scale([target_sums(client.train.y) for client in clients])
        return replace(self, clients=clients, classes=0, target=target)

    def held_out(self, share: float, seed: int = 0) -> Federated:
        """The same with a share of every train set kept for validation; what was kept before stays."""
        _check_share(share)
        if share == 0:
            return self
        clients = tuple(
            _held_out(client, share, stream(seed, "validation", i)) for i, client in enumerate(self.clients)
        )
        mark = hashlib.sha256(f"{self.fingerprint} validation {share} {seed}".encode()).hexdigest()[:16]
        return replace(self, clients=clients, fingerprint=mark)


def _held_out(client: ClientData, share: float, random: np.random.Generator) -> ClientData:
    if client.validation is not None:
        return client
    mask = set_aside(client.train.y.numpy(), share, random)
    train, held = (Split(chosen(client.train.x, index), client.train.y[index])
                   for index in (np.flatnonzero(~mask), np.flatnonzero(mask)))  # fmt: skip
    return replace(client, train=train, validation=held if mask.any() else None)


def _with_numbers(client: ClientData) -> ClientData:
    parts = (client.train, client.test, client.validation)
    train, test, validation = (part and Split(part.x, part.y.to(torch.float32)) for part in parts)
    assert train is not None
    assert test is not None
    return ClientData(client.name, train, test, validation)


def target_sums(y: Tensor) -> tuple[float, float, float]:
    """Count, sum and sum of squares: all that a site sends about its targets when the scaling is shared."""
    values = y.double()
    return float(len(values)), float(values.sum()), float(values.square().sum())


def target_scale(sums: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Mean and standard deviation over all sites, from their sums; 1 where targets do not differ."""
    count, total, squares = (sum(column) for column in zip(*sums, strict=True))
    mean = total / count
    variance = squares / count - mean**2
    noise = 1e-12 * max(squares / count, 1e-300)  # what rounding leaves of a constant
    return mean, variance**0.5 if variance > noise else 1.0


# --- from a data set and a partition -------------------------------------------------------------


def federate(dataset: Dataset, partition: Partition, validation: float = 0.0, seed: int = 0) -> Federated:
    """Give every client its samples, with a share of the train part set aside for validation if requested.

    The fingerprint is that of the index lists and views: the partition's own if nothing is set aside.
    """
    _check_share(validation)
    _check_seed(seed)
    check_fits(partition, len(dataset.y_train), len(dataset.y_test))
    _check_nobody_empty(partition)
    shape, views = dataset.x_train.shape[1:], partition.views
    check_views(views, shape, dataset.classes)
    aside = [
        set_aside(dataset.y_train[index], validation, stream(seed, "validation", i))
        for i, index in enumerate(partition.train)
    ]
    train = [index[~mask] for index, mask in zip(partition.train, aside, strict=True)]
    held = [index[mask] for index, mask in zip(partition.train, aside, strict=True)]
    clients = tuple(
        ClientData(
            name,
            _take(dataset.x_train, dataset.y_train, train[i], views[i]),
            _take(dataset.x_test, dataset.y_test, partition.test[i], views[i]),
            _take(dataset.x_train, dataset.y_train, held[i], views[i]) if held[i].size else None,
        )
        for i, name in enumerate(_client_names(partition))
    )
    parts = (train, partition.test, held) if validation else (train, partition.test)
    name, groups = fingerprint_of(*parts, views=views), _groups(partition)
    scale = dataset.mean, dataset.std
    found = Federated(dataset.name, clients, dataset.classes, shape, *scale, fingerprint=name, groups=groups)
    return found if dataset.classes else found.with_target("number")


def _check_share(validation: float) -> None:
    if not 0.0 <= validation < 1.0:
        raise InputError(
            f"validation = {validation} is not a share of the train samples",
            hint="use 0 (none) or a number below 1, for example 0.1",
        )


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise InputError(f"seed = {seed} is negative", hint="use 0 or a positive whole number")


def _check_nobody_empty(partition: Partition) -> None:
    for part, lists in (("train", partition.train), ("test", partition.test)):
        for i, index in enumerate(lists):
            if index.size == 0:
                raise InputError(f"client {i}: empty {part} set", hint="use fewer clients or another rule")


def _client_names(partition: Partition) -> list[str]:
    names = partition.rule.get("names")
    if isinstance(names, list) and len(names) == partition.clients:
        return [str(name) for name in names]
    return [str(i) for i in range(partition.clients)]


def _groups(partition: Partition) -> tuple[int, ...]:
    """The planted group of every client; empty where there are none."""
    found = partition.rule.get(GROUPS)
    return tuple(int(g) for g in found) if isinstance(found, list) and len(found) == partition.clients else ()


def _take(x: npt.NDArray[Any], y: npt.NDArray[Any], index: Index, view: View) -> Split:
    return Split(torch.from_numpy(view.image(x[index])), torch.from_numpy(view.label(y[index])))


def strata(y_train: npt.NDArray[Any], y_test: npt.NDArray[Any], bins: int = 10) -> tuple[Index, Index]:
    """Classes as they are; numbers as their tenths, so that rules which deal by class deal them, too."""
    if y_train.dtype.kind != "f":
        return y_train, y_test
    cuts = np.quantile(y_train, np.arange(1, bins) / bins)
    train, test = (np.searchsorted(cuts, y, side="right").astype(np.int64) for y in (y_train, y_test))
    return train, test


def set_aside(y: npt.NDArray[Any], share: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Mask of a share of the samples: evenly spaced in a shuffled list sorted by class.

    Every class then loses its share to within one sample. Train keeps at least one sample, and
    validation gets at least one if there are two.
    """
    mask = np.zeros(y.size, bool)
    if share == 0.0 or y.size < 2:
        return mask
    order = rng.permutation(y.size)
    order = order[np.argsort(y[order], kind="stable")]
    steps = np.floor(np.arange(y.size + 1) * share + 0.5)
    mask[order] = steps[1:] > steps[:-1]
    if mask.all() or not mask.any():
        mask[order[0]] = not mask[order[0]]
    return mask


# --- from own arrays -----------------------------------------------------------------------------


def from_arrays(
    clients: Sequence[OwnArrays],
    classes: int | None = None,
    names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str = "arrays",
) -> Federated:
    """Clients from (x_train, y_train, x_test, y_test) each; numpy or torch, x of uint8, floats or token ids.

    x may be a dictionary of arrays, which the model gets as ``Fields``, or ``Lazy``, which is read batch by batch.
    Whole numbers in y are classes, floats are numbers to predict.
    Without mean and std, bytes are scaled with 0.5 / 0.5 (after division by 255) and floats left as they are.
    """
    if not clients:
        raise InputError("there are no clients", hint="give at least one tuple of four arrays")
    data = tuple(_client(who, arrays) for who, arrays in zip(_names(names, len(clients)), clients, strict=True))
    _check_alike(data)
    classes = _checked_classes(data, classes)
    first: Any = data[0].train.x
    centre, scale = (0.5, 0.5) if first.dtype == torch.uint8 else (0.0, 1.0)
    shape = tuple(first.shape[1:])
    if mean is not None and isinstance(first, Fields):
        raise InputError("mean and std are of one tensor, samples have several", "scale them before")
    found = Federated(
        name,
        data,
        classes,
        shape,
        _per_channel("mean", mean, centre, shape),
        _per_channel("std", std, scale, shape),
        _content_fingerprint(data),
    )
    return found if classes else found.with_target("number")


def from_datasets(
    clients: Mapping[str, tuple[Any, Any]], x: str = "x", y: str = "y", classes: int | None = None
) -> Federated:
    """Clients from a train and a test data set each: PyTorch's, of (x, y), or Hugging Face's, of rows with columns.

    Images become arrays of bytes, channels first; numbers become floats. Everything is held in memory.
    """
    arrays = [(*_gathered(who, train, x, y), *_gathered(who, test, x, y)) for who, (train, test) in clients.items()]
    return from_arrays(arrays, classes, list(clients), name="datasets")


def _gathered(who: str, dataset: Any, x: str, y: str) -> tuple[Array, Array]:
    samples, labels = [], []
    for k in range(len(dataset)):
        row = dataset[k]
        try:
            sample, label = (row[x], row[y]) if isinstance(row, Mapping) else row
        except (KeyError, ValueError, TypeError):
            has = f"has {', '.join(row)}" if isinstance(row, Mapping) else "is no pair"
            raise InputError(
                f"client {who}: row {k} {has}", f"give pairs, or name the columns: x={x!r}, y={y!r}"
            ) from None
        samples.append(_sample(sample))
        labels.append(label if isinstance(label, float) else int(label))
    if len({sample.shape for sample in samples}) > 1:
        raise InputError(f"client {who}: samples of different shapes", hint="bring all to one size first")
    return np.stack(samples) if samples else np.zeros((0, 1), np.float32), np.array(
        labels, dtype=np.float32 if any(isinstance(v, float) for v in labels) else np.int64
    )


def _sample(sample: Any) -> npt.NDArray[Any]:
    """Bytes of an image with its channels first, or floats."""
    image = np.asarray(sample)
    if image.dtype != np.uint8:
        return image.astype(np.float32)
    if hasattr(sample, "getbands"):  # a PIL image
        return image[None] if image.ndim == 2 else np.moveaxis(image, -1, 0)
    return image


def _names(names: Sequence[str] | None, clients: int) -> list[str]:
    found = [str(i) for i in range(clients)] if names is None else [str(who) for who in names]
    if len(found) != clients or len(set(found)) != clients:
        raise InputError(
            f"{len(set(found))} different names for {clients} clients", hint="give every client its own name"
        )
    return found


def _client(who: str, arrays: OwnArrays) -> ClientData:
    if len(arrays) != 4:
        raise InputError(
            f"client {who}: {len(arrays)} arrays instead of 4", hint="give x_train, y_train, x_test, y_test"
        )
    return ClientData(who, _split(who, "train", *arrays[:2]), _split(who, "test", *arrays[2:]))


def _split(who: str, part: str, x: Any, y: Any) -> Split:
    where = f"client {who}: {part}"
    features, labels = _inputs(where, x), _labels(where, _tensor(where, y))
    if len(labels) == 0 or len(features) == 0:
        raise InputError(f"{where} set is empty", hint="give it samples or leave the client out")
    if len(features) != len(labels):
        raise InputError(
            f"{where} set has {len(features)} samples and {len(labels)} labels",
            hint="give one label per sample",
        )
    return Split(features, labels)


def _tensor(where: str, array: Array) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu().clone()
    try:
        return torch.tensor(np.asarray(array))
    except TypeError as error:
        raise InputError(
            f"{where} arrays are of type {np.asarray(array).dtype}", hint="give uint8, float or whole numbers"
        ) from error


def _inputs(where: str, x: Any) -> Any:
    if isinstance(x, Lazy):
        return x
    if not isinstance(x, Mapping | Fields):
        return _features(where, _tensor(where, x))
    tensors = {str(name): _tensor(where, array) for name, array in x.items()}
    if not tensors or len({len(tensor) for tensor in tensors.values()}) > 1:
        raise InputError(f"{where} x has {len(tensors)} fields of different lengths", "give one row per sample in each")
    return Fields({name: _features(where, t) if t.ndim > 1 else t for name, t in tensors.items()})


def _features(where: str, x: Tensor) -> Tensor:
    if x.ndim < 2 or x.is_complex() or x.dtype == torch.bool:
        raise InputError(
            f"{where} x has shape {tuple(x.shape)} and type {_type(x)}",
            hint="give [samples, ...] as uint8, float32 or whole numbers",
        )
    if not x.is_floating_point() and x.dtype != torch.uint8:
        return x.to(torch.int64).contiguous()  # token ids
    if x.is_floating_point():
        x = x.to(torch.float32)
        broken = int((~torch.isfinite(x)).sum())
        if broken:
            raise InputError(f"{where} x has {broken} NaN or infinite values", hint="fill or drop them first")
    return x.contiguous()


def _labels(where: str, y: Tensor) -> Tensor:
    if y.ndim != 1 or y.is_complex() or y.dtype == torch.bool:
        raise InputError(
            f"{where} y has shape {tuple(y.shape)} and type {_type(y)}",
            hint="give one number per sample: whole, 0 to classes - 1, or a float to predict",
        )
    if not y.is_floating_point():
        return y.to(torch.int64)
    if broken := int((~torch.isfinite(y)).sum()):
        raise InputError(f"{where} y has {broken} NaN or infinite values", hint="drop those samples first")
    return y.to(torch.float32)


def _type(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _check_alike(data: Sequence[ClientData]) -> None:
    """All samples of all clients have one shape and one type."""
    first = data[0].train.x
    for client in data:
        for x in (client.train.x, client.test.x):
            if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
                raise InputError(
                    f"client {client.name}: samples of shape {tuple(x.shape[1:])} and type {_type(x)}, client"
                    f" {data[0].name} has {tuple(first.shape[1:])} and {_type(first)}",
                    hint="give all clients samples of one shape and type",
                )


def _checked_classes(data: Sequence[ClientData], classes: int | None) -> int:
    """The number of classes, from the labels if it was not given; 0 where labels are numbers."""
    numbers = [y.is_floating_point() for _, _, y in _all_labels(data)]
    if odd := [(who, part) for (who, part, y) in _all_labels(data) if y.is_floating_point() != numbers[0]]:
        what, others = ("floats", "whole numbers") if not numbers[0] else ("whole numbers", "floats")
        where = f"client {odd[0][0]}: {odd[0][1]} labels are {what}"
        raise InputError(f"{where}, others are {others}", hint="give all clients labels of one type")
    if numbers[0]:
        if classes:
            raise InputError(f"classes = {classes}, but the labels are floats", hint="leave classes out, or give codes")
        return 0
    most = classes if classes is not None else 1 + max(int(y.max()) for _, _, y in _all_labels(data))
    if most < 1:
        raise InputError(f"classes = {most} is not a number of classes", hint="give at least 1")
    for who, part, y in _all_labels(data):
        outside = y[(y < 0) | (y >= most)]
        if len(outside):
            raise InputError(
                f"client {who}: {part} label {int(outside[0])} is outside 0..{most - 1}",
                hint="number the classes from 0, or give the right number of classes",
            )
    return most


def _all_labels(data: Sequence[ClientData]) -> Iterator[tuple[str, str, Tensor]]:
    for client in data:
        yield client.name, "train", client.train.y
        yield client.name, "test", client.test.y


def _per_channel(
    what: str, values: Sequence[float] | None, default: float, shape: tuple[int, ...]
) -> tuple[float, ...]:
    """One value per channel (images) or per column; one value alone serves all of them."""
    if not shape:
        return (default,)
    wanted = (default,) if values is None else tuple(float(v) for v in values)
    if len(wanted) not in (1, shape[0]):
        raise InputError(f"{what} has {len(wanted)} values for {shape[0]} channels", hint="give one or all")
    if not np.isfinite(wanted).all() or (what == "std" and min(wanted) <= 0):
        raise InputError(f"{what} = {wanted} cannot be used for scaling", hint="give finite numbers, std above 0")
    return wanted * (shape[0] // len(wanted))


def _content_fingerprint(data: Sequence[ClientData]) -> str:
    digest = hashlib.sha256()
    for client in data:
        for tensor in (t for part in (*client.train, *client.test) for t in tensors_of(part)):
            digest.update(f"{_type(tensor)}{tuple(tensor.shape)}".encode())
            digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()[:16]


# --- what is legal and still worth knowing ---------------------------------------------------------


def warnings(fed: Federated) -> list[str]:
    """Warnings: a client with one class, test samples of classes that a client never trains on."""
    return [line for client in fed.clients for line in _oddities(client)]


def _oddities(client: ClientData) -> Iterator[str]:
    if client.train.y.is_floating_point():
        return
    seen = torch.unique(client.train.y)
    if len(seen) == 1:
        yield f"client {client.name}: all train samples are of class {int(seen[0])}"
    unseen = int((~torch.isin(client.test.y, seen)).sum())
    if unseen:
        yield (
            f"client {client.name}: {unseen} of {len(client.test.y)} test samples are of classes"
            " absent from its train set"
        )
