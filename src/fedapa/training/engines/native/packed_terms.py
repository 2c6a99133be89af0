"""The terms of a call, checked and as the library reads them."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from torch import Tensor

from fedapa.errors import InputError
from fedapa.training.engines.native.arguments import TrainingCall, number, own_state, own_vector, vector
from fedapa.training.engines.native.network_shape import Shape
from fedapa.training.engines.native.terms import Mixture, Mmd, SoftLabels, Terms


class Packed(ctypes.Structure):
    """`Terms` of kernel.cpp, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("extra", "v_extra", "target", "present", "mean", "mean_target")),
        *((name, ctypes.c_void_p) for name in ("teacher_theta", "teacher_phi", "others", "origin")),
        ("models", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("train_extra", "shifts", "bandwidths")),
        *((name, ctypes.c_float) for name in ("lr_extra", "share", "pull", "shift_scale", "mu", "mean_pull")),
        *((name, ctypes.c_float) for name in ("teach", "temperature", "widest", "floor", "stiffness")),
    ]


class Pack:
    """Checked terms of one call; owns every tensor that the structure points to."""

    def __init__(self, call: TrainingCall, shape: Shape, classes: int) -> None:
        terms = call.terms
        self._kept: list[Tensor] = []
        self._shape, self._classes = shape, classes
        self.mean: Tensor | None = None
        self.extra: Tensor | None = None
        self.velocity_extra: Tensor | None = None
        given: dict[str, Any] = {"models": -1, "share": number("share", terms.share)}
        given |= self._pulls(terms) | self._taught(terms.teacher) | self._mixed(terms.mixture)
        if terms.shift is not None:
            given |= {"shifts": True, "shift_scale": number("shift", terms.shift)}
        self.structure = Packed(**given | self._trained(call, given["models"]))

    def _trained(self, call: TrainingCall, models: int) -> dict[str, Any]:
        """The vector that is trained along."""
        if (call.extra is not None) != call.terms.has_extra:
            raise InputError("a shift or a mixture needs an extra vector, and nothing else has one")
        if call.terms.shift is not None and models >= 0:
            raise InputError("a shift and a mixture cannot share the extra vector")
        if call.extra is None:
            return {}
        size = models + 1 if models >= 0 else self._shape.features
        self.extra = own_vector("extra", call.extra, size)
        self.velocity_extra = own_state("velocity_extra", call.velocity_extra, size, call.rule)
        found = {"extra": self.extra.data_ptr(), "v_extra": self.velocity_extra.data_ptr()}
        return found | {"lr_extra": number("lr_extra", call.lr_extra), "train_extra": not call.freeze_extra}

    def _address(self, name: str, value: Tensor, *size: int) -> int:
        checked = vector(name, value, *size)
        self._kept.append(checked)
        return checked.data_ptr()

    def _pulls(self, terms: Terms) -> dict[str, Any]:
        d, found = self._shape.features, dict[str, Any]()
        if (pull := terms.pull) is not None:
            found["target"] = self._address("target", pull.target, self._classes, d)
            found["present"] = self._address("present", pull.present, self._classes)
            found["pull"] = number("strength of the pull", pull.strength)
        if (mean := terms.mean) is not None:
            self.mean = vector("m", mean.m, d).clone()
            found["mean"] = self.mean.data_ptr()
            found["mean_target"] = self._address("target of the mean", mean.target, d)
            found |= {"mu": number("mu", mean.mu), "mean_pull": number("strength of the mean's pull", mean.strength)}
        return found

    def _taught(self, teacher: Mmd | SoftLabels | None) -> dict[str, Any]:
        if teacher is None:
            return {}
        found: dict[str, Any] = {"teach": number("strength of the teacher", teacher.strength)}
        found["teacher_theta"] = self._address("the teacher's theta", teacher.theta, self._shape.theta_size)
        if isinstance(teacher, SoftLabels):
            found["teacher_phi"] = self._address("the teacher's phi", teacher.phi, self._shape.phi_size(self._classes))
            return found | {"temperature": _positive("temperature", teacher.temperature)}
        if not 1 <= teacher.bandwidths <= 64:
            raise InputError(f"bandwidths must be between 1 and 64, not {teacher.bandwidths}")
        return found | {
            "widest": _positive("widest", teacher.widest),
            "floor": _positive("floor", teacher.floor),
            "bandwidths": teacher.bandwidths,
        }

    def _mixed(self, mixture: Mixture | None) -> dict[str, Any]:
        if mixture is None:
            return {}
        others = mixture.others
        models = len(others) if isinstance(others, Tensor) and others.dim() else 0
        size = self._shape.theta_size + self._shape.phi_size(self._classes)
        return {
            "models": models,
            "others": self._address("others", others, models, size),
            "origin": self._address("origin", mixture.origin, models + 1),
            "stiffness": number("stiffness", mixture.stiffness),
        }


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be finite and positive, not {value}")
    return value
