"""How a client sees its samples: images turned by quarters, labels under other names.

A partition without views leaves every sample as the data set has it. Views are kept as plain JSON in the partition's
header, so that a file holds them, and they are a part of its fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.errors import InputError

VIEWS = "views"  # of a partition's header


class View(NamedTuple):
    """What one client does with every sample, in training as in testing."""

    turns: int = 0  # by 90 degrees, counter-clockwise
    labels: tuple[int, ...] = ()  # what every class is called; empty: as in the data set

    def label(self, y: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self.labels:
            return y
        if y.dtype.kind == "f":
            raise InputError("labels that are numbers cannot be renamed", hint="use another rule than permuted-groups")
        renamed: npt.NDArray[Any] = np.asarray(self.labels, y.dtype)[y]
        return renamed

    def image(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(np.rot90(x, self.turns, axes=(-2, -1))) if self.turns else x


def views_of(header: Mapping[str, object], clients: int) -> tuple[View, ...]:
    """The view of every client, from the header of a partition; without any, nobody changes anything."""
    found = header.get(VIEWS)
    if not isinstance(found, list) or len(found) != clients:
        return (View(),) * clients
    return tuple(View(int(one["turns"]), tuple(int(k) for k in one["labels"])) for one in found)


def as_header(views: tuple[View, ...]) -> list[dict[str, object]]:
    return [{"turns": view.turns, "labels": list(view.labels)} for view in views]


def numbers(views: tuple[View, ...]) -> list[list[int]]:
    """What a fingerprint covers: nothing where nobody changes anything, so that older fingerprints stay."""
    return [[view.turns, *view.labels] for view in views] if any(view != View() for view in views) else []


def check_views(views: tuple[View, ...], shape: tuple[int, ...], classes: int) -> None:
    """Refuse views that the data set cannot have."""
    if any(view.turns for view in views) and (len(shape) != 3 or shape[-1] != shape[-2]):
        raise InputError(
            f"samples of shape {shape} cannot be turned by a quarter", hint="turns need square images, [c, n, n]"
        )
    if any(view.labels and len(view.labels) != classes for view in views):
        named = len(next(view.labels for view in views if view.labels))
        raise InputError(
            f"labels of {named} classes are renamed, the data set has {classes}",
            hint="use the data set that the partition was made for; numbers have no names",
        )
