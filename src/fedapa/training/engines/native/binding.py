"""Typed wrapper of the native kernel: checks every argument, then calls the library without the GIL.

The kernel knows one family of networks (`Shape`). Extractor parameters are one flat float32 vector theta in
the order of `named_parameters`, the linear head is one flat vector phi (weight, then bias).
Data are a client's whole `x` and `y`; batches are int64 indices into them.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedapa.errors import InputError, RunError

ABI = 1
MAX_BLOCKS = 3
MAX_HIDDEN = 8
KERNEL = 5

_OK, _NO_MEMORY, _BAD_INDEX, _BAD_LABEL, _NOT_FINITE = 0, 1, 2, 3, 4

# Beyond this many input values per sample or parameters the 32-bit offsets of the kernel might not suffice.
_LIMIT = 1 << 28


# ---------------------------------------------------------------------------------------------- libraries


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    p, i, n, f = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "fedapa_abi": (i, []),
        "fedapa_cpu_has_avx2": (i, []),
        "fedapa_plan_new": (p, [i, i, i, p, i, p, i, p, p]),
        "fedapa_plan_free": (None, [p]),
        "fedapa_workspace_new": (p, []),
        "fedapa_workspace_free": (None, [p]),
        "fedapa_tape_new": (p, []),
        "fedapa_tape_free": (None, [p]),
        "fedapa_features": (i, [p, p, p, p, p, i, n, p, n, n, p]),
        "fedapa_backward": (i, [p, p, p, p, p, i, n, p, n, n, p, p]),
        "fedapa_train": (
            i,
            [p, p, p, p, p, p, p, i, p, n, p, p, n, f, f, f, f, p, p, f, i, i, n, p, p],
        ),
        "fedapa_evaluate": (i, [p, p, p, p, p, i, p, n, p, n, n, p, p, p, p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def _open(name: str) -> tuple[ctypes.CDLL | None, str]:
    """The library `name` ("avx2" or "portable"), or None and the reason."""
    folder = Path(os.environ.get("FEDAPA_NATIVE_PATH") or Path(__file__).parent)
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"_{name}{suffix}"
        if not path.is_file():
            continue
        try:
            lib = _declare(ctypes.CDLL(str(path)))
        except (OSError, AttributeError) as error:
            return None, f"{path.name} cannot be loaded: {error}"
        if lib.fedapa_abi() != ABI:
            return None, f"{path.name} is from another version of fedapa; install again"
        return lib, "loaded"
    return None, f"_{name} was not built (no C++ compiler at install?)"


@functools.cache
def _choose(wish: str) -> tuple[ctypes.CDLL | None, str]:
    if wish not in ("", "auto", "avx2", "portable", "off"):
        return None, f"FEDAPA_NATIVE={wish} is not one of auto, avx2, portable, off"
    if wish == "off":
        return None, "switched off by FEDAPA_NATIVE=off"
    portable, why_not = _open("portable")
    if wish == "portable":
        return portable, "portable: asked for by FEDAPA_NATIVE" if portable is not None else why_not
    if portable is None:
        return None, why_not
    if not portable.fedapa_cpu_has_avx2():
        if wish == "avx2":
            return None, "FEDAPA_NATIVE=avx2, but this processor lacks AVX2 or FMA"
        return portable, "portable: this processor lacks AVX2 or FMA"
    fast, why_not = _open("avx2")
    if fast is not None:
        return fast, "avx2: this processor has AVX2 and FMA"
    return (None, why_not) if wish == "avx2" else (portable, f"portable: {why_not}")


def available() -> tuple[bool, str]:
    """Whether the kernel can be used here, and which library was chosen or why there is none.

    FEDAPA_NATIVE = auto | avx2 | portable | off overrides the choice.
    """
    lib, why = _choose(os.environ.get("FEDAPA_NATIVE", ""))
    return lib is not None, why


# -------------------------------------------------------------------------------------------------- shapes


@dataclass(frozen=True)
class Shape:
    """Blocks of [5x5 convolution, ReLU, 2x2 max-pool] (`convs` channels), then ReLU layers (`hidden`)."""

    channels: int
    size: int
    convs: tuple[int, ...]
    hidden: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.convs) <= MAX_BLOCKS:
            raise InputError(f"the native kernel takes 1 to {MAX_BLOCKS} convolutions, not {len(self.convs)}")
        if len(self.hidden) > MAX_HIDDEN:
            raise InputError(f"the native kernel takes at most {MAX_HIDDEN} hidden layers, not {len(self.hidden)}")
        if min(self.channels, self.size, *self.convs, *self.hidden) < 1:
            raise InputError(f"every size of a network must be positive: {self}")
        if any(side < KERNEL + 1 for side in self.sides[:-1]):
            raise InputError(f"an input of side {self.size} is too small for {len(self.convs)} blocks")
        if max(self.channels * self.size**2, self.theta_size, *self._lane_sizes()) > _LIMIT:
            raise InputError(f"too large for the native kernel: {self}")

    def _lane_sizes(self) -> list[int]:
        return [c * s * s for c, s in zip(self.convs, self.sides[1:], strict=True)]

    @property
    def sides(self) -> tuple[int, ...]:
        """Side of the input and after each block."""
        sides = [self.size]
        for _ in self.convs:
            sides.append(max(sides[-1] - KERNEL + 1, 0) // 2)
        return tuple(sides)

    @property
    def flat(self) -> int:
        """Width after the last block."""
        return self.convs[-1] * self.sides[-1] ** 2

    @property
    def features(self) -> int:
        return self.hidden[-1] if self.hidden else self.flat

    @property
    def theta_size(self) -> int:
        total, channels = 0, self.channels
        for out in self.convs:
            total += out * channels * KERNEL * KERNEL + out
            channels = out
        width = self.flat
        for out in self.hidden:
            total += out * width + out
            width = out
        return total

    def phi_size(self, classes: int) -> int:
        return classes * self.features + classes


def _leaves(module: nn.Module) -> list[nn.Module]:
    if type(module) is nn.Sequential:
        return [leaf for child in module for leaf in _leaves(child)]
    return [] if type(module) is nn.Identity else [module]


def _is(value: Any, *allowed: Any) -> bool:
    return value in allowed


def _is_conv(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and module.kernel_size == (KERNEL, KERNEL)
        and module.stride == (1, 1)
        and _is(module.padding, (0, 0), "valid")
        and module.dilation == (1, 1)
        and module.groups == 1
        and module.bias is not None
    )


def _is_pool(module: nn.Module) -> bool:
    return (
        type(module) is nn.MaxPool2d
        and _is(module.kernel_size, 2, (2, 2))
        and _is(module.stride, 2, (2, 2))
        and _is(module.padding, 0, (0, 0))
        and _is(module.dilation, 1, (1, 1))
        and not module.ceil_mode
        and not module.return_indices
    )


def _read_shape(module: nn.Module, sample_shape: Sequence[int]) -> Shape | None:
    """The shape that the children spell, in order, or None."""
    if len(sample_shape) != 3 or sample_shape[1] != sample_shape[2]:
        return None
    if type(module) is not nn.Sequential:
        return None
    rest = _leaves(module)
    convs: list[int] = []
    hidden: list[int] = []
    width = int(sample_shape[0])
    while len(rest) >= 3 and _is_conv(rest[0]):
        conv, first, second = rest[:3]
        assert isinstance(conv, nn.Conv2d)
        relu_pool = type(first) is nn.ReLU and _is_pool(second)
        pool_relu = _is_pool(first) and type(second) is nn.ReLU
        if conv.in_channels != width or not (relu_pool or pool_relu):
            return None
        width = conv.out_channels
        convs.append(width)
        rest = rest[3:]
    if not rest or not convs:
        return None
    flatten = rest.pop(0)
    if type(flatten) is not nn.Flatten or flatten.start_dim != 1 or flatten.end_dim != -1:
        return None
    while len(rest) >= 2 and type(rest[0]) is nn.Linear and type(rest[1]) is nn.ReLU:
        linear = rest[0]
        assert isinstance(linear, nn.Linear)
        hidden.append(linear.out_features)
        rest = rest[2:]
    if rest:
        return None
    try:
        return Shape(int(sample_shape[0]), int(sample_shape[1]), tuple(convs), tuple(hidden))
    except InputError:
        return None


def shape_of(module: nn.Module, sample_shape: Sequence[int]) -> Shape | None:
    """The shape of an extractor that the kernel can run, or None.

    Only `nn.Sequential` of the layers above is recognised, and only if the kernel, where it is available,
    computes the same features as the module on random input.
    """
    shape = _read_shape(module, sample_shape)
    if shape is None:
        return None
    parameters = list(module.parameters())
    if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in parameters):
        return None
    if sum(p.numel() for p in parameters) != shape.theta_size:
        return None
    if any(True for _ in module.buffers()):
        return None
    if not available()[0]:
        return shape
    theta = torch.cat([p.detach().reshape(-1) for p in parameters])
    x = torch.randn(3, *sample_shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            expected = module(x)
    except RuntimeError:
        return None
    found = Kernel(shape, 1).features(theta, x)
    if expected.shape != found.shape:
        return None
    scale = max(1.0, float(expected.abs().max()))
    return shape if float((expected - found).abs().max()) <= 1e-4 * scale else None


# -------------------------------------------------------------------------------------------------- checks


def _fail(message: str) -> InputError:
    return InputError(message)


def _vector(name: str, value: Tensor | None, size: int) -> Tensor:
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.device.type != "cpu":
        raise _fail(f"{name} must be a float32 tensor on the CPU")
    if value.shape != (size,):
        raise _fail(f"{name} must have shape ({size},), not {tuple(value.shape)}")
    return value.detach().contiguous()


def _address(value: Tensor | None) -> int | None:
    return None if value is None else value.data_ptr()


class _Handle:
    """A pointer made by the library, freed with its last owner."""

    def __init__(self, pointer: int | None, free: Callable[[int], None]) -> None:
        if not pointer:
            raise MemoryError("the native kernel ran out of memory")
        self.pointer = pointer
        self._free = free

    def __del__(self) -> None:
        pointer, self.pointer = getattr(self, "pointer", None), 0
        if pointer:
            self._free(pointer)


@dataclass(frozen=True)
class Trained:
    """Result of `Kernel.train`; `loss` is the mean cross-entropy over the reported batches."""

    theta: Tensor
    phi: Tensor
    velocity_theta: Tensor
    velocity_phi: Tensor
    loss: float


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
        lib, why = _choose(os.environ.get("FEDAPA_NATIVE", "") if library is None else library)
        if lib is None:
            raise InputError(f"the native kernel is not available: {why}", "use engine = torch")
        if not 1 <= classes <= 1 << 20:
            raise _fail(f"classes must be between 1 and {1 << 20}, not {classes}")
        if (mean is None) != (std is None):
            raise _fail("give both mean and std, or neither")
        for name, values in (("mean", mean), ("std", std)):
            if values is not None and len(values) != shape.channels:
                raise _fail(f"{name} must have {shape.channels} values, one per channel, not {len(values)}")
            if values is not None and not all(math.isfinite(v) for v in values):
                raise _fail(f"{name} must be finite")
        if std is not None and min(std) <= 0:
            raise _fail("std must be positive")
        self.shape = shape
        self.classes = classes
        self.theta_size = shape.theta_size
        self.phi_size = shape.phi_size(classes)
        self._lib = lib

        def array(kind: Any, values: Sequence[Any] | None) -> Any:
            return None if values is None else (kind * len(values))(*values)

        self._plan = _Handle(
            lib.fedapa_plan_new(
                shape.channels,
                shape.size,
                len(shape.convs),
                array(ctypes.c_int, shape.convs),
                len(shape.hidden),
                array(ctypes.c_int, shape.hidden),
                classes,
                array(ctypes.c_float, mean),
                array(ctypes.c_float, std),
            ),
            lib.fedapa_plan_free,
        )
        # Pools: list.pop and list.append are atomic, so no lock is needed.
        self._workspaces: list[_Handle] = []
        self._tapes: list[_Handle] = []

    # -- pools

    def _take_workspace(self) -> _Handle:
        try:
            return self._workspaces.pop()
        except IndexError:
            return _Handle(self._lib.fedapa_workspace_new(), self._lib.fedapa_workspace_free)

    def _take_tape(self) -> _Handle:
        try:
            return self._tapes.pop()
        except IndexError:
            return _Handle(self._lib.fedapa_tape_new(), self._lib.fedapa_tape_free)

    def __reduce__(self) -> Any:
        raise TypeError("a Kernel cannot be pickled; make one in each process")

    # -- arguments

    def _data(self, x: Tensor) -> Tensor:
        want = (self.shape.channels, self.shape.size, self.shape.size)
        if not isinstance(x, Tensor) or x.device.type != "cpu":
            raise _fail("x must be a tensor on the CPU")
        if x.dtype not in (torch.uint8, torch.float32):
            raise _fail(f"x must be uint8 or float32, not {x.dtype}")
        if x.dim() != 4 or tuple(x.shape[1:]) != want:
            raise _fail(f"x must have shape (n, {want[0]}, {want[1]}, {want[2]}), not {tuple(x.shape)}")
        if not x.is_contiguous():
            raise _fail("x must be contiguous")
        return x.detach()

    def _labels(self, y: Tensor | None, x: Tensor) -> Tensor:
        if not isinstance(y, Tensor) or y.device.type != "cpu" or y.dtype != torch.int64:
            raise _fail("y must be an int64 tensor on the CPU")
        if y.shape != (x.shape[0],):
            raise _fail(f"y must have shape ({x.shape[0]},), one label per sample, not {tuple(y.shape)}")
        return y.contiguous()

    def _index(self, index: Tensor | range | None, x: Tensor) -> tuple[Tensor | None, int, int]:
        """The indices (None for a range), the start of the range, the number of samples."""
        if index is None:
            return None, 0, x.shape[0]
        if isinstance(index, range):
            if index.step != 1:
                raise _fail("an index range must have step 1")
            if len(index) and not 0 <= index.start <= index.stop <= x.shape[0]:
                raise _fail(f"index {index} is out of range for {x.shape[0]} samples")
            return None, index.start if len(index) else 0, len(index)
        if not isinstance(index, Tensor) or index.device.type != "cpu" or index.dtype != torch.int64:
            raise _fail("index must be an int64 tensor on the CPU, a range or None")
        if index.dim() != 1:
            raise _fail(f"index must have one dimension, not {index.dim()}")
        return index.contiguous(), 0, index.shape[0]

    def _check(self, status: int, samples: int) -> None:
        if status == _OK:
            return
        if status == _NO_MEMORY:
            raise MemoryError("the native kernel ran out of memory")
        if status == _BAD_INDEX:
            raise _fail(f"an index is out of range for {samples} samples")
        if status == _BAD_LABEL:
            raise _fail(f"a label is outside 0..{self.classes - 1}")
        raise _fail(f"the native kernel refused the call (status {status})")

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
        theta = _vector("theta", theta, self.theta_size)
        x = self._data(x)
        where, start, n = self._index(index, x)
        if where is None and n and start:
            x, start = x[start : start + n], 0
        z = torch.empty(n, self.shape.features)
        tape, workspace = _Tape(self), self._take_workspace()
        try:
            status = self._lib.fedapa_features(
                self._plan.pointer,
                workspace.pointer,
                tape.handle.pointer,
                theta.data_ptr(),
                x.data_ptr(),
                x.dtype == torch.uint8,
                x.shape[0],
                _address(where),
                0,
                n,
                z.data_ptr(),
            )
        finally:
            self._workspaces.append(workspace)
        self._check(status, x.shape[0])
        return z, tape, x[:n] if where is None else x, where

    def _backward(self, theta: Tensor, x: Tensor, index: Tensor | None, tape: _Tape, dz: Tensor) -> Tensor:
        theta = _vector("theta", theta, self.theta_size)
        n = x.shape[0] if index is None else index.shape[0]
        if n == 0:
            return torch.zeros(self.theta_size)
        if dz.dtype != torch.float32 or dz.shape != (n, self.shape.features):
            raise _fail(f"dz must be float32 of shape ({n}, {self.shape.features})")
        dz = dz.detach().contiguous()
        grad = torch.empty(self.theta_size)
        workspace = self._take_workspace()
        try:
            status = self._lib.fedapa_backward(
                self._plan.pointer,
                workspace.pointer,
                tape.handle.pointer,
                theta.data_ptr(),
                x.data_ptr(),
                x.dtype == torch.uint8,
                x.shape[0],
                _address(index),
                0,
                n,
                dz.data_ptr(),
                grad.data_ptr(),
            )
        finally:
            self._workspaces.append(workspace)
        self._check(status, x.shape[0])
        return grad

    # -- training

    def train(
        self,
        theta: Tensor,
        phi: Tensor,
        x: Tensor,
        y: Tensor,
        order: Tensor,
        bounds: Tensor,
        *,
        lr_theta: float,
        lr_phi: float | None = None,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        velocity_theta: Tensor | None = None,
        velocity_phi: Tensor | None = None,
        anchor_theta: Tensor | None = None,
        anchor_phi: Tensor | None = None,
        rho: float = 0.0,
        freeze_theta: bool = False,
        freeze_phi: bool = False,
        last: int | None = None,
    ) -> Trained:
        """Local training with mean cross-entropy and torch's SGD; the arguments are not changed.

        Batch b is `order[bounds[b]:bounds[b+1]]`. With anchors, rho/2 * |w - anchor|^2 is added to the loss
        (not to the reported one). `last` is the number of batches at the end whose mean loss is reported,
        all by default. A loss that is not finite raises RunError.
        """
        x = self._data(x)
        y = self._labels(y, x)
        where, _, count = self._index(order, x)
        if where is None:
            raise _fail("order must be an int64 tensor")
        if not isinstance(bounds, Tensor) or bounds.dtype != torch.int64 or bounds.device.type != "cpu":
            raise _fail("bounds must be an int64 tensor on the CPU")
        if bounds.dim() != 1 or bounds.shape[0] < 1:
            raise _fail("bounds must hold the start of every batch and the end of the last")
        bounds = bounds.contiguous()
        if int(bounds[0]) != 0 or int(bounds[-1]) != count or bool((bounds[1:] <= bounds[:-1]).any()):
            raise _fail(f"bounds must rise from 0 to the length of order ({count}), without empty batches")
        batches = bounds.shape[0] - 1
        if last is not None and not 0 <= last <= batches:
            raise _fail(f"last must be between 0 and {batches}, not {last}")
        lr_phi = lr_theta if lr_phi is None else lr_phi
        for name, value in (
            ("lr_theta", lr_theta),
            ("lr_phi", lr_phi),
            ("momentum", momentum),
            ("weight_decay", weight_decay),
            ("rho", rho),
        ):
            if not (math.isfinite(value) and value >= 0):
                raise _fail(f"{name} must be finite and not negative, not {value}")
        if rho > 0 and anchor_theta is None and anchor_phi is None:
            raise _fail("rho needs anchor_theta, anchor_phi or both")

        def own(name: str, value: Tensor | None, size: int) -> Tensor:
            return torch.zeros(size) if value is None else _vector(name, value, size).clone()

        w = _vector("theta", theta, self.theta_size).clone()
        h = _vector("phi", phi, self.phi_size).clone()
        vw = own("velocity_theta", velocity_theta, self.theta_size)
        vh = own("velocity_phi", velocity_phi, self.phi_size)
        aw = None if anchor_theta is None else _vector("anchor_theta", anchor_theta, self.theta_size)
        ah = None if anchor_phi is None else _vector("anchor_phi", anchor_phi, self.phi_size)
        loss, failed = ctypes.c_double(0.0), ctypes.c_int64(-1)
        workspace = self._take_workspace()
        try:
            status = self._lib.fedapa_train(
                self._plan.pointer,
                workspace.pointer,
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
                batches,
                lr_theta,
                lr_phi,
                momentum,
                weight_decay,
                _address(aw),
                _address(ah),
                rho,
                not freeze_theta,
                not freeze_phi,
                0 if last is None else batches - last,
                ctypes.byref(loss),
                ctypes.byref(failed),
            )
        finally:
            self._workspaces.append(workspace)
        if status == _NOT_FINITE:
            raise RunError(
                f"the loss of batch {failed.value + 1} of {batches} is not finite",
                "look for NaN in the data, or lower the learning rate",
            )
        self._check(status, x.shape[0])
        return Trained(w, h, vw, vh, loss.value)

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
        theta = _vector("theta", theta, self.theta_size)
        head = None if want == "z" else _vector("phi", phi, self.phi_size)  # NULL would end the process
        x = self._data(x)
        labels = self._labels(y, x) if want == "correct" else None
        where, start, n = self._index(index, x)
        width = {"z": self.shape.features, "logits": self.classes, "correct": 0}[want]
        out = torch.empty(n, width)
        correct, odd = ctypes.c_int64(0), ctypes.c_int(0)
        workspace = self._take_workspace()
        try:
            status = self._lib.fedapa_evaluate(
                self._plan.pointer,
                workspace.pointer,
                theta.data_ptr(),
                _address(head),
                x.data_ptr(),
                x.dtype == torch.uint8,
                _address(labels),
                x.shape[0],
                _address(where),
                start,
                n,
                out.data_ptr() if want == "z" else None,
                out.data_ptr() if want == "logits" else None,
                ctypes.byref(correct) if want == "correct" else None,
                ctypes.byref(odd),
            )
        finally:
            self._workspaces.append(workspace)
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
