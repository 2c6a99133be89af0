"""The recipe of a call, checked and as the library reads it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fedapa.errors import InputError
from fedapa.training.engines.native.arguments import TrainingCall, address, number, vector


class Recipe(ctypes.Structure):
    """`Recipe` of kernel.cpp, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("target", "class_weight")),
        *((name, ctypes.c_double) for name in ("first", "second")),
        ("rule", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("smoothing", "clip", "decay", "momentum", "eps")),
    ]


RULES = ("sgd", "nesterov", "adam", "adamw")  # `Rule` of kernel.cpp


class PackedRecipe:
    """The checked recipe of one call; owns every tensor that the structure points to."""

    def __init__(self, call: TrainingCall, classes: int) -> None:
        self._targets = None if call.y.dtype == torch.int64 else _targets(call, classes)
        self._weights = None if call.class_weights is None else _weights(call.class_weights, classes)
        if not 0 <= call.smoothing < 1:
            raise InputError(f"smoothing must be at least 0 and below 1, not {call.smoothing}")
        rule = call.rule
        if not all(0 <= beta < 1 for beta in rule.betas):
            raise InputError(f"betas must be at least 0 and below 1, not {rule.betas}")
        self.structure = Recipe(
            target=address(self._targets),
            class_weight=address(self._weights),
            first=rule.betas[0],
            second=rule.betas[1],
            rule=RULES.index("nesterov" if rule.name == "sgd" and rule.nesterov else rule.name),
            smoothing=call.smoothing,
            clip=number("clip_norm", call.clip_norm),
            decay=number("weight_decay", rule.weight_decay),
            momentum=number("momentum", rule.momentum),
            eps=number("eps", rule.eps),
        )


def _targets(call: TrainingCall, outputs: int) -> Tensor:
    if outputs != 1 or call.class_weights is not None or call.smoothing:
        raise InputError("squared errors need a network with one output, without class weights and smoothing")
    if call.terms.pull is not None:
        raise InputError("a pull to targets of classes needs classes")
    return vector("y", call.y, len(call.x))


def _weights(value: Tensor, classes: int) -> Tensor:
    checked = vector("class_weights", value, classes)
    if not bool((checked >= 0).all() and checked.isfinite().all()):
        raise InputError("class_weights must be finite and not negative")
    return checked
