"""Wrappers against a minority of false uploads: what a round's uploads become before any method learns from them.

An update is an upload minus what was sent to that client: every tensor of the upload that was sent down under the same
name (where several models were sent, the one that is closest). Whatever else an upload holds stays as it is.

bounded  every update longer than ``times`` the median length of the round's updates is shortened to it (Sun et al.
         2019, with a bound that follows the round). For every method that sends models back, personalized or not.
krum     the share ``left_out`` of the uploads with the highest Krum scores is left out of the round, as if those
         clients had not answered (multi-Krum, Blanchard et al. 2017). The score of an upload is the sum of the squared
         distances from its update to the n - f - 2 nearest others, f the number left out. Where clients come in groups
         it leaves out members of small groups first, malicious or not.
trimmed  for tensors that all clients are sent alike: every upload becomes the coordinate-wise mean without the share
         ``cut`` of the largest and of the smallest (Yin et al. 2018), so that any mean of uploads is this one
median   the same with the coordinate-wise median

Median and trimmed mean are one model for all. Around a method that sends every client something of its own (FedAPA,
pFedGraph, CFL) they would make all clients one, so that they are refused there. Clients count alike in them, whatever
their numbers of samples. A round of fewer than three uploads has no majority and goes through as it is, and with it
the sequential schedule, where uploads come one by one: methods that have it by themselves are refused.

Codes hide updates: put these wrappers before ``+quantised`` or ``+top``, which are decoded first then.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.errors import InputError
from fedapa.methods.method import Claims, hyper
from fedapa.methods.wrappers import Wrapped, has_reference, models_of, reference
from fedapa.streams import stream
from fedapa.training.local import Local
from fedapa.training.task import Task

MAJORITY = 3  # uploads; of two, nobody can say which is false


class Round(NamedTuple):
    """The uploads of one round."""

    ids: list[int]
    downs: list[Tree]
    ups: list[Tree]

    def only(self, kept: Sequence[int]) -> Round:
        return Round([self.ids[k] for k in kept], [self.downs[k] for k in kept], [self.ups[k] for k in kept])


@dataclass(frozen=True)
class Robust(Wrapped):
    """A wrapper that changes the uploads of a round, seen together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.schedule == "sequential":
            who = type(self.inner).__name__
            raise InputError(f"{who} learns from one upload at a time, which has no majority", "leave the wrapper out")

    @abstractmethod
    def defended(self, task: Task, server: Tree, found: Round, names: list[str]) -> Round:
        """What the method inside learns from; ``names`` are the models in every upload."""

    def encode(self, task: Task, down: Tree, up: Tree, local: Local) -> Tree:
        if up and not self._models(down, up):
            hint = "use a method that sends models back; +quantised and +top go after this wrapper"
            raise InputError(f"{type(self.inner).__name__} uploads no model that was sent before", hint)
        return up

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        found = Round(list(ids), [downs[k] for k in range(len(ups))], list(ups))
        names = self._models(found.downs[0], found.ups[0]) if len(ups) >= MAJORITY else []
        if names:
            found = self.defended(task, server, found, names)
        return self.inner.absorb(task, server, *found)

    def claims(self) -> Claims:
        return replace(super().claims(), surrogate=None, bare=None)

    def _models(self, down: Tree, up: Tree) -> list[str]:
        return models_of(self.roles, down, up)


@dataclass(frozen=True)
class Bounded(Robust):
    times: float = hyper(1.0, "longest update, in median lengths of the round", 0.01, 100.0)

    def defended(self, task: Task, server: Tree, found: Round, names: list[str]) -> Round:
        lengths = torch.stack([flat.norm() for flat in changes(found, names)])
        scale = self.times * middle(lengths) / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)
        rows = zip(found.downs, found.ups, scale, strict=True)
        return found._replace(ups=[shortened(down, up, names, float(s)) for down, up, s in rows])


@dataclass(frozen=True)
class Krum(Robust):
    left_out: float = hyper(0.2, "share of a round's uploads that is left out", 0.0, 0.49)

    def defended(self, task: Task, server: Tree, found: Round, names: list[str]) -> Round:
        n = len(found.ids)
        f = int(self.left_out * n)
        if f == 0 or n - f - 2 < 1:
            return found
        scores = krum_scores(torch.stack(changes(found, names)), n - f - 2)
        worst = sorted(range(n), key=lambda k: (-float(scores[k]), found.ids[k]))[:f]
        return found.only([k for k in range(n) if k not in worst])


@dataclass(frozen=True)
class Centred(Robust):
    """Every upload becomes the centre of all, in the tensors that are the same for everybody."""

    @abstractmethod
    def cut_of(self, n: int) -> int:
        """How many of n sorted values are left out at each end."""

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        server, client = super().init(task, seed)
        if self.inner.send(task, server, 0) and not self.common(task, server):
            raise self._refusal("sends every client a model of its own")
        return server, client

    def encode(self, task: Task, down: Tree, up: Tree, local: Local) -> Tree:
        up = super().encode(task, down, up, local)
        if up and not any(has_reference(down, name, up[name]) for name in self._models(down, up)):
            raise self._refusal("sends several models and gets one back")
        return up

    def _refusal(self, why: str) -> InputError:
        said = f"{type(self.inner).__name__} {why}, of which there is no common centre"
        return InputError(said, "use +bounded or +krum, which leave every client its own")

    def defended(self, task: Task, server: Tree, found: Round, names: list[str]) -> Round:
        shared = [name for name in self.common(task, server) if name in names]
        centres = {name: centre([up[name] for up in found.ups], self.cut_of(len(found.ups))) for name in shared}
        return found._replace(ups=[{**up, **centres} for up in found.ups])

    def common(self, task: Task, server: Tree) -> list[str]:
        """What all clients are sent alike, whatever the server's state is: tried with one of different numbers."""
        probe = {name: _different(leaf) for name, leaf in server.items()}
        one, other = (self.inner.send(task, probe, i) for i in (0, task.clients - 1))
        return [name for name, leaf in one.items() if name in other and torch.equal(leaf, other[name])]


@dataclass(frozen=True)
class Trimmed(Centred):
    cut: float = hyper(0.2, "share of the largest values that is left out, and of the smallest", 0.0, 0.49)

    def cut_of(self, n: int) -> int:
        return int(self.cut * n)


@dataclass(frozen=True)
class Median(Centred):
    def cut_of(self, n: int) -> int:
        return (n - 1) // 2


def changes(found: Round, names: Sequence[str]) -> list[Tensor]:
    """Every client's whole update as one row of numbers."""
    return [
        torch.cat([(up[name] - reference(down, name, up[name])).reshape(-1).double() for name in names])
        for down, up in zip(found.downs, found.ups, strict=True)
    ]


def shortened(down: Tree, up: Tree, names: Sequence[str], scale: float) -> Tree:
    """The upload with its update so much shorter; not a bit of it changes at 1."""
    if scale >= 1:
        return up
    return {**up, **{name: torch.lerp(reference(down, name, up[name]), up[name], scale) for name in names}}


def krum_scores(rows: Tensor, nearest: int) -> Tensor:
    """[n] the sum of every row's squared distances to the nearest others."""
    gaps = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    gaps.fill_diagonal_(torch.inf)
    return gaps.sort(1).values[:, :nearest].sum(1)


def centre(leaves: Sequence[Tensor], cut: int) -> Tensor:
    """The coordinate-wise mean without ``cut`` values at each end; the median, where one or two are left."""
    ordered = torch.stack(list(leaves)).sort(0).values
    return ordered[cut : len(ordered) - cut].mean(0)


def middle(values: Tensor) -> Tensor:
    return centre(list(values), (len(values) - 1) // 2)


def _different(leaf: Tensor) -> Tensor:
    """No two numbers alike; whole numbers, which may be places, stay."""
    if not leaf.is_floating_point():
        return leaf
    return torch.from_numpy(stream(0, "probe").random(leaf.shape)).to(leaf.device, leaf.dtype)
