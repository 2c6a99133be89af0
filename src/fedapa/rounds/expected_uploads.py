"""What a sound upload looks like: names, shapes and types from a dry visit, limits where clients are not trusted."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedapa.core.tree import Tree
from fedapa.data.federated import Split
from fedapa.data.samples import blank
from fedapa.errors import InputError
from fedapa.methods.method import Method
from fedapa.rounds.membership import Newcomer
from fedapa.rounds.upload_limits import Limits
from fedapa.training.local import Local
from fedapa.training.task import Task


class Expected:
    """What a sound upload looks like, from a dry visit to a client with two blank samples; one for every phase.

    Two, because some methods train even in a dry visit, and BatchNorm cannot do so on one.
    With ``limits``, uploads come from outside: they are held to more than their shapes, and a round in which all of
    them are refused does not end the run.
    """

    def __init__(self, method: Method, task: Task, sample: torch.Tensor, limits: Limits | None = None) -> None:
        self._method, self.limits, self.roles = method, limits, method.roles
        dry = replace(task.training, epochs=0, by_client=None)  # nobody's own recipe: nothing is trained
        self._task = replace(task, training=dry, donate=False)
        kind = torch.int64 if task.classes else torch.float32
        self._data = Split(blank(sample, 2), torch.zeros(2, dtype=kind))
        self._known: dict[int, Tree] = {}
        if task.trainer is not None:
            self.exchanges(1)  # refuses a method that the trainer cannot train, before anything is trained
        if task.architectures is not None:
            _check_alike(method, task, sample)

    def upload(self, down: Tree) -> Tree:
        """The upload that answers ``down``: names, shapes and dtypes are what counts."""
        phase = self._method.phase(down)
        if phase not in self._known:
            _, client = self._method.init(self._task, 0)
            local = Local(self._task, 0, 0, 0, self._data)
            state = self._method.receive(self._task, client, down, local)
            self._known[phase] = self._method.train(self._task, state, down, local)[1]
        return self._known[phase]

    def with_client(self, task: Task, newcomer: Newcomer) -> Expected:
        """The same for a run that ``newcomer`` has joined."""
        limits = self.limits and self.limits.with_client(newcomer.classes)
        return Expected(self._method, task, self._data.x[0], limits)

    def known(self, phase: int | None) -> Tree | None:
        """The upload of a phase, if a message of it was looked at before."""
        return None if phase is None else self._known.get(phase)

    def exchanges(self, rounds: int) -> list[tuple[Tree, Tree]]:
        """What client 0 receives and sends in its first rounds, played dry; the last is the steady state."""
        server, _ = self._method.init(self._task, 0)
        found = []
        for _ in range(rounds):
            down = self._method.send(self._task, server, 0)
            up = self.upload(down)
            server = self._method.absorb(self._task, server, [0], [down], [up])
            found.append((down, up))
        return found


def _check_alike(method: Method, task: Task, sample: torch.Tensor) -> None:
    """Clients of different architectures must send and receive tensors of the same shapes."""
    one = replace(task, architectures=None)
    (down, up), *_ = Expected(method, one, sample).exchanges(1)
    firsts = {id(task.for_client(i).model): i for i in reversed(range(task.clients))}
    for i in sorted(firsts.values()):
        other = replace(one, model=task.for_client(i).model)
        for mine, theirs in zip((down, up), Expected(method, other, sample).exchanges(1)[0], strict=True):
            for name in mine:
                if mine[name].shape != theirs[name].shape:
                    shapes = f"{list(mine[name].shape)} and {list(theirs[name].shape)}"
                    said = f"the models of {task.name(0)} and {task.name(i)} have {name} of shapes {shapes}"
                    raise InputError(said, "give all models features of one size: model.features = 64")
