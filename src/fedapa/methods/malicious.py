"""Malicious clients for simulations: how much does each method lose to them, and do its weights exclude them?

label-flip  the train labels of an attacker are shifted by one class; it then trains and sends as everybody does
noise       the update (upload minus what was sent down) is replaced by Gaussian noise of ``factor`` times its norm
scaled      the update is multiplied by ``factor``; -1 turns its sign
near-copy   the model of the next honest client of the same round, plus ``factor`` times the own update: a method that
            mixes who is near gives that client to the attacker. If its victim does not answer, it sends what it has.
colluding   all attackers of a round send the same: the model of the first of them, its update multiplied by ``factor``

An update is every tensor of an upload that has the name and the shape of one that was sent down: models. Where several
models were sent, it is the change from the closest. Numbers of samples and statistics of classes stay true. The
attackers' own models go on from what they really learnt.

Uploads are held to the bounds of a real federation (rounds/upload_limits.py). Those let all pass: shapes and
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
from fedapa.methods.method import Method, hyper
from fedapa.methods.wrappers import Wrapped, change_of, gauss, models_of, reference, restored
from fedapa.streams import stream
from fedapa.training.local import Local
from fedapa.training.task import Task

PAIR = 2


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
    if attack.kind == "colluding" and len(attack.clients) < PAIR:
        raise InputError("one client cannot collude", "attack.clients = 2, or attack.kind = scaled")
    return Tampered(method, attack.kind, attack.clients, attack.factor), data


def flipped(data: Federated, clients: Sequence[int]) -> Federated:
    """The train labels of these clients shifted by one class; the fingerprint stays that of the allocation."""

    def flip(client: ClientData) -> ClientData:
        x, y = client.train
        return replace(client, train=Split(x, (y + 1) % data.classes))

    return replace(data, clients=tuple(flip(c) if i in clients else c for i, c in enumerate(data.clients)))


def victim(attacker: int, malicious: Sequence[int], clients: int) -> int:
    """The next honest client after an attacker, and after the last one the first."""
    return next(i % clients for i in range(attacker + 1, attacker + 1 + clients) if i % clients not in malicious)


@dataclass(frozen=True)
class Tampered(Wrapped):
    kind: Literal["noise", "scaled", "near-copy", "colluding"] = hyper(
        "scaled", "what malicious clients send instead of their update"
    )
    clients: tuple[int, ...] = ()
    factor: float = hyper(-5.0, "norm of the noise in norms of the update, or what it is multiplied by")

    def encode(self, task: Task, down: Tree, up: Tree, local: Local) -> Tree:
        models = self._models(down, up)
        if up and not models:
            who = type(self.inner).__name__
            raise InputError(f"{who} uploads no model, so there is no update to tamper with", "attack.kind=label-flip")
        if local.client not in self.clients or not models or self.kind == "near-copy":
            return up
        sent = {name: reference(down, name, up[name]) for name in models}
        honest = {name: change_of(sent, name, up[name]) for name in models}
        changes = self._noise(honest, local.random()) if self.kind == "noise" else honest
        return up | {name: restored(sent, name, self.factor * c, up[name].shape) for name, c in changes.items()}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        """What attackers do that know each other's uploads, or a victim's, is done here; else nothing is changed."""
        if self.kind == "near-copy":
            ups = [self._copied(task, ids, downs, ups, k) for k in range(len(ups))]
        elif self.kind == "colluding":
            first = min((k for k, i in enumerate(ids) if i in self.clients), key=lambda k: ids[k], default=0)
            ups = [self._with(ups[k], ups[first], downs[k]) if i in self.clients else ups[k] for k, i in enumerate(ids)]
        return self.inner.absorb(task, server, ids, downs, ups)

    def _copied(self, task: Task, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree], k: int) -> Tree:
        """Upload k, of an attacker its victim's model with a little of its own update."""
        if ids[k] not in self.clients or victim(ids[k], self.clients, task.clients) not in ids:
            return ups[k]
        other, down, up = list(ids).index(victim(ids[k], self.clients, task.clients)), downs[k], ups[k]
        own = {name: self.factor * (up[name] - reference(down, name, up[name])) for name in self._models(down, up)}
        return self._with(up, {name: ups[other][name] + change for name, change in own.items()}, down)

    def _with(self, up: Tree, models: Tree, down: Tree) -> Tree:
        """The upload with these models in place of its own."""
        return up | {name: models[name] for name in self._models(down, up) if models[name].shape == up[name].shape}

    def _models(self, down: Tree, up: Tree) -> list[str]:
        return models_of(self.roles, down, up)

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
