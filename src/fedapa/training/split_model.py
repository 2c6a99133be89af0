"""Models as two flat vectors: theta, what methods share, and phi, what they keep private.

The cut between them is the model's head, a named submodule that must be its last operation: theta is the extractor and
phi the head. Or patterns over the names of parameters choose theta (``shared``), and phi is the rest. Nothing in the
library has to know the module. Float buffers (BatchNorm's running statistics) ride at the end of one of the two
vectors: of theta, so that they are shared and mixed like weights, or of phi, so that they never leave the client. Under
patterns they go where their names are. Integer counters are dropped.

Parameters without gradient are frozen: they are in neither vector, and the same for all clients and seeds of a run.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedapa.errors import InputError
from fedapa.training.devices import seed_torch
from fedapa.training.flat_vectors import pack, size_of, slots_of, unpack
from fedapa.training.selection import Patterns, as_list, check_patterns, freeze, frozen_layers, is_chosen
from fedapa.training.settings import HEAD, Buffers

WHOLE = ""  # the name of the head where the model has none
FROZEN_SEED = 0  # frozen weights that are not pretrained are drawn once, the same at every site
RANDOM_LAYERS = ("DropPath", "StochasticDepth")  # of timm and torchvision: they draw like dropout

DRAWING = threading.Lock()  # torch's own generator is one for all threads


class SplitModel:
    """An ``nn.Module`` seen as theta and phi; holds no trainable state of its own."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        sample: Tensor,
        head: str = HEAD,
        buffers: Buffers = "shared",
        shared: Patterns = (),
        frozen: Patterns = (),
    ) -> None:
        self._build, self._head = build, head
        self._shared, self._frozen = as_list(shared), as_list(frozen)
        whole = self._first()
        if self._shared and head == HEAD and HEAD not in dict(whole.named_modules()):
            self._head = WHOLE
        self.extractor, self.head = self._cut(whole)
        self._tied = _has_tied(self.extractor) or _has_tied(self.head)
        self.stochastic = any(map(_is_random, self.extractor.modules()))
        self._local = threading.local()
        self._still = frozen_layers(self.extractor)
        statistics = [pair for pair in _buffers(self.extractor, "extractor") if not self._is_still(pair[0])]
        statistics += _buffers(self.head, "head")
        weights = [*_parameters(self.extractor, "extractor"), *_parameters(self.head, "head")]
        if self._shared:
            check_patterns("model.shared", self._shared, [self.own_name(name) for name, _ in weights])
        here = {name for name, _ in weights if self._is_shared(name)}
        there = {name for name, _ in statistics if buffers == "shared" and self._is_shared(name)}
        self.theta_slots = slots_of([*(w for w in weights if w[0] in here), *(b for b in statistics if b[0] in there)])
        self.phi_slots = slots_of(
            [*(w for w in weights if w[0] not in here), *(b for b in statistics if b[0] not in there)]
        )
        self.theta_trainable = sum(tensor.numel() for name, tensor in weights if name in here)
        self.phi_trainable = sum(tensor.numel() for name, tensor in weights if name not in here)
        self.has_buffers = bool(statistics)
        self.batch_statistics = any(
            isinstance(layer, nn.modules.batchnorm._BatchNorm) and name not in self._still
            for name, layer in self.extractor.named_modules()
        )
        apart = all(self._is_extractors(name) == (name in here) for name, _ in weights)
        self.is_cut_at_head = self._head != WHOLE and apart
        self.has_frozen = any(not p.requires_grad for part in (self.extractor, self.head) for p in part.parameters())
        self._phi_in_extractor = any(self._is_extractors(slot.name) for slot in self.phi_slots)
        self._theta_in_head = any(not self._is_extractors(slot.name) for slot in self.theta_slots)
        self.is_patterned = bool(self._shared)
        self.plain_head = isinstance(self.head, nn.Linear) and self.head.bias is not None
        self._check(sample, whole)

    @property
    def theta_size(self) -> int:
        return size_of(self.theta_slots)

    @property
    def phi_size(self) -> int:
        return size_of(self.phi_slots)

    def init(self, seed: int) -> tuple[Tensor, Tensor]:
        """Fresh theta and phi; the same seed gives the same bits and leaves torch's own generator alone."""
        return self.vectors(self._drawn(seed))

    def features(self, theta: Tensor, phi: Tensor | None, x: Tensor) -> Tensor:
        """z = f(theta; x); inside ``training()`` with autograd on, buffers are updated and recorded."""
        mine = self._mine(theta.device)
        train = mine.recording is not None and torch.is_grad_enabled()
        mine.extractor.train(train)
        for name in self._still:
            mine.extractor.get_submodule(name).eval()
        values = unpack(theta, self.theta_slots)
        if self._phi_in_extractor:
            assert phi is not None, "a part of the extractor is private"
            values |= unpack(phi, self.phi_slots)
        given = _of_side("extractor", values)
        if train and self.has_buffers:
            given = self._record(mine, given)
        z: Tensor = functional_call(mine.extractor, given, (x,), tie_weights=self._tied)
        return z

    def logits(self, phi: Tensor, z: Tensor, theta: Tensor | None = None) -> Tensor:
        values = unpack(phi, self.phi_slots)
        if self._theta_in_head:
            assert theta is not None, "a part of the head is shared"
            values |= unpack(theta, self.theta_slots)
        out: Tensor = functional_call(self._mine(z.device).head, _of_side("head", values), (z,), tie_weights=self._tied)
        return out

    def module(self, theta: Tensor, phi: Tensor) -> nn.Module:
        """The whole module with these weights, a copy that anybody may train; ``vectors`` reads it back."""
        module = copy.deepcopy(self._template)
        values = unpack(theta, self.theta_slots) | unpack(phi, self.phi_slots)
        tensors = _tensors(module)
        with torch.no_grad():
            for name, value in values.items():
                tensors[self.own_name(name)].copy_(value)
        return module

    def vectors(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """theta and phi of a module of this architecture."""
        tensors = _tensors(module)
        slots = (self.theta_slots, self.phi_slots)
        theta, phi = (pack({s.name: tensors[self.own_name(s.name)] for s in part}, part) for part in slots)
        return theta, phi

    def own_name(self, name: str) -> str:
        """The name of a slot's tensor in the user's own module."""
        side, _, rest = name.partition(".")
        return rest if side == "extractor" or self._head == WHOLE else f"{self._head}.{rest}"

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

    @cached_property
    def _template(self) -> nn.Module:
        return copy.deepcopy(self._first()).train()  # a module of the caller's stays in the mode that it is in

    def _first(self) -> nn.Module:
        """The module as its frozen parts are kept, with the parameters frozen that patterns name."""
        module = self._drawn(FROZEN_SEED)
        if self._frozen:
            module = copy.deepcopy(module)  # a module of the caller's keeps its own flags
            freeze(module, self._frozen)
        return module

    def _drawn(self, seed: int) -> nn.Module:
        with DRAWING, torch.random.fork_rng(devices=[]):
            seed_torch(seed)
            return self._build()

    def _record(self, mine: threading.local, given: dict[str, Tensor]) -> dict[str, Tensor]:
        names = {name for name, _ in mine.extractor.named_buffers()}
        given = {k: v.detach().clone() if k in names else v for k, v in given.items()}
        mine.recording.update({f"extractor.{k}": v for k, v in given.items() if k in names})
        return given

    def _mine(self, device: torch.device | None = None) -> threading.local:
        """This thread's own copy of the modules: ``functional_call`` swaps their parameters while it runs.

        What a module holds beside its parameters and float buffers follows them to their device.
        """
        mine = self._local
        if not hasattr(mine, "extractor"):
            parameters = [*self.extractor.parameters(), *self.head.parameters()]
            frozen = {id(p): p for p in parameters if not p.requires_grad}  # a large backbone is in memory once
            mine.extractor, mine.head = copy.deepcopy(self.extractor, frozen), copy.deepcopy(self.head, frozen).eval()
            mine.recording, mine.device = None, torch.device("cpu")
        if device is not None and device != mine.device:
            mine.extractor, mine.head, mine.device = mine.extractor.to(device), mine.head.to(device), device
        return mine

    def _is_extractors(self, name: str) -> bool:
        return name.startswith("extractor.")

    def _is_shared(self, name: str) -> bool:
        return is_chosen(self.own_name(name), self._shared) if self._shared else self._is_extractors(name)

    def _is_still(self, name: str) -> bool:
        return name.removeprefix("extractor.").rpartition(".")[0] in self._still

    def _cut(self, module: nn.Module) -> tuple[nn.Module, nn.Module]:
        if self._head == WHOLE:
            return copy.deepcopy(module), nn.Identity()
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

    def _check(self, sample: Tensor, module: nn.Module) -> None:
        """The head must be the last thing that the module does, or splitting there changes the model."""
        whole = copy.deepcopy(module).eval()  # a module of the caller's stays in the mode that it is in
        extractor, head = (part.eval() for part in self._cut(whole))
        with torch.no_grad():
            try:
                logits = whole(sample)
            except (RuntimeError, IndexError, ValueError, TypeError, KeyError) as error:
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


def _is_head(head: nn.Module, z: Tensor, logits: Tensor) -> bool:
    try:
        found: Tensor = head(z)
    except RuntimeError:
        return False
    return found.shape == logits.shape and torch.allclose(found, logits, atol=1e-5)


def _has_tied(module: nn.Module) -> bool:
    """Whether a tensor of it has two names; looking for them takes a third of the call of a small module."""
    listed = (module.named_parameters, module.named_buffers)
    return any(len(list(names())) < len(list(names(remove_duplicate=False))) for names in listed)


def _is_random(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.dropout._DropoutNd) or type(layer).__name__ in RANDOM_LAYERS


def _parameters(module: nn.Module, side: str) -> list[tuple[str, Tensor]]:
    return [(f"{side}.{name}", p) for name, p in module.named_parameters() if p.requires_grad]


def _buffers(module: nn.Module, side: str) -> list[tuple[str, Tensor]]:
    return [(f"{side}.{name}", b) for name, b in module.named_buffers() if b.is_floating_point()]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """By name; a tensor that several layers share has several."""
    named = {name: p.detach() for name, p in module.named_parameters(remove_duplicate=False)}
    return {**named, **dict(module.named_buffers(remove_duplicate=False))}


def _of_side(side: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{side}."
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
