"""The list of partition rules, and `split`, which applies one of them by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedapa.data.partitions.class_shares import dirichlet, pathological, random_classes
from fedapa.data.partitions.equal_mix import iid, quantity
from fedapa.data.partitions.partition import Partition
from fedapa.data.partitions.partition_math import subset_of
from fedapa.data.partitions.planted import (
    nested_groups,
    outlier,
    overlapping_groups,
    permuted_groups,
    rotated_groups,
    uneven_groups,
)
from fedapa.data.partitions.site_groups import by_group, number_of_groups
from fedapa.data.partitions.split_request import (
    ALPHA,
    GROUP_COUNT,
    MAX_REDRAWS,
    MIN_TEST,
    MIN_TRAIN,
    PER_CLIENT,
    Parameter,
    SplitRequest,
    make_request,
)
from fedapa.errors import InputError, did_you_mean

T = TypeVar("T")


class Rule(NamedTuple):
    name: str
    partition: Callable[[SplitRequest], Partition]
    parameters: tuple[Parameter, ...]
    help: str
    clients: Callable[[Mapping[str, Any]], int] | None = None  # how many, where nobody says


_MINIMA = (MIN_TRAIN, MIN_TEST)
_DRAWN = (*_MINIMA, MAX_REDRAWS)
_SIZES = ALPHA._replace(default=1.0, help="concentration; small: very unequal sizes")
_GROUPS = (
    Parameter("groups_train", list, None, 0, 0, "group of every train sample"),
    Parameter("groups_test", list, None, 0, 0, "group of every test sample"),
    *(parameter._replace(default=0) for parameter in _MINIMA),
)
_FEW = "few classes per client"
_FOUR = GROUP_COUNT._replace(default=4)
_ALL_RULES = (
    Rule("dirichlet", dirichlet, (ALPHA, *_DRAWN), "Dirichlet shares of every class (as in FedAPA)"),
    Rule(
        "pathological",
        pathological,
        (PER_CLIENT, *_DRAWN),
        f"{_FEW}, in groups of clients with the same classes (as in FedAPA)",
    ),
    Rule("random-classes", random_classes, (PER_CLIENT, *_DRAWN), f"{_FEW}, chosen at random (like pFedHN)"),
    Rule("iid", iid, _MINIMA, "equally many samples of every class for everybody"),
    Rule("quantity", quantity, (_SIZES, *_DRAWN), "the same mix of classes everywhere, Dirichlet sizes"),
    Rule("uneven-groups", uneven_groups, (GROUP_COUNT, *_DRAWN), "groups of the same classes, of halving sizes"),
    Rule(
        "overlapping-groups", overlapping_groups, (GROUP_COUNT, *_DRAWN), "groups in a ring, neighbours share a class"
    ),
    Rule("nested-groups", nested_groups, (_FOUR, *_DRAWN), "groups two by two, with one class in common"),
    Rule(
        "rotated-groups", rotated_groups, (_FOUR, *_MINIMA), "iid, the images of every group turned by other quarters"
    ),
    Rule("permuted-groups", permuted_groups, (_FOUR, *_MINIMA), "iid, classes have other names in every group"),
    Rule("outlier", outlier, _DRAWN, "one client has classes of its own, the others have the rest"),
    Rule(
        "by-group", by_group, _GROUPS, "one client per group of the rows, a site column for example", number_of_groups
    ),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL_RULES}


def split(
    rule: str,
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    clients: int | None,
    seed: int = 0,
    train_share: float = 1.0,
    **params: Any,
) -> Partition:
    """Split by the rule of this name (random_classes is read as random-classes).

    ``train_share`` deals only a share of the train samples of every class, drawn by the seed; the test set stays whole.
    """
    chosen = _known(rule.replace("_", "-"), RULES, "partition rule")
    names = {parameter.name: parameter for parameter in chosen.parameters}
    for name in params:
        _known(name, names, f"parameter of {chosen.name}")
    absent = [name for name, parameter in names.items() if parameter.default is None and name not in params]
    if absent:
        raise InputError(f"{chosen.name}: {' and '.join(absent)} must be given", hint="one value per sample")
    if clients is None and chosen.clients is not None:
        clients = chosen.clients(params)
    kept = _kept(y_train, train_share, seed)
    y_train = y_train if kept is None else np.asarray(y_train)[kept]
    request = make_request(chosen.name, chosen.parameters, (y_train, y_test), clients, seed, params)
    made = chosen.partition(request)
    if kept is None:
        return made
    return replace(
        made, train=tuple(kept[index] for index in made.train), rule={**made.rule, "train_share": train_share}
    )


def _kept(y_train: npt.ArrayLike, train_share: float, seed: int) -> npt.NDArray[np.int64] | None:
    """The train samples that are dealt, ascending; None for all."""
    if not 0 < train_share <= 1:
        raise InputError(
            f"train_share = {train_share} is not a share of the train samples", hint="use a number up to 1"
        )
    return None if train_share == 1 else subset_of(np.asarray(y_train), train_share, np.random.default_rng([seed, 2]))


def _known(name: str, known: Mapping[str, T], what: str) -> T:
    if name in known:
        return known[name]
    hint = did_you_mean(name, known, f"known: {', '.join(known)}")
    raise InputError(f"there is no {what} called '{name}'", hint=hint)
