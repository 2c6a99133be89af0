"""The kernel as an object: checks every argument, then calls the library without the GIL.

The kernel knows one family of networks (`Shape`). Extractor parameters are one flat float32 vector theta in
the order of `named_parameters`, the linear head is one flat vector phi (weight, then bias).
Data are a client's whole `x` and `y`; batches are int64 indices into them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedapa.errors import InputError, RunError
from fedapa.training.engines.native import arguments
from fedapa.training.engines.native.arguments import Mixed, MixingCall, Trained, TrainingCall, address
from fedapa.training.engines.native.libraries import (
    BAD_INDEX,
    BAD_LABEL,
    NO_MEMORY,
    NOT_FINITE,
    OK,
    Handle,
    choose,
    new_plan,
)
from fedapa.training.engines.native.network_shape import Shape
from fedapa.training.engines.native.packed_recipe import PackedRecipe
from fedapa.training.engines.native.packed_terms import Pack


class _Tape:
    """What one forward pass keeps for its backward pass. Goes back to the kernel's pool when dropped."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.handle = kernel._take_tape()

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle is not None:
            self._kernel._tapes.append(handle)


class Kernel:
    """One network on one core. Calls from several threads may overlap: each has a workspace of its own.

    `mean` and `std` per channel normalise the input: (x/255 - mean)/std for uint8, (x - mean)/std for
    float32. Without them uint8 is divided by 255 and float32 used as it is.
    `library` names a library ("avx2" or "portable") instead of the one `available` chose.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        *,
        library: str | None = None,
    ) -> None:
        lib, why = choose(os.environ.get("FEDAPA_NATIVE", "") if library is None else library)
        if lib is None:
            raise InputError(f"the native kernel is not available: {why}", "use engine = torch")
        if not 1 <= classes <= 1 << 20:
            raise InputError(f"classes must be between 1 and {1 << 20}, not {classes}")
        arguments.check_statistics(mean, std, shape.channels)
        self.shape = shape
        self.classes = classes
        self.theta_size = shape.theta_size
        self.phi_size = shape.phi_size(classes)
        self._lib = lib
        self._plan = new_plan(lib, shape, classes, mean, std)
        # Pools: list.pop and list.append are atomic, so no lock is needed.
        self._workspaces: list[Handle] = []
        self._tapes: list[Handle] = []

    @contextmanager
    def _workspace(self) -> Iterator[int]:
        """A workspace of this call alone."""
        try:
            workspace = self._workspaces.pop()
        except IndexError:
            workspace = Handle(self._lib.fedapa_workspace_new(), self._lib.fedapa_workspace_free)
        try:
            yield workspace.pointer
        finally:
            self._workspaces.append(workspace)

    def _take_tape(self) -> Handle:
        try:
            return self._tapes.pop()
        except IndexError:
            return Handle(self._lib.fedapa_tape_new(), self._lib.fedapa_tape_free)

    def __reduce__(self) -> Any:
        raise TypeError("a Kernel cannot be pickled; make one in each process")

    def _check(self, status: int, samples: int, batch: str = "") -> None:
        if status == OK:
            return
        if status == NOT_FINITE:
            raise RunError(
                f"the loss of batch {batch} is not finite", "look for NaN in the data, or lower the learning rate"
            )
        if status == NO_MEMORY:
            raise MemoryError("the native kernel ran out of memory")
        if status == BAD_INDEX:
            raise InputError(f"an index is out of range for {samples} samples")
        if status == BAD_LABEL:
            raise InputError(f"a label is outside 0..{self.classes - 1}")
        raise InputError(f"the native kernel refused the call (status {status})")

    # -- forward and backward

    def features(self, theta: Tensor, x: Tensor, index: Tensor | range | None = None) -> Tensor:
        """Features z [n, d] of the indexed samples, differentiable in theta; x gets no gradient."""
        if torch.is_grad_enabled() and theta.requires_grad:
            z: Tensor = Features.apply(theta, self, x, index)  # type: ignore[no-untyped-call]
            return z
        return self._evaluate(theta, None, x, None, index, "z")[0]

    def _forward(
        self, theta: Tensor, x: Tensor, index: Tensor | range | None
    ) -> tuple[Tensor, _Tape, Tensor, Tensor | None]:
        theta = arguments.vector("theta", theta, self.theta_size)
        x = arguments.data(x, self.shape)
        where, start, n = arguments.index_of(index, x)
        if where is None and n and start:
            x, start = x[start : start + n], 0
        z = torch.empty(n, self.shape.features)
        tape = _Tape(self)
        with self._workspace() as workspace:
            status = self._lib.fedapa_features(
                self._plan.pointer,
                workspace,
                tape.handle.pointer,
                theta.data_ptr(),
                x.data_ptr(),
                x.dtype == torch.uint8,
                x.shape[0],
                address(where),
                0,
                n,
                z.data_ptr(),
            )
        self._check(status, x.shape[0])
        return z, tape, x[:n] if where is None else x, where

    def _backward(self, theta: Tensor, x: Tensor, index: Tensor | None, tape: _Tape, dz: Tensor) -> Tensor:
        theta = arguments.vector("theta", theta, self.theta_size)
        n = x.shape[0] if index is None else index.shape[0]
        if n == 0:
            return torch.zeros(self.theta_size)
        if dz.dtype != torch.float32 or dz.shape != (n, self.shape.features):
            raise InputError(f"dz must be float32 of shape ({n}, {self.shape.features})")
        dz = dz.detach().contiguous()
        grad = torch.empty(self.theta_size)
        with self._workspace() as workspace:
            status = self._lib.fedapa_backward(
                self._plan.pointer,
                workspace,
                tape.handle.pointer,
                theta.data_ptr(),
                x.data_ptr(),
                x.dtype == torch.uint8,
                x.shape[0],
                address(index),
                0,
                n,
                dz.data_ptr(),
                grad.data_ptr(),
            )
        self._check(status, x.shape[0])
        return grad

    # -- training

    def train(self, call: TrainingCall) -> Trained:
        """Train from the weights of the call, which is not changed. A loss that is not finite raises RunError."""
        x = arguments.data(call.x, self.shape)
        y = arguments.labels_or_none(call.y, x)
        where, bounds = arguments.batches(call.order, call.bounds, x)
        arguments.check_settings(call)
        w = arguments.vector("theta", call.theta, self.theta_size).clone()
        h = arguments.vector("phi", call.phi, self.phi_size).clone()
        vw = arguments.own_state("velocity_theta", call.velocity_theta, self.theta_size, call.rule)
        vh = arguments.own_state("velocity_phi", call.velocity_phi, self.phi_size, call.rule)
        aw = arguments.optional_vector("anchor_theta", call.anchor_theta, self.theta_size)
        ah = arguments.optional_vector("anchor_phi", call.anchor_phi, self.phi_size)
        recipe = PackedRecipe(call, self.classes)
        pack = None if call.terms.plain and call.extra is None else Pack(call, self.shape, self.classes)
        loss, failed = ctypes.c_double(0.0), ctypes.c_int64(-1)
        with self._workspace() as workspace:
            status = self._lib.fedapa_train(
                self._plan.pointer,
                workspace,
                w.data_ptr(),
                h.data_ptr(),
                vw.data_ptr(),
                vh.data_ptr(),
                x.data_ptr(),
                x.dtype == torch.uint8,
                y.data_ptr(),
                x.shape[0],
                where.data_ptr(),
                bounds.data_ptr(),
                call.batches,
                *call.rates,
                ctypes.byref(recipe.structure),
                address(aw),
                address(ah),
                call.rho,
                not call.freeze_theta,
                not call.freeze_phi,
                0 if call.last is None else call.batches - call.last,
                None if pack is None else ctypes.byref(pack.structure),
                ctypes.byref(loss),
                ctypes.byref(failed),
            )
        self._check(status, x.shape[0], f"{failed.value + 1} of {call.batches}")
        further = (
            {} if pack is None else {"extra": pack.extra, "velocity_extra": pack.velocity_extra, "mean": pack.mean}
        )
        return Trained(w, h, vw, vh, loss.value, **further)

    def mix_head(self, call: MixingCall) -> Mixed:
        """Train the weights of a mixed head on features; the call is not changed."""
        size, d = self.phi_size, self.shape.features
        z = arguments.vector("z", call.z, len(call.z) if isinstance(call.z, Tensor) and call.z.dim() else 0, d)
        y = arguments.labels(call.y, z)
        order, bounds = arguments.batches(call.order, call.bounds, z)
        weights = arguments.vector("W", call.W, size).clone()
        velocity = arguments.own_vector("velocity", call.velocity, size)
        arrived, own = arguments.vector("arrived", call.arrived, size), arguments.vector("own", call.own, size)
        rates = {"lr": call.lr, "momentum": call.momentum, "weight_decay": call.weight_decay}
        loss, failed = ctypes.c_double(0.0), ctypes.c_int64(-1)
        with self._workspace() as workspace:
            status = self._lib.fedapa_mix_head(
                self._plan.pointer,
                workspace,
                weights.data_ptr(),
                velocity.data_ptr(),
                arrived.data_ptr(),
                own.data_ptr(),
                z.data_ptr(),
                y.data_ptr(),
                z.shape[0],
                order.data_ptr(),
                bounds.data_ptr(),
                len(bounds) - 1,
                *(arguments.number(name, rate) for name, rate in rates.items()),
                ctypes.byref(loss),
                ctypes.byref(failed),
            )
        self._check(status, z.shape[0], f"{failed.value + 1} of {len(bounds) - 1}")
        return Mixed(weights, velocity, loss.value)

    # -- evaluation

    def _evaluate(
        self,
        theta: Tensor,
        phi: Tensor | None,
        x: Tensor,
        y: Tensor | None,
        index: Tensor | range | None,
        want: str,
    ) -> tuple[Tensor, int]:
        theta = arguments.vector("theta", theta, self.theta_size)
        head = None if want == "z" else arguments.vector("phi", phi, self.phi_size)  # NULL would end the process
        x = arguments.data(x, self.shape)
        labels = arguments.labels(y, x) if want == "correct" else None
        where, start, n = arguments.index_of(index, x)
        width = {"z": self.shape.features, "logits": self.classes, "correct": 0}[want]
        out = torch.empty(n, width)
        correct, odd = ctypes.c_int64(0), ctypes.c_int(0)
        with self._workspace() as workspace:
            status = self._lib.fedapa_evaluate(
                self._plan.pointer,
                workspace,
                theta.data_ptr(),
                address(head),
                x.data_ptr(),
                x.dtype == torch.uint8,
                address(labels),
                x.shape[0],
                address(where),
                start,
                n,
                out.data_ptr() if want == "z" else None,
                out.data_ptr() if want == "logits" else None,
                ctypes.byref(correct) if want == "correct" else None,
                ctypes.byref(odd),
            )
        self._check(status, x.shape[0])
        if odd.value:
            raise RunError("the network computed NaN", "look for NaN in the data or in the parameters")
        return out, correct.value

    def logits(self, theta: Tensor, phi: Tensor, x: Tensor, index: Tensor | range | None = None) -> Tensor:
        """Logits [n, classes]; no gradient. NaN raises RunError."""
        return self._evaluate(theta, phi, x, None, index, "logits")[0]

    def count_correct(
        self, theta: Tensor, phi: Tensor, x: Tensor, y: Tensor, index: Tensor | range | None = None
    ) -> int:
        """How many of the samples are classified correctly (the first of equal logits wins)."""
        return self._evaluate(theta, phi, x, y, index, "correct")[1]


class Features(torch.autograd.Function):
    """z = features(theta, x[index]) with the kernel's own backward pass; see `Kernel.features`."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, kernel: Kernel, x: Tensor, index: Tensor | range | None) -> Tensor:
        z, tape, data, where = kernel._forward(theta, x, index)
        ctx.kernel, ctx.tape = kernel, tape
        ctx.save_for_backward(theta, data, where)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, None, None, None]:
        theta, data, where = ctx.saved_tensors
        return ctx.kernel._backward(theta, data, where, ctx.tape, dz), None, None, None
