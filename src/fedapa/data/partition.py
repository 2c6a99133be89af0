"""Which example belongs to whom: index lists per client, drawn from labels alone.

The rules `dirichlet` and `pathological` are those of the released FedAPA code: every class is cut into shares
over the clients, the same shares for the train and for the test set, rounded down, in the order of the data
set; what rounding leaves over is dropped; everything is drawn again until every client has enough.
"""

import difflib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedapa.data import partition_math
from fedapa.data.arrays_file import read_npz
from fedapa.data.partition_math import Draw, Floats, Index
from fedapa.errors import InputError, RunError

T = TypeVar("T")

FORMAT = "fedapa-partition-1"
MIN_TRAIN, MIN_TEST, MAX_REDRAWS = 128, 2, 20_000


@dataclass(frozen=True)
class Partition:
    """Sorted sample indices of every client, and the rule, parameters and seed that gave them."""

    train: tuple[Index, ...]
    test: tuple[Index, ...]
    rule: dict[str, object]

    @property
    def clients(self) -> int:
        return len(self.train)


# --- rules ---------------------------------------------------------------------------------------


def dirichlet(
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    clients: int,
    seed: int = 0,
    *,
    alpha: float = 0.1,
    min_train: int = MIN_TRAIN,
    min_test: int = MIN_TEST,
    max_redraws: int = MAX_REDRAWS,
) -> Partition:
    """Shares of every class over the clients ~ Dirichlet(alpha), independently of the other classes."""
    given = {"alpha": alpha, "min_train": min_train, "min_test": min_test, "max_redraws": max_redraws}
    request = _request("dirichlet", y_train, y_test, clients, seed, given)
    _check_several_classes(request)

    def draw(rng: np.random.Generator, candidates: int) -> Floats:
        return rng.dirichlet(np.full(clients, alpha), (candidates, request.classes))

    return _drawn(request, draw)


def pathological(
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    clients: int,
    seed: int = 0,
    *,
    classes_per_client: int = 2,
    min_train: int = MIN_TRAIN,
    min_test: int = MIN_TEST,
    max_redraws: int = MAX_REDRAWS,
) -> Partition:
    """Every class goes to the first M*c/C clients that lack classes; shares ~ U(0.3, 0.7), normalised.

    Clients therefore come in groups of the very same classes (20 clients, 10 classes, 2 each: 5 groups of 4).
    """
    given = {"classes_per_client": classes_per_client, "min_train": min_train, "min_test": min_test}
    request = _request("pathological", y_train, y_test, clients, seed, given | {"max_redraws": max_redraws})
    _check_several_classes(request)
    _check_classes_per_client(request, classes_per_client)
    _check_groups_come_out(request, classes_per_client)
    holders = partition_math.greedy_holders(clients, request.classes, classes_per_client)

    def draw(rng: np.random.Generator, candidates: int) -> Floats:
        return partition_math.normalised(holders * rng.uniform(0.3, 0.7, (candidates, *holders.shape)))

    return _drawn(request, draw)


def random_classes(
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    clients: int,
    seed: int = 0,
    *,
    classes_per_client: int = 2,
    min_train: int = MIN_TRAIN,
    min_test: int = MIN_TEST,
    max_redraws: int = MAX_REDRAWS,
) -> Partition:
    """Every client holds random classes, every class somebody's if possible, in shares ~ U(0.4, 0.6)."""
    given = {"classes_per_client": classes_per_client, "min_train": min_train, "min_test": min_test}
    request = _request("random-classes", y_train, y_test, clients, seed, given | {"max_redraws": max_redraws})
    _check_several_classes(request)
    _check_classes_per_client(request, classes_per_client)
    sizes = clients, request.classes

    def draw(rng: np.random.Generator, candidates: int) -> Floats:
        # One block of numbers per candidate: the batch size then does not change what is drawn.
        numbers = rng.random((candidates, sum(sizes) + 2 * math.prod(sizes)))
        holders, weights = partition_math.random_holders(numbers, *sizes, classes_per_client)
        return partition_math.normalised(holders * (0.4 + 0.2 * weights))

    return _drawn(request, draw)


def quantity(
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    clients: int,
    seed: int = 0,
    *,
    alpha: float = 1.0,
    min_train: int = MIN_TRAIN,
    min_test: int = MIN_TEST,
    max_redraws: int = MAX_REDRAWS,
) -> Partition:
    """The same mix of classes everywhere, client sizes ~ Dirichlet(alpha)."""
    given = {"alpha": alpha, "min_train": min_train, "min_test": min_test, "max_redraws": max_redraws}
    request = _request("quantity", y_train, y_test, clients, seed, given)

    def draw(rng: np.random.Generator, candidates: int) -> Floats:
        sizes = rng.dirichlet(np.full(clients, alpha), (candidates, 1))
        return np.broadcast_to(sizes, (candidates, request.classes, clients))

    return _drawn(request, draw)


def iid(
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    clients: int,
    seed: int = 0,
    *,
    min_train: int = MIN_TRAIN,
    min_test: int = MIN_TEST,
) -> Partition:
    """The same number of samples of every class for everybody; the seed decides which ones."""
    given = {"min_train": min_train, "min_test": min_test}
    request = _request("iid", y_train, y_test, clients, seed, given)
    _check_enough(request)
    # Whole numbers throughout: floor(n * (1 / M)) loses a sample to rounding, at n = M = 49 for example.
    train, test = (np.repeat(n[:, None] // clients, clients, axis=1) for n in request.counts)
    _check_sizes(request, train.sum(0), test.sum(0))
    return _partition(request, (train, test), redraws=0, shuffle=np.random.default_rng(seed))


def by_group(
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    clients: int | None = None,
    seed: int = 0,
    *,
    groups_train: Sequence[object] | npt.NDArray[Any],
    groups_test: Sequence[object] | npt.NDArray[Any],
    min_train: int = 0,
    min_test: int = 0,
) -> Partition:
    """One client per group (a site column, say), in the alphabetical order of the groups."""
    groups = np.asarray(groups_train).astype(str), np.asarray(groups_test).astype(str)
    names = np.unique(groups[0])
    given = {"min_train": min_train, "min_test": min_test}
    request = _request("by-group", y_train, y_test, names.size if clients is None else clients, seed, given)
    _check_groups(request, names, groups)
    owners = [np.searchsorted(names, of_samples) for of_samples in groups]
    train, test = (partition_math.indices(owner, names.size) for owner in owners)
    _check_sizes(request, _lengths(train), _lengths(test), names)
    return Partition(train, test, _header(request, redraws=0) | {"names": names.tolist()})


# --- what a rule accepts ---------------------------------------------------------------------------


class Parameter(NamedTuple):
    name: str
    kind: type  # int, float, or list: one value per sample
    default: object  # None: must be given
    low: float
    high: float
    help: str


class Rule(NamedTuple):
    name: str
    split: Callable[..., Partition]
    parameters: tuple[Parameter, ...]
    help: str


# Below 0.001 shares are all or nothing, above a million they are all equal: nobody means that.
_ALPHA = Parameter("alpha", float, 0.1, 1e-3, 1e6, "concentration; small: every class at few clients")
_PER_CLIENT = Parameter("classes_per_client", int, 2, 1, math.inf, "number of classes at every client")
_MIN_TRAIN = Parameter("min_train", int, MIN_TRAIN, 0, math.inf, "train sets must be larger than this")
_MIN_TEST = Parameter("min_test", int, MIN_TEST, 0, math.inf, "test sets must be larger than this")
_REDRAWS = Parameter("max_redraws", int, MAX_REDRAWS, 0, 1e9, "how often to draw again before giving up")
_GROUPS = (
    Parameter("groups_train", list, None, 0, 0, "group of every train sample"),
    Parameter("groups_test", list, None, 0, 0, "group of every test sample"),
)
_ALL_RULES = (
    Rule(
        "dirichlet",
        dirichlet,
        (_ALPHA, _MIN_TRAIN, _MIN_TEST, _REDRAWS),
        "Dirichlet shares of every class (as in FedAPA)",
    ),
    Rule(
        "pathological",
        pathological,
        (_PER_CLIENT, _MIN_TRAIN, _MIN_TEST, _REDRAWS),
        "few classes per client, in groups of clients with the same classes (as in FedAPA)",
    ),
    Rule(
        "random-classes",
        random_classes,
        (_PER_CLIENT, _MIN_TRAIN, _MIN_TEST, _REDRAWS),
        "few classes per client, chosen at random (like pFedHN)",
    ),
    Rule("iid", iid, (_MIN_TRAIN, _MIN_TEST), "equally many samples of every class for everybody"),
    Rule(
        "quantity",
        quantity,
        (
            _ALPHA._replace(default=1.0, help="concentration; small: very unequal sizes"),
            _MIN_TRAIN,
            _MIN_TEST,
            _REDRAWS,
        ),
        "the same mix of classes everywhere, Dirichlet sizes",
    ),
    Rule(
        "by-group",
        by_group,
        (*_GROUPS, _MIN_TRAIN._replace(default=0), _MIN_TEST._replace(default=0)),
        "one client per group of the rows, a site column for example",
    ),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL_RULES}


def split(
    rule: str,
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    clients: int | None,
    seed: int = 0,
    **params: Any,
) -> Partition:
    """Split by the rule of this name (random_classes is read as random-classes)."""
    chosen = _known(rule.replace("_", "-"), RULES, "partition rule")
    names = {parameter.name: parameter for parameter in chosen.parameters}
    for name in params:
        _known(name, names, f"parameter of {chosen.name}")
    absent = [name for name, parameter in names.items() if parameter.default is None and name not in params]
    if absent:
        raise InputError(f"{chosen.name}: {' and '.join(absent)} must be given", hint="one value per sample")
    return chosen.split(y_train, y_test, clients, seed, **params)


def _known(name: str, known: Mapping[str, T], what: str) -> T:
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    raise InputError(f"there is no {what} called '{name}'", hint=hint)


class Request(NamedTuple):
    """A checked request: what every rule needs."""

    rule: str
    clients: int
    seed: int
    given: Mapping[str, float]
    codes: tuple[Index, Index]  # class of every train and test sample, numbered without gaps
    counts: tuple[Index, Index]  # [C] samples of every class

    @property
    def classes(self) -> int:
        return self.counts[0].size

    @property
    def minimum(self) -> tuple[int, int]:
        return int(self.given["min_train"]), int(self.given["min_test"])


def _request(
    rule: str,
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    clients: int,
    seed: int,
    given: Mapping[str, float],
) -> Request:
    _check_number(rule, Parameter("clients", int, None, 1, math.inf, ""), clients)
    _check_number(rule, Parameter("seed", int, None, 0, math.inf, ""), seed)
    for parameter in RULES[rule].parameters:
        if parameter.name in given:
            _check_number(rule, parameter, given[parameter.name])
    train, test = _labels(rule, "train", y_train), _labels(rule, "test", y_test)
    names, codes = np.unique(train, return_inverse=True)
    _check_known_labels(rule, test, names)
    both = codes.astype(np.int64), np.searchsorted(names, test).astype(np.int64)
    counts = np.bincount(both[0], minlength=names.size), np.bincount(both[1], minlength=names.size)
    return Request(rule, clients, seed, given, both, counts)


def _check_number(rule: str, parameter: Parameter, value: object) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    right_type = whole or (parameter.kind is float and isinstance(value, float | np.floating))
    if not right_type or not parameter.low <= value <= parameter.high:  # type: ignore[operator]
        noun = "a whole number" if parameter.kind is int else "a number"
        upper = f" and at most {parameter.high:g}" if parameter.high < math.inf else ""
        raise InputError(
            f"{rule}: {parameter.name} = {value!r} is not {noun} of at least {parameter.low:g}{upper}",
            hint=f"choose another {parameter.name}",
        )


def _labels(rule: str, part: str, y: npt.ArrayLike) -> Index:
    labels = np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        found = f"shape {labels.shape} and type {labels.dtype}"
        raise InputError(f"{rule}: the {part} labels have {found}", hint="give one whole number per sample")
    if labels.size == 0:
        raise InputError(f"{rule}: there are no {part} samples", hint="check the data set")
    return labels.astype(np.int64)


def _check_known_labels(rule: str, test: Index, names: Index) -> None:
    unknown = np.setdiff1d(test, names)
    if unknown.size:
        raise InputError(
            f"{rule}: class {unknown[0]} is in the test set and not in the train set",
            hint="drop its samples, or make both sets from the same classes",
        )


def _check_enough(request: Request) -> None:
    for part, counts, minimum in zip(("train", "test"), request.counts, request.minimum, strict=True):
        needed = request.clients * (minimum + 1)
        if needed > counts.sum():
            raise InputError(
                f"{request.rule}: {request.clients} clients with more than {minimum} {part} samples each need"
                f" {needed:,} samples, the data set has {counts.sum():,}",
                hint=f"use at most {counts.sum() // (minimum + 1)} clients, or a smaller min_{part}",
            )


def _check_several_classes(request: Request) -> None:
    if request.classes < 2:
        raise InputError(
            f"{request.rule}: all samples are of one class, there is nothing to distribute by class",
            hint="use the rule iid or quantity",
        )


def _check_classes_per_client(request: Request, per_client: int) -> None:
    if per_client > request.classes:
        raise InputError(
            f"{request.rule}: classes_per_client = {per_client}, the data set has {request.classes} classes",
            hint=f"use at most {request.classes} classes per client",
        )


def _check_groups_come_out(request: Request, per_client: int) -> None:
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


def _check_groups(request: Request, names: npt.NDArray[np.str_], groups: Sequence[npt.NDArray[np.str_]]) -> None:
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


def _check_sizes(request: Request, train: Index, test: Index, names: npt.NDArray[np.str_] | None = None) -> None:
    for part, sizes, minimum in zip(("train", "test"), (train, test), request.minimum, strict=True):
        i = int(sizes.argmin())
        if sizes[i] <= minimum:
            who = i if names is None else f"'{names[i]}'"
            raise InputError(
                f"{request.rule}: client {who} would have {sizes[i]} {part} samples, not more than {minimum}",
                hint=f"use fewer clients or a smaller min_{part}",
            )


# --- from a request to a partition -----------------------------------------------------------------


def _drawn(request: Request, draw: Draw) -> Partition:
    _check_enough(request)
    rng = np.random.default_rng(request.seed)
    bound = int(request.given["max_redraws"])
    search = partition_math.first_acceptable(draw, rng, request.counts, request.clients, request.minimum, bound)
    if search.shares is None:
        raise _exhausted(request, search)
    train, test = (partition_math.floor_sizes(search.shares, counts) for counts in request.counts)
    return _partition(request, (train, test), search.redraws)


def _exhausted(request: Request, search: partition_math.Search) -> InputError:
    """Say which minimum failed in the draw that came nearest."""
    part = "train" if search.best[0] <= request.minimum[0] else "test"
    size, minimum = (b[part == "test"] for b in (search.best, request.minimum))
    knob = "a larger alpha, " if "alpha" in request.given else ""
    return InputError(
        f"{request.rule}: none of {search.redraws:,} draws gave each of {request.clients} clients more than"
        f" {request.minimum[0]} train and {request.minimum[1]} test samples; in the best draw the smallest"
        f" {part} set had {size} <= {minimum}",
        hint=f"use fewer clients, {knob}or a smaller min_{part}",
    )


def _partition(
    request: Request, sizes: tuple[Index, Index], redraws: int, shuffle: np.random.Generator | None = None
) -> Partition:
    train, test = (
        partition_math.indices(partition_math.owners(codes, of_part, shuffle), request.clients)
        for codes, of_part in zip(request.codes, sizes, strict=True)
    )
    return Partition(train, test, _header(request, redraws))


def _header(request: Request, redraws: int) -> dict[str, object]:
    """Plain JSON values only: the header is stored with the indices."""
    parameters = {name: float(v) if isinstance(v, float) else int(v) for name, v in request.given.items()}
    return {
        "name": request.rule,
        "clients": int(request.clients),
        "seed": int(request.seed),
        "parameters": parameters,
        "redraws": redraws,
        "samples": [codes.size for codes in request.codes],
    }


# --- a partition as a thing ------------------------------------------------------------------------


def fingerprint(partition: Partition) -> str:
    """16 hex digits that change with any index of any client, equal on every platform."""
    return fingerprint_of(partition.train, partition.test)


def fingerprint_of(*parts: Sequence[Index]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(_little_endian([len(part), *_lengths(part)]))
        for index in part:
            digest.update(_little_endian(index))
    return digest.hexdigest()[:16]


def _little_endian(numbers: npt.ArrayLike) -> bytes:
    return np.asarray(numbers).astype("<i8").tobytes()


def _lengths(part: Sequence[Index]) -> Index:
    return np.array([index.size for index in part], np.int64)


class LabelCounts(NamedTuple):
    train: Index  # [M, C]
    test: Index


def label_counts(partition: Partition, y_train: npt.ArrayLike, y_test: npt.ArrayLike) -> LabelCounts:
    """How many samples of every class every client has."""
    labels = np.asarray(y_train), np.asarray(y_test)
    check_fits(partition, labels[0].size, labels[1].size)
    classes = 1 + max(int(y.max()) for y in labels)
    return LabelCounts(
        *(
            np.stack([np.bincount(y[index], minlength=classes) for index in part])
            for y, part in zip(labels, (partition.train, partition.test), strict=True)
        )
    )


def check_fits(partition: Partition, n_train: int, n_test: int) -> None:
    """Refuse a partition whose indices point outside a data set of this size."""
    for part, lists, size in (("train", partition.train, n_train), ("test", partition.test, n_test)):
        for i, index in enumerate(lists):
            if index.size and (index.min() < 0 or index.max() >= size):
                raise InputError(
                    f"partition: client {i} has {part} index {_outside(index)}, the data set has"
                    f" {size:,} {part} samples",
                    hint="use the data set that the partition was made for",
                )


def _outside(index: Index) -> int:
    return int(index.min() if index.min() < 0 else index.max())


# --- files -----------------------------------------------------------------------------------------


def save(partition: Partition, path: Path) -> None:
    """Write index arrays and a JSON header into one .npz, complete or not at all."""
    header = {"format": FORMAT, "rule": partition.rule, "fingerprint": fingerprint(partition)}
    arrays = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    for name, part in (("train", partition.train), ("test", partition.test)):
        arrays[name] = np.concatenate(part).astype("<i8")
        arrays[f"{name}_lengths"] = _lengths(part).astype("<i8")
    try:
        _write_atomically(Path(path), arrays)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}", hint="check the folder") from error


def _write_atomically(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, **dict(arrays))  # type: ignore[arg-type]
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path: Path) -> Partition:
    """Read what `save` wrote; anything else, or anything damaged, is refused."""
    header, arrays = _read(Path(path))
    try:
        train, test = (_split_lists(arrays[name], arrays[f"{name}_lengths"]) for name in ("train", "test"))
        partition = Partition(train, test, header["rule"])
        intact = header["fingerprint"] == fingerprint(partition) and len(train) == len(test)
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_partition(path, f"its arrays are damaged ({error})") from error
    if not intact:
        raise _not_a_partition(path, "its indices do not match its fingerprint")
    return partition


def _read(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    try:
        path.stat()
        arrays = read_npz(path, "")
        header = json.loads(arrays["header"].tobytes())
        recognised = header["format"] == FORMAT
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such partition file", hint="make one with 'fedapa data split'") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _not_a_partition(path, str(error).splitlines()[0] if str(error) else "it is empty") from error
    if not recognised:
        raise _not_a_partition(path, f"its format is {header['format']!r}, not {FORMAT!r}")
    return header, arrays


def _not_a_partition(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: not a sound partition file: {reason}", hint="make it again with 'fedapa data split'")


def _split_lists(values: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> tuple[Index, ...]:
    if values.dtype.kind != "i" or lengths.dtype.kind != "i" or lengths.sum() != values.size:
        raise ValueError("lengths and indices disagree")
    return tuple(np.split(values.astype(np.int64), np.cumsum(lengths)[:-1]))
