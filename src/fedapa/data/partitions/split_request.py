"""What a partition rule is asked for: its parameters with ranges and defaults, and the checked request."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.data.partitions.partition_math import Index
from fedapa.errors import InputError


class Parameter(NamedTuple):
    name: str
    kind: type  # int, float, or list: one value per sample
    default: object  # None: must be given
    low: float
    high: float
    help: str


CLIENTS = Parameter("clients", int, None, 1, math.inf, "number of clients")
SEED = Parameter("seed", int, None, 0, math.inf, "seed of the draw")
# Below 0.001 shares are all or nothing, above a million they are all equal: nobody means that.
ALPHA = Parameter("alpha", float, 0.1, 1e-3, 1e6, "concentration; small: every class at few clients")
PER_CLIENT = Parameter("classes_per_client", int, 2, 1, math.inf, "number of classes at every client")
GROUP_COUNT = Parameter("groups", int, 5, 2, math.inf, "number of planted groups")
MIN_TRAIN = Parameter("min_train", int, 128, 0, math.inf, "train sets must be larger than this")
MIN_TEST = Parameter("min_test", int, 2, 0, math.inf, "test sets must be larger than this")
MAX_REDRAWS = Parameter("max_redraws", int, 20_000, 0, 1e9, "how often to draw again before giving up")


class SplitRequest(NamedTuple):
    """A checked request: what every rule needs."""

    rule: str
    clients: int
    seed: int
    given: Mapping[str, Any]  # every parameter of the rule
    codes: tuple[Index, Index]  # class of every train and test sample, numbered without gaps
    counts: tuple[Index, Index]  # [C] samples of every class

    @property
    def classes(self) -> int:
        return self.counts[0].size

    @property
    def minimum(self) -> tuple[int, int]:
        return int(self.given["min_train"]), int(self.given["min_test"])


def make_request(
    rule: str,
    parameters: tuple[Parameter, ...],
    labels: tuple[npt.ArrayLike, npt.ArrayLike],
    clients: object,
    seed: object,
    given: Mapping[str, Any],
) -> SplitRequest:
    """Fill in the defaults and check every value."""
    given = {parameter.name: given.get(parameter.name, parameter.default) for parameter in parameters}
    wanted, drawn_by = _number(rule, CLIENTS, clients), _number(rule, SEED, seed)
    for parameter in parameters:
        if parameter.kind is not list:
            _number(rule, parameter, given[parameter.name])
    train, test = (_labels(rule, part, y) for part, y in zip(("train", "test"), labels, strict=True))
    names, codes = np.unique(train, return_inverse=True)
    _check_known_labels(rule, test, names)
    both = codes.astype(np.int64), np.searchsorted(names, test).astype(np.int64)
    counts = np.bincount(both[0], minlength=names.size), np.bincount(both[1], minlength=names.size)
    return SplitRequest(rule, wanted, drawn_by, given, both, counts)


def _number(rule: str, parameter: Parameter, value: Any) -> Any:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    right_type = whole or (parameter.kind is float and isinstance(value, float | np.floating))
    if not right_type or not parameter.low <= value <= parameter.high:
        noun = "a whole number" if parameter.kind is int else "a number"
        upper = f" and at most {parameter.high:g}" if parameter.high < math.inf else ""
        raise InputError(
            f"{rule}: {parameter.name} = {value!r} is not {noun} of at least {parameter.low:g}{upper}",
            hint=f"choose another {parameter.name}",
        )
    return value


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
