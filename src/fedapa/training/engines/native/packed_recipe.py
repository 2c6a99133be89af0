"""The recipe of a call, checked and as the library reads it."""

from __future__ import annotations

import ctypes

from torch import Tensor

from fedapa.errors import InputError
from fedapa.training.engines.native.arguments import TrainingCall, address, number, vector


class Recipe(ctypes.Structure):
    """`Recipe` of kernel.cpp, field by field."""

    _fields_ = [
        ("class_weight", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in ("smoothing", "momentum", "decay")),
    ]


class PackedRecipe:
    """The checked recipe of one call; owns the weights that the structure points to."""

    def __init__(self, call: TrainingCall, classes: int) -> None:
        self._weights = None if call.class_weights is None else _weights(call.class_weights, classes)
        if not 0 <= call.smoothing < 1:
            raise InputError(f"smoothing must be at least 0 and below 1, not {call.smoothing}")
        self.structure = Recipe(
            class_weight=address(self._weights),
            smoothing=call.smoothing,
            momentum=number("momentum", call.momentum),
            decay=number("weight_decay", call.weight_decay),
        )


def _weights(value: Tensor, classes: int) -> Tensor:
    checked = vector("class_weights", value, classes)
    if not bool((checked >= 0).all() and checked.isfinite().all()):
        raise InputError("class_weights must be finite and not negative")
    return checked
