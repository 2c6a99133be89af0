"""Wrappers around any method: uploads made smaller, or clipped and noised; a running mean as the model in use.

A wrapper codes what a client sends and decodes it before the server learns; the method inside knows nothing of it.
Where the server sent a tensor of the same name and shape, the change against it is coded, which is much smaller than
the tensor itself. What comes down is left as it is. By name: ``fedapa+quantised``, ``fedavg+noised+quantised``; the
first named is the innermost.

quantised  every number as one of 2^bits levels between the smallest and the largest change, rounded at random so that
           its expectation is exact (QSGD, Alistarh et al. 2017, with one range per tensor). Hides nothing.
top        only the largest changes, with their places; the rest is remembered at the client and added to its next
           change (error feedback, Stich et al. 2018). Hides nothing.
noised     the joint change clipped to a norm, then Gaussian noise of ``noise`` times that norm (McMahan et al. 2018),
           added at the client: the server never sees it clean. Protects a client's whole contribution to its uploads:
           (epsilon, delta) against whoever sees all of them, the server included, compared with a client that had
           sent no change. What it does not cover is listed in privacy.py. At a real site the noise comes from the
           operating system's entropy, is drawn once for a request and kept beside the state (federation/releases.py).
           So a real run has other bits than its simulation. In a simulation it comes from the run's seed and
           protects nobody. Models are the worse for the noise.
ema        the model in use is the running mean of the client's own models after training: m <- m + w (model - m) after
           every visit, w = max(1 / visits, 1 - decay), which is the plain mean at first. Uploads, training and server
           stay as they are. A client that never trained is shown what arrives, because it has no mean yet.

robust.py has wrappers against false uploads: bounded, krum, trimmed, median.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.errors import InputError
from fedapa.methods.method import COUNTS, Claims, Method, Role, Roles, Schedule, Surrogate, When, hyper
from fedapa.methods.privacy import Account, epsilon
from fedapa.training.devices import tree_on
from fedapa.training.local import Local
from fedapa.training.task import CPU, Task

MEAN, VISITS = "mean/", "mean_visits"  # of +ema, in a client's state
SMALL = 16  # tensors of fewer numbers travel as they are: coding them would save nothing
SHAPE = ".shape"  # what the name of a coded tensor's shape ends with


@dataclass(frozen=True)
class Wrapped(Method):
    """All that a wrapper leaves to the method inside it."""

    inner: Method

    @abstractmethod
    def encode(self, task: Task, down: Tree, up: Tree, local: Local) -> Tree:
        """What travels instead of ``up``."""

    def decode(self, down: Tree, up: Tree) -> Tree:
        """What the method inside is given for it."""
        return up

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        return self.inner.init(task, seed)

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return self.inner.send(task, server, i)

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return self.inner.receive(task, client, down, local)

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client, up = self.inner.train(task, client, down, local)
        with CPU:  # its noise and its codes are numpy's, wherever the client computes
            return client, self.encode(task, tree_on(down, CPU), tree_on(up, CPU), local)

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        plain = [self.decode(downs[k], up) for k, up in enumerate(ups)]
        return self.inner.absorb(task, server, ids, downs, plain)

    def shown(self, client: Tree) -> Tree:
        return self.inner.shown(client)

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return self.inner.predict(task, client, x)

    @property
    def relative_cost(self) -> float:
        return self.inner.relative_cost

    def phase(self, down: Tree) -> int:
        return self.inner.phase(down)

    def watch(self, server: Tree) -> Tree:
        return self.inner.watch(server)

    def admit(self, task: Task, server: Tree) -> Tree:
        return self.inner.admit(task, server)

    def remarks(self, task: Task) -> list[str]:
        return self.inner.remarks(task)

    @property
    def roles(self) -> Roles:  # type: ignore[override]
        return self.inner.roles

    @property
    def evaluated(self) -> When:
        return self.inner.evaluated

    @property
    def revision(self) -> int:
        return self.inner.revision

    @property
    def needs_classes(self) -> bool:
        return self.inner.needs_classes

    @property
    def needs_head(self) -> bool:
        return self.inner.needs_head

    @property
    def mixes_architectures(self) -> bool:
        return self.inner.mixes_architectures

    @property
    def schedule(self) -> Schedule:
        return self.inner.schedule

    def claims(self) -> Claims:
        """Those of the method inside, except for what it says of its own hyper-parameters and results."""
        inner = self.inner.claims()
        return replace(
            inner,
            regularisers=(),
            limits={},
            surrogate=inner.surrogate and self._of_decoded(inner.surrogate),
            bare=inner.bare and replace(self, inner=inner.bare),
        )

    def _of_decoded(self, surrogate: Surrogate) -> Surrogate:
        def found(task: Task, old: Tree, new: Tree, i: int, up: Tree) -> Tensor:
            sent = {name: leaf.to(torch.float32) for name, leaf in self.send(task, old, i).items()}
            return surrogate(task, old, new, i, self.decode(sent, up))

        return found


@dataclass(frozen=True)
class Quantised(Wrapped):
    bits: int = hyper(8, "bits per number of an upload", 1, 16)

    def claims(self) -> Claims:
        return replace(super().claims(), jumps=True)

    def encode(self, task: Task, down: Tree, up: Tree, local: Local) -> Tree:
        def code(name: str, change: Tensor) -> Tree:
            low, high = change.min(), change.max()
            levels = 2**self.bits - 1
            place = (change - low) / (high - low).clamp(min=1e-30) * levels
            shift = torch.from_numpy(local.random().random(place.numel(), dtype=np.float32))
            codes = (place + shift).floor().clamp(0, levels).to(torch.int32)
            return {f"{name}.codes": pack(codes, self.bits), f"{name}.range": torch.stack([low, high])}

        return _each_coded(self.roles, down, up, code)

    def decode(self, down: Tree, up: Tree) -> Tree:
        plain = _uncoded(up)
        for name in _coded(up, ".codes"):
            low, high = up[f"{name}.range"]
            shape = _shape_of(down, up, name)
            codes = unpack(up[f"{name}.codes"], self.bits, shape.numel()).to(low.dtype)
            plain[name] = restored(down, name, low + codes / (2**self.bits - 1) * (high - low), shape)
        return plain


@dataclass(frozen=True)
class Top(Wrapped):
    share: float = hyper(0.1, "share of the numbers of an upload that travel", 0.0001, 1.0)

    def claims(self) -> Claims:
        return replace(super().claims(), jumps=True)

    def encode(self, task: Task, down: Tree, up: Tree, local: Local) -> Tree:
        def code(name: str, change: Tensor) -> Tree:
            kept = f"feedback/{name}"
            change = change + local.memory.get(kept, torch.zeros_like(change)).to(change.device)
            count = max(1, round(self.share * change.numel()))
            places = change.abs().topk(count).indices.sort().values
            left = change.clone()
            left[places] = 0.0
            local.memory = {**local.memory, kept: left}
            return {f"{name}.places": places.to(torch.int32), f"{name}.values": change[places]}

        return _each_coded(self.roles, down, up, code)

    def decode(self, down: Tree, up: Tree) -> Tree:
        plain = _uncoded(up)
        for name in _coded(up, ".places"):
            shape, values = _shape_of(down, up, name), up[f"{name}.values"]
            change = values.new_zeros(shape.numel())
            places = up[f"{name}.places"].long().clamp(0, len(change) - 1)  # a hostile place is still a place
            plain[name] = restored(down, name, change.index_put((places,), values), shape)
        return plain


@dataclass(frozen=True)
class Noised(Wrapped):
    norm: float = hyper(1.0, "largest norm of a client's whole change", 1e-6)
    noise: float = hyper(1.0, "standard deviation of the noise, in norms", 0.0)
    delta: float = hyper(1e-5, "delta of the account", 1e-12, 0.5)

    def encode(self, task: Task, down: Tree, up: Tree, local: Local) -> Tree:
        parts = {name: leaf for name, leaf in up.items() if not self._is_known(name)}
        for name, leaf in parts.items():
            if not has_reference(down, name, leaf):
                raise InputError(
                    f"{type(self.inner).__name__} uploads {name}, which is no model that was sent before",
                    "noised uploads are known for methods that send models back: fedavg, fedper, fedapa, ...",
                )
        changes = {name: change_of(down, name, leaf) for name, leaf in parts.items()}
        if not changes:
            return up
        total = torch.stack([change.norm() for change in changes.values()]).norm()
        scale, private = (self.norm / total.clamp(min=1e-30)).clamp(max=1.0), local.private()
        noised = {
            name: change * scale + self.noise * self.norm * torch.from_numpy(private.normal(change.numel()))
            for name, change in changes.items()
        }
        return {**up, **{name: restored(down, name, change, up[name].shape) for name, change in noised.items()}}

    def _is_known(self, name: str) -> bool:
        """The number of samples was declared when the client joined: it goes as it is."""
        return self.roles.get(name) is Role.SAMPLES

    def epsilon(self, rounds: int) -> float:
        """Of a client that took part in this many rounds; infinite without noise."""
        return epsilon(self.noise, rounds, self.delta)

    def account(self, rounds: int, simulated: bool) -> Account:
        return Account(self.epsilon(rounds), self.delta, self.norm, self.noise, rounds, simulated)

    def doubts(self, task: Task, down: Tree, up: Tree) -> list[str]:
        """Why training under so much noise will fail, by a first exchange; empty where it need not.

        Two ratios are compared with 1; decision 7 has the accuracy that they cost on digits.
        """
        models = [n for n, leaf in up.items() if not self._is_known(n) and has_reference(down, n, leaf)]
        size = math.sqrt(sum(float(down[name].double().square().sum()) for name in models))
        once = self.noise * self.norm * math.sqrt(sum(up[name].numel() for name in models))
        whole, most = once * math.sqrt(task.rounds / task.clients), task.rounds * self.norm
        warnings = []
        if once > size:
            warnings.append(
                f"one upload carries noise of norm {once:.3g}, the model itself has norm {size:.3g}: training may"
                " diverge. A smaller norm helps and leaves epsilon as it is"
            )
        if whole > most and task.clients > 1:  # a site that plans alone does not know of the others
            warnings.append(
                f"in {task.rounds} rounds uploads of {task.clients} clients can move their mean by {most:.3g} at most,"
                f" their noise moves it by about {whole:.3g}: little can be learned from it. Fewer parameters or more"
                " clients help; less noise or more rounds do and raise epsilon"
            )
        return warnings


def noise_of(method: Method) -> Noised | None:
    """The wrapper that adds noise, if one is around the method."""
    while isinstance(method, Wrapped):
        if isinstance(method, Noised):
            return method
        method = method.inner
    return None


def account_of(method: Method, rounds: int, simulated: bool) -> Account | None:
    """What the method's noise protects in so many rounds; None where it adds none."""
    found = noise_of(method)
    return None if found is None else found.account(rounds, simulated)


@dataclass(frozen=True)
class Ema(Wrapped):
    """The model in use is the running mean of the client's own models; the federation inside is not changed."""

    decay: float = hyper(0.9, "share of the mean that stays from visit to visit", 0.0, 0.999)

    @property
    def evaluated(self) -> When:
        return "after"

    @property
    def together(self) -> bool:  # type: ignore[override]
        return self.inner.together

    def send_many(self, task: Task, server: Tree, ids: Sequence[int]) -> list[Tree]:
        """As the method inside sends, so that both train on the same bits."""
        return self.inner.send_many(task, server, ids)

    def encode(self, task: Task, down: Tree, up: Tree, local: Local) -> Tree:
        return up

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        server, client = self.inner.init(task, seed)
        return server, {**client, **_as_mean(client), VISITS: torch.zeros(1)}

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        inner = self.inner.receive(task, _own(client), down, local)
        begun = client[VISITS] > 0
        mean = {name: torch.where(begun, client[name], leaf) for name, leaf in _as_mean(inner).items()}
        return {**inner, **mean, VISITS: client[VISITS]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        inner, up = self.inner.train(task, _own(client), down, local)
        visits = client[VISITS] + 1
        weight = (1 / visits).clamp(min=1 - self.decay)
        mean = {name: _moved(client[name], leaf, weight) for name, leaf in _as_mean(inner).items()}
        return {**inner, **mean, VISITS: visits}, up

    def shown(self, client: Tree) -> Tree:
        return {name: leaf for name, leaf in client.items() if name.startswith(MEAN)}

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        mean = {name.removeprefix(MEAN): leaf for name, leaf in client.items() if name.startswith(MEAN)}
        return self.inner.predict(task, mean, x)


def _as_mean(client: Tree) -> Tree:
    """A client's state under the names that its running mean has."""
    return {f"{MEAN}{name}": leaf for name, leaf in client.items()}


def _own(client: Tree) -> Tree:
    """The state of the method inside."""
    return {name: leaf for name, leaf in client.items() if not name.startswith(MEAN) and name != VISITS}


def _moved(mean: Tensor, leaf: Tensor, weight: Tensor) -> Tensor:
    """The mean with one more model in it; whole numbers, and tensors whose shape changed, are taken as they are."""
    same = leaf.is_floating_point() and mean.shape == leaf.shape
    return torch.lerp(mean, leaf, weight.to(leaf.dtype)) if same else leaf


# ------------------------------------------------------------------------------------------------------- coding


def pack(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers below 2^bits as bytes without a gap."""
    if bits == 8:
        return codes.to(torch.uint8)
    digits = (codes.numpy()[:, None] >> np.arange(bits)) & 1
    return torch.from_numpy(np.packbits(digits.astype(np.uint8)))


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    if bits == 8:
        return packed.to(torch.int32)
    digits = np.unpackbits(packed.numpy(), count=count * bits).reshape(count, bits)
    return torch.from_numpy((digits.astype(np.int32) << np.arange(bits)).sum(1))


def _is_coded(leaf: Tensor) -> bool:
    return leaf.is_floating_point() and leaf.numel() >= SMALL


def _each_coded(roles: Roles, down: Tree, up: Tree, code: Callable[[str, Tensor], Tree]) -> Tree:
    """What is large enough goes as ``code`` makes it of its change; the rest goes as it is, and so do counts: a number
    of samples that is no whole number any more would be refused."""
    coded: Tree = {}
    for name, leaf in up.items():
        if _is_coded(leaf) and roles.get(name) not in COUNTS:
            coded |= code(name, change_of(down, name, leaf)) | _shape(down, name, leaf)
        else:
            coded[name] = leaf
    return coded


def has_reference(down: Tree, name: str, leaf: Tensor) -> bool:
    return name in down and down[name].shape == leaf.shape


def models_of(roles: Roles, down: Tree, up: Tree) -> list[str]:
    """The tensors of an upload that are updates of models: sent under the same name, alone or as one of several."""
    return [name for name, leaf in up.items() if roles.get(name) not in COUNTS and _is_update(down, name, leaf)]


def _is_update(down: Tree, name: str, leaf: Tensor) -> bool:
    several = name in down and len(down[name]) > 0 and down[name].shape[1:] == leaf.shape
    return leaf.is_floating_point() and (has_reference(down, name, leaf) or several)


def reference(down: Tree, name: str, leaf: Tensor) -> Tensor:
    """What an upload is an update of: what was sent under its name, and of several models the closest."""
    if has_reference(down, name, leaf):
        return down[name]
    return down[name][(down[name] - leaf).flatten(1).square().sum(1).argmin()]


def change_of(down: Tree, name: str, leaf: Tensor) -> Tensor:
    """What is new about a tensor, as one row of numbers."""
    return (leaf - down[name] if has_reference(down, name, leaf) else leaf).reshape(-1)


def restored(down: Tree, name: str, change: Tensor, shape: torch.Size) -> Tensor:
    whole = change.reshape(shape)
    return down[name] + whole if name in down and down[name].shape == shape else whole


def _shape(down: Tree, name: str, leaf: Tensor) -> Tree:
    """The shape travels where the server cannot know it from what it sent."""
    return {} if has_reference(down, name, leaf) else {f"{name}{SHAPE}": torch.tensor(leaf.shape)}


def _shape_of(down: Tree, up: Tree, name: str) -> torch.Size:
    return torch.Size(up[f"{name}{SHAPE}"].tolist()) if f"{name}{SHAPE}" in up else down[name].shape


def find_false_shape(up: Tree, wanted: Tree) -> str | None:
    """Why the shapes that travel with coded tensors are not those of the expected upload; None if they are."""
    for name, want in wanted.items():
        if name.endswith(SHAPE) and not torch.equal(up[name], want):
            return f"{name} is {up[name].tolist()}, expected {want.tolist()}"
    return None


def decoded(method: Method, down: Tree, up: Tree) -> Tree:
    """An upload as the method inside all wrappers sees it."""
    while isinstance(method, Wrapped):
        up = method.decode(down, up)
        method = method.inner
    return up


def _coded(up: Tree, ending: str) -> list[str]:
    return [name.removesuffix(ending) for name in up if name.endswith(ending)]


def _uncoded(up: Tree) -> Tree:
    coded = {*_coded(up, ".codes"), *_coded(up, ".places")}
    return {name: leaf for name, leaf in up.items() if name.rpartition(".")[0] not in coded}


def gauss(random: np.random.Generator, like: Tensor) -> Tensor:
    return torch.from_numpy(random.standard_normal(like.numel(), dtype=np.float32)).to(like.device)
