"""Play the real rounds and keep what the analysis speaks of: every local iterate, and the server before and after."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.data.federated import Federated
from fedapa.methods.method import Method
from fedapa.rounds import loop
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.loop import Context
from fedapa.rounds.round_log import RoundLog, State
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import InProcess, Record, Reply, Request, visit
from fedapa.training.job import Job, Trained
from fedapa.training.local import Engine, Plain, train
from fedapa.training.task import Task


class Round(NamedTuple):
    number: int  # from 0
    old: Tree  # the server before
    new: Tree  # and after
    paths: dict[int, Tensor]  # [K + 1, P + Q] of every client that took part: as received, and after every local step
    sent: Tensor  # [M, P] what the new server would send to every client


class Watching(Plain):
    """The plain engine; a projection that changes nothing sees every iterate go by."""

    def __init__(self) -> None:
        self.path: list[Tensor] = []

    def train(self, job: Job) -> Trained:
        assert job.project is None
        self._keep(job.params)
        return train(job._replace(project=self._keep))

    def _keep(self, params: Tree) -> Tree:
        self.path.append(torch.cat([params["theta"], params["phi"]]))
        return params


class Watched(InProcess):
    """The in-process transport, one client after another, with their iterates kept."""

    def __init__(self, method: Method, task: Task, data: Federated, seed: int, client: Tree) -> None:
        super().__init__(method, task, data, seed, client, workers=1)
        self.paths: dict[int, Tensor] = {}

    def _visit_one(self, request: Request, engine: Engine) -> tuple[Record, Reply]:
        watching, i = Watching(), request.client
        end = visit(self.method, self.task, self.data.clients[i], self._records[i], request, self.seed, watching)
        if request.train:
            self.paths[i] = torch.stack(watching.path)
        return end


def play(method: Method, task: Task, data: Federated, plan: Plan, start: int = 0) -> list[Round]:
    """All rounds of a run; ``start`` is the seed of the first model, the plan's seed that of clients and batches."""
    torch.set_num_threads(1)  # as in every run; models this small only suffer from more
    begin, client = loop.start(method, task, start)
    transport = Watched(method, task, data, plan.seed, client)
    expected = Expected(method, task, data.clients[0].train.x[0])
    rounds: list[Round] = []

    def sink(log: RoundLog, state: State) -> None:
        old = rounds[-1].new if rounds else begin.server
        downs = method.send_many(task, state.server, range(task.clients))
        paths = {i: transport.paths[i] for i in log.trained}
        rounds.append(Round(log.round, old, state.server, paths, torch.stack([down["theta"] for down in downs])))

    loop.run(Context(method, task, transport, plan, expected), begin, sink)
    return rounds
