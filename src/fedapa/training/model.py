"""Models as two flat vectors: theta (the extractor) and phi (the head), cut at a named split point.

Any ``nn.Module`` whose last operation is a named submodule can be split; nothing in the library has to know it.
Float buffers (BatchNorm's running statistics) ride at the end of one of the two vectors: of theta, so that they are
shared and mixed like weights, or of phi, so that they never leave the client. Integer counters are dropped.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedapa.errors import InputError
from fedapa.plugins import is_own, load_object
from fedapa.training.settings import HEAD, Buffers

Factory = Callable[[tuple[int, ...], int], nn.Module]
Model = str | nn.Module | Callable[..., nn.Module]  # by name, with weights of its own, or made by a class or function
HOW = "write it as (shape, classes) -> nn.Module"


class Slot(NamedTuple):
    """Where one tensor of the module lives in its flat vector."""

    name: str
    shape: torch.Size
    start: int
    stop: int


# ---------------------------------------------------------------------------------------- the shipped architectures


def lenet5(shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5 as the paper sizes it: 61,156 shared and 850 private parameters on CIFAR-10."""
    channels, flat = shape[0], 16 * _after_two_pools(shape) ** 2
    return _sequential(
        conv1=nn.Conv2d(channels, 6, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        head=nn.Linear(84, classes),
    )


def _after_two_pools(shape: tuple[int, ...]) -> int:
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] < 16:
        raise InputError(
            f"model lenet5 needs square images of at least 16x16, the data has shape {list(shape)}",
            'use model "cnn8" for 8x8 images or "mlp" for anything else',
        )
    return ((shape[1] - 4) // 2 - 4) // 2


def cnn8(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small CNN for 8x8 digits."""
    if len(shape) != 3 or shape[1] < 4 or shape[2] < 4:
        raise InputError(f"model cnn8 needs images of at least 4x4, the data has shape {list(shape)}", 'use "mlp"')
    flat = 16 * (shape[1] // 2) * (shape[2] // 2)
    return _sequential(
        conv1=nn.Conv2d(shape[0], 16, 3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 32),
        relu2=nn.ReLU(),
        head=nn.Linear(32, classes),
    )


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden layers of 64 for tables and small images."""
    flat = int(torch.Size(shape).numel())
    return _sequential(
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 64),
        relu1=nn.ReLU(),
        fc2=nn.Linear(64, 64),
        relu2=nn.ReLU(),
        head=nn.Linear(64, classes),
    )


def _sequential(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


MODELS: dict[str, Factory] = {"lenet5": lenet5, "cnn8": cnn8, "mlp": mlp}


def factory(name: str) -> Factory:
    """A shipped model by name, or the user's own as ``file.py:function`` or ``package.module:function``."""
    if name in MODELS:
        return MODELS[name]
    if not is_own(name):
        raise InputError(f"unknown model {name!r}", f"choose one of {', '.join(MODELS)}, or file.py:function")
    found: Factory = load_object(name, "model")
    return found


# ------------------------------------------------------------------------------------------------- the split model


class SplitModel:
    """An ``nn.Module`` seen as theta and phi; holds no trainable state of its own."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        sample: Tensor,
        head: str = HEAD,
        buffers: Buffers = "shared",
    ) -> None:
        self._build, self._head, self._buffers = build, head, buffers
        self.extractor, self.head = self._cut(build())
        self.stochastic = any(isinstance(m, nn.modules.dropout._DropoutNd) for m in self.extractor.modules())
        self._local = threading.local()
        shared, private = _buffers(self.extractor, "extractor"), _buffers(self.head, "head")
        theirs, ours = (shared, private) if buffers == "shared" else ([], [*shared, *private])
        self.theta_slots = _slots([*_parameters(self.extractor, "extractor"), *theirs])
        self.phi_slots = _slots([*_parameters(self.head, "head"), *ours])
        self.theta_trainable = sum(p.numel() for p in self.extractor.parameters())
        self.phi_trainable = sum(p.numel() for p in self.head.parameters())
        self.has_buffers = bool(shared or private)
        self.batch_statistics = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.extractor.modules())
        self.plain_head = isinstance(self.head, nn.Linear) and self.head.bias is not None
        self._check(sample)

    @property
    def theta_size(self) -> int:
        return self.theta_slots[-1].stop if self.theta_slots else 0

    @property
    def phi_size(self) -> int:
        return self.phi_slots[-1].stop

    def init(self, seed: int) -> tuple[Tensor, Tensor]:
        """Fresh theta and phi; the same seed gives the same bits and leaves torch's own generator alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            extractor, head = self._cut(self._build())
        values = _named_tensors(extractor, "extractor") | _named_tensors(head, "head")
        return _pack(values, self.theta_slots), _pack(values, self.phi_slots)

    def features(self, theta: Tensor, phi: Tensor | None, x: Tensor) -> Tensor:
        """z = f(theta; x); inside ``training()`` with autograd on, buffers are updated and recorded."""
        mine = self._mine(theta.device)
        train = mine.recording is not None and torch.is_grad_enabled()
        mine.extractor.train(train)
        values = _unpack(theta, self.theta_slots)
        if self._buffers == "private" and self.has_buffers:
            assert phi is not None, "private buffers ride with the head"
            values |= _unpack(phi, self.phi_slots)
        given = {k.removeprefix("extractor."): v for k, v in values.items() if k.startswith("extractor.")}
        if train and self.has_buffers:
            given = self._record(mine, given)
        z: Tensor = functional_call(mine.extractor, given, (x,))
        return z

    def logits(self, phi: Tensor, z: Tensor) -> Tensor:
        values = _unpack(phi, self.phi_slots)
        given = {k.removeprefix("head."): v for k, v in values.items() if k.startswith("head.")}
        out: Tensor = functional_call(self._mine(phi.device).head, given, (z,))
        return out

    @contextmanager
    def training(self) -> Iterator[dict[str, Tensor]]:
        """Everything inside runs in training mode; yields the buffers that the last forward pass left behind."""
        mine = self._mine()
        mine.recording = {}
        try:
            yield mine.recording
        finally:
            mine.recording = None

    def write_buffers(self, recorded: dict[str, Tensor], theta: Tensor | None, phi: Tensor | None) -> None:
        """Put recorded buffers in place at the tail of the vector that carries them."""
        for vector, slots in ((theta, self.theta_slots), (phi, self.phi_slots)):
            for slot in slots if vector is not None else ():
                if slot.name in recorded:
                    assert vector is not None
                    vector[slot.start : slot.stop] = recorded[slot.name].reshape(-1)

    def _record(self, mine: threading.local, given: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {name for name, _ in mine.extractor.named_buffers()}
        given = {k: v.detach().clone() if k in names else v for k, v in given.items()}
        mine.recording.update({f"extractor.{k}": v for k, v in given.items() if k in names})
        return given

    def _mine(self, device: torch.device | None = None) -> threading.local:
        """This thread's own copy of the modules: ``functional_call`` swaps their parameters while it runs.

        Constants of a module that are neither parameters nor float buffers follow the parameters to their device.
        """
        mine = self._local
        if not hasattr(mine, "extractor"):
            mine.extractor, mine.head = copy.deepcopy(self.extractor), copy.deepcopy(self.head).eval()
            mine.recording, mine.device = None, torch.device("cpu")
        if device is not None and device != mine.device:
            mine.extractor, mine.head, mine.device = mine.extractor.to(device), mine.head.to(device), device
        return mine

    def _cut(self, module: nn.Module) -> tuple[nn.Module, nn.Module]:
        try:
            head = module.get_submodule(self._head)
        except AttributeError:
            names = ", ".join(name for name, _ in module.named_modules() if name) or "none"
            raise InputError(
                f"the model has no submodule named {self._head!r}", f"name its last layer; it has: {names}"
            ) from None
        extractor = copy.deepcopy(module)
        if isinstance(extractor, nn.Sequential) and self._head == list(dict(extractor.named_children()))[-1]:
            return extractor[:-1], copy.deepcopy(head)
        extractor.set_submodule(self._head, nn.Identity())
        return extractor, copy.deepcopy(head)

    def _check(self, sample: Tensor) -> None:
        """The head must be the last thing that the module does, or splitting there changes the model."""
        whole = copy.deepcopy(self._build()).eval()  # a module of the caller's stays in the mode that it is in
        extractor, head = (part.eval() for part in self._cut(whole))
        with torch.no_grad():
            try:
                logits = whole(sample)
            except RuntimeError as error:
                shape = list(sample.shape[1:])
                why = f"the model cannot take samples of shape {shape}: {error}"
                raise InputError(why, "check its first layer") from None
            z = extractor(sample)
            if not _is_head(head, z, logits):
                raise InputError(
                    f"the model does not end with its submodule {self._head!r}", "split it at its last layer"
                )
        if z.ndim != 2:
            raise InputError(f"the input of head {self._head!r} has shape {list(z.shape)}", "features must be [n, d]")
        self.feature_size, self.outputs = int(z.shape[1]), int(logits.shape[1])


def build_model(
    model: Model,
    shape: tuple[int, ...],
    classes: int,
    head: str = HEAD,
    buffers: Buffers = "shared",
    sample: Tensor | None = None,
) -> SplitModel:
    """A split model from a shipped name, ``package.module:function``, a class or function, or a module.

    A module's own weights are the start, whatever the seed; the others are made anew, and drawn by the seed.
    ``sample`` are two samples to try it on; without them floats are tried, then whole numbers.
    """
    build = _builder(model, shape, classes)
    try:
        found = SplitModel(build, torch.zeros(2, *shape) if sample is None else sample, head, buffers)
    except InputError:
        if sample is not None:
            raise
        found = _of_tokens(build, shape, head, buffers)
    if found.outputs != classes:
        wanted = f"the data {classes} classes" if classes > 1 else f"the objective needs {classes}"
        raise InputError(f"the model has {found.outputs} outputs, {wanted}", "change its last layer")
    return found


def _of_tokens(build: Callable[[], nn.Module], shape: tuple[int, ...], head: str, buffers: Buffers) -> SplitModel:
    """A model that refuses floats may take token ids; if not, what it said about floats is the better error."""
    try:
        return SplitModel(build, torch.zeros(2, *shape, dtype=torch.int64), head, buffers)
    except InputError:
        return SplitModel(build, torch.zeros(2, *shape), head, buffers)


def _builder(model: Any, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    if isinstance(model, nn.Module):
        return lambda: model
    if isinstance(model, str):
        make = factory(model)
        return lambda: _made(model, make, shape, classes)
    if not callable(model):
        hint = f"give a name ({', '.join(MODELS)}), a module, or a class or function that makes one"
        raise InputError(f"model is {model!r}", hint)
    name = getattr(model, "__qualname__", repr(model))
    make = (lambda shape, classes: model()) if _needs_nothing(model) else model
    return lambda: _made(name, make, shape, classes)


def _needs_nothing(make: Callable[..., nn.Module]) -> bool:
    """Whether it can be called without arguments; one with defaults for all is: they are not ours to fill."""
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError):
        return False
    return True


def _made(name: str, make: Factory, shape: tuple[int, ...], classes: int) -> nn.Module:
    try:
        found = make(shape, classes)
    except TypeError as error:
        raise InputError(f"model {name!r} cannot be made: {error}", HOW) from None
    if not isinstance(found, nn.Module):
        raise InputError(f"model {name!r} made {type(found).__name__}", HOW)
    return found


def _is_head(head: nn.Module, z: Tensor, logits: Tensor) -> bool:
    try:
        found: Tensor = head(z)
    except RuntimeError:
        return False
    return found.shape == logits.shape and torch.allclose(found, logits, atol=1e-5)


def _parameters(module: nn.Module, side: str) -> list[tuple[str, Tensor]]:
    return [(f"{side}.{name}", p) for name, p in module.named_parameters()]


def _buffers(module: nn.Module, side: str) -> list[tuple[str, Tensor]]:
    return [(f"{side}.{name}", b) for name, b in module.named_buffers() if b.is_floating_point()]


def _named_tensors(module: nn.Module, side: str) -> dict[str, Tensor]:
    return dict([*_parameters(module, side), *_buffers(module, side)])


def _slots(named: list[tuple[str, Tensor]]) -> tuple[Slot, ...]:
    slots, start = [], 0
    for name, tensor in named:
        slots.append(Slot(name, tensor.shape, start, start + tensor.numel()))
        start += tensor.numel()
    return tuple(slots)


def _pack(values: dict[str, Tensor], slots: tuple[Slot, ...]) -> Tensor:
    if not slots:
        return torch.zeros(0)
    return torch.cat([values[slot.name].detach().reshape(-1).float() for slot in slots])


def _unpack(vector: Tensor, slots: tuple[Slot, ...]) -> dict[str, Tensor]:
    pieces = torch.split(vector, [slot.stop - slot.start for slot in slots])
    return {slot.name: piece.view(slot.shape) for slot, piece in zip(slots, pieces, strict=True)}
