"""Malicious clients for simulations: how much does each method lose to them, and do its weights exclude them?

label-flip  the train labels of an attacker are shifted by one class; it then trains and sends as everybody does
noise       the update (upload minus what was sent down) is replaced by Gaussian noise of ``factor`` times its norm
scaled      the update is multiplied by ``factor``

An update is every tensor of an upload that has the name and the shape of one that was sent down: models. Numbers of
samples and statistics of classes stay true. The attackers' own models go on from what they really learnt.

Uploads are held to the bounds of a real federation (rounds/upload_limits.py). Those let all three pass: shapes and
counts are right, and a norm may be a hundred times that of what was sent. They stop only what grows without end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Federated, Split
from fedapa.errors import InputError
from fedapa.methods.attack import Attack
from fedapa.methods.method import COUNTS, Method, hyper
from fedapa.methods.wrappers import Wrapped, change_of, gauss, has_reference, restored
from fedapa.streams import stream
from fedapa.training.local import Local
from fedapa.training.task import Task


def attackers(wanted: int | Sequence[int], clients: int, seed: int) -> tuple[int, ...]:
    """The malicious clients: those named, or as many, drawn by the seed. A larger draw contains a smaller one."""
    count = wanted if isinstance(wanted, int) else len(wanted)
    if not 0 < count < clients:
        hint = "at least one client must be malicious, and at least one honest"
        raise InputError(f"attack.clients makes {count} of {clients} clients malicious", hint)
    if isinstance(wanted, int):
        return tuple(sorted(int(i) for i in stream(seed, "malicious clients").permutation(clients)[:wanted]))
    if outside := [i for i in wanted if not 0 <= i < clients]:
        raise InputError(f"attack.clients names client {outside[0]}", f"there are clients 0 to {clients - 1}")
    return tuple(sorted(wanted))


def attacked(method: Method, data: Federated, attack: Attack) -> tuple[Method, Federated]:
    """The method and the data with the attack applied."""
    if attack.kind == "label-flip":
        if data.classes == 0:
            raise InputError("label-flip needs classes, and the targets are numbers", "use noise or scaled")
        return method, flipped(data, attack.clients)
    return Tampered(method, attack.kind, attack.clients, attack.factor), data


def flipped(data: Federated, clients: Sequence[int]) -> Federated:
    """The train labels of these clients shifted by one class; the fingerprint stays that of the allocation."""

    def flip(client: ClientData) -> ClientData:
        x, y = client.train
        return replace(client, train=Split(x, (y + 1) % data.classes))

    return replace(data, clients=tuple(flip(c) if i in clients else c for i, c in enumerate(data.clients)))


@dataclass(frozen=True)
class Tampered(Wrapped):
    kind: Literal["noise", "scaled"] = hyper("scaled", "what malicious clients send instead of their update")
    clients: tuple[int, ...] = ()
    factor: float = hyper(-5.0, "norm of the noise in norms of the update, or what it is multiplied by")

    def encode(self, task: Task, down: Tree, up: Tree, local: Local) -> Tree:
        models = [n for n, leaf in up.items() if self.roles.get(n) not in COUNTS and has_reference(down, n, leaf)]
        if up and not models:
            who = type(self.inner).__name__
            raise InputError(f"{who} uploads no model, so there is no update to tamper with", "attack.kind=label-flip")
        if local.client not in self.clients or not models:
            return up
        honest = {name: change_of(down, name, up[name]) for name in models}
        changes = self._noise(honest, local.random()) if self.kind == "noise" else honest
        return up | {name: restored(down, name, self.factor * c, up[name].shape) for name, c in changes.items()}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return self.inner.absorb(task, server, ids, downs, ups)  # nothing to decode: ``downs`` need not be made again

    def send_many(self, task: Task, server: Tree, ids: Sequence[int]) -> list[Tree]:
        return self.inner.send_many(task, server, ids)

    @property
    def together(self) -> bool:  # type: ignore[override]
        return self.inner.together

    def _noise(self, honest: Tree, random: np.random.Generator) -> Tree:
        """Gaussian noise with the joint norm of all changes."""
        drawn = {name: gauss(random, change) for name, change in honest.items()}
        norm, found = (torch.stack([leaf.norm() for leaf in tree.values()]).norm() for tree in (honest, drawn))
        return {name: leaf * (norm / found) for name, leaf in drawn.items()}
