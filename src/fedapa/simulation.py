"""A whole federation on one machine: the task from data and model, then the loop over the in-process transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapa.core.scores import LOSS, scores_to_json
from fedapa.core.summaries import TEST, VALIDATION, Summary, summarise
from fedapa.core.threads import one_thread
from fedapa.core.tree import Tree, count_bytes, digest
from fedapa.data.federated import Federated
from fedapa.data.samples import blank
from fedapa.errors import InputError, RunError, did_you_mean
from fedapa.methods.method import Method, Role, named
from fedapa.methods.wrappers import account_of, noise_of
from fedapa.rounds import loop
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.loop import Context
from fedapa.rounds.membership import Membership
from fedapa.rounds.round_log import RoundLog, Sink, State, watched_stride
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.tensor_storage import MAP_ABOVE_MB, TensorStore
from fedapa.rounds.transport import InProcess, Record, Share
from fedapa.rounds.upload_limits import Limits
from fedapa.store import provenance
from fedapa.store.run_folder import ClientRow, RunFolder, client_rows
from fedapa.store.run_settings import SETTINGS, settings_to_json
from fedapa.training.augment import augmentation
from fedapa.training.devices import devices_of, server_device
from fedapa.training.engines.choice import with_engine
from fedapa.training.model import Models, build_models
from fedapa.training.objective import Classification, Objective, Regression
from fedapa.training.own_trainer import load_trainer, refuse_unheard
from fedapa.training.settings import HEAD, Buffers, Engine, Training
from fedapa.training.task import Task, Trainer
from fedapa.version import NUMERICS

Progress = Callable[[RoundLog], None]


def make_task(
    data: Federated,
    model: Models = "lenet5",
    training: Training | None = None,
    rounds: int = 50,
    head: str = HEAD,
    buffers: Buffers = "shared",
    engine: Engine = "auto",
    participation: tuple[float, float] = (1.0, 1.0),
    objective: Objective | None = None,
    device: str = "cpu",
    trainer: Trainer | None = None,
    **options: Any,
) -> Task:
    """What all parties agree on, read off the data; ``options`` are those of ``build_model``."""
    objective = default_objective(data) if objective is None else objective
    outputs, options = objective.outputs(data.classes), {"head": head, "buffers": buffers, **options}
    split, several = build_models(model, data.shape, outputs, sample=_tried(data), **options)
    names = tuple(client.name for client in data.clients)
    share = sum(participation) / 2
    task = Task(split, data.classes, data.sizes, training or Training(), rounds, share, data.mean, data.std, names)
    if trainer is None and task.training.trainer:
        trainer = load_trainer(task.training.trainer)
    task = replace(task, objective=objective.fitted(*data.target), augment=augmentation(task.training.augment))
    task = replace(task, devices=devices_of(device), trainer=trainer, architectures=several)
    refuse_unheard(task)
    check_recipe(task, data)
    return with_engine(task, data, engine)


def _tried(data: Federated) -> Any:
    """Two blank samples; None where they are floats, or become floats."""
    if not data.clients:
        return None
    first = data.clients[0].train.x[0]
    return None if isinstance(first, Tensor) and first.dtype != torch.int64 else blank(first, 2)


def check_recipe(task: Task, data: Federated) -> None:
    """Refuse settings that would do nothing. A site has no other client's data, and none when it agrees to terms."""
    clients, own = {client.name for client in data.clients} | set(map(str, range(len(data.clients)))), task.training
    if len(data.clients) > 1 and (unknown := [name for name in own.by_client or {} if name not in clients]):
        hint = did_you_mean(unknown[0], clients, "give a client's name, or its number, counted from 0")
        raise InputError(f"training.by_client names {unknown[0]!r}, which no client is called", hint)
    for training in (own, *(own.of_client(-1, name) for name in own.by_client or {})):
        if training.nesterov and (training.optimizer != "sgd" or not training.momentum):
            said = f"training.nesterov is true, with {training.optimizer} and momentum {training.momentum:g}"
            raise InputError(said, "it is for sgd with momentum; leave it out")
        if training.patience and data.clients and all(client.validation is None for client in data.clients):
            hint = "hold some out: data.validation = 0.1, or validation=0.1 in Python"
            raise InputError(f"training.patience is {training.patience}, and no client has validation data", hint)


def default_objective(data: Federated) -> Objective:
    """Classification where labels are classes, regression where they are numbers."""
    return Classification() if data.classes else Regression()


@dataclass
class Result:
    """A finished run in memory: every round's log, the server's last state and every client's."""

    method: Method
    task: Task
    logs: list[RoundLog]
    state: State
    records: list[Record]

    def predict(self, i: int, x: Tensor) -> Tensor:
        """Logits of client i's model as its last training left it, also where a method is evaluated as it arrives."""
        with torch.no_grad():
            return self.method.predict(self.task.for_client(i), self.records[i].state, x)

    def curve(self, phase: str = "after", data: str = "test", score: str | None = None) -> list[Summary]:
        """A score of every evaluated round, ``before`` or ``after`` local training, on ``test`` or ``validation``.

        It is the primary score (accuracy of a classification, RMSE of a regression) unless another is named.
        ``before`` has one value more, the last: that of what the last aggregation would send. On ``train`` data there
        is the loss alone, of the batches that clients trained on, in every round.
        """
        _check_word("phase", phase, ("before", "after"))
        _check_word("data", data, ("test", "validation", "train"))
        if data == "train":
            return self._train_losses()
        scores = self.task.objective.scores
        _check_word("score", score or scores[0].name, tuple(one.name for one in scores))
        k = [one.name for one in scores].index(score or scores[0].name)
        columns = TEST if data == "test" else VALIDATION
        found = [log.before if phase == "before" else log.after for log in self.logs]
        found += [log.final for log in self.logs if phase == "before"]
        known = [sums[:, k, columns] for sums in found if sums is not None]
        if data == "validation" and not any(sums[:, 1].any() for sums in known):
            raise InputError("this run has no validation data", "load data with validation=0.1, or use the test data")
        return [summarise(scores[k], sums[:, 0], sums[:, 1]) for sums in known]

    def _train_losses(self) -> list[Summary]:
        found = [np.array(list(log.train_loss.values()), np.float64) for log in self.logs if log.train_loss]
        return [summarise(LOSS, sums[:, 0], sums[:, 1]) for sums in found]

    def __str__(self) -> str:
        """What came out, in a few lines; ``fa.open(folder)`` prints methods beside each other."""
        about = f"{self.task.clients} clients, {len(self.logs)} rounds, {self.task.engine} engine"
        lines = [f"{type(self.method).__name__} ({about})"]
        for k, score in enumerate(self.task.objective.scores):
            words = [text for phase in ("before", "after") if (text := self._last(phase, k))]
            lines += [f"  {score.name}: {', '.join(words)}"] if words else []
        visits = sum(len(log.trained) for log in self.logs)
        moved = sum(sum(log.down_bytes.values()) + sum(log.up_bytes.values()) for log in self.logs)
        return "\n".join([*lines, f"  {moved / 1024 / max(visits, 1):.1f} KiB per client and round"])

    def _last(self, phase: str, k: int) -> str:
        """A score of the last evaluated round; the model that the method is evaluated by carries a star."""
        score = self.task.objective.scores[k]
        if not (found := self.curve(phase, score=score.name)):
            return ""
        star = "*" if phase == self.method.evaluated else ""
        return (
            f"{score.text(found[-1].pooled)}{star} {phase} local training (worst client {score.text(found[-1].worst)})"
        )


def _check_word(name: str, word: str, legal: tuple[str, ...]) -> None:
    if word not in legal:
        hint = 'curve("after", "validation") is on validation data' if word == "validation" else ""
        raise InputError(f"{name} is {word!r}", hint or f"choose {' or '.join(legal)}")


@one_thread()  # parallel over clients, never inside one: intra-op threads fight each other
def simulate(
    method: Method,
    task: Task,
    data: Federated,
    plan: Plan,
    folder: Path | None = None,
    meta: dict[str, str] | None = None,
    checkpoint_every: int = 1,
    workers: int = 0,
    progress: Progress | None = None,
    mmap_above_mb: float = MAP_ABOVE_MB,
    limits: Limits | None = None,
    membership: Membership | None = None,
    share: Share | None = None,
) -> Result:
    """Run to the end, or on from where the folder's last checkpoint stands.

    With ``limits``, clients are not trusted: their uploads are held to them, as those of a real federation.
    With a ``membership``, ``task`` has the clients that begin, and ``data`` also those that join later.
    With ``share``, trainings that other runs have in common with this one are computed once.
    """
    begin = loop.start(method, task, plan.seed)
    task = replace(task, server_device=server_device(task.devices, begin[0].server, mmap_above_mb * 2**20))
    transport = InProcess(method, task, data, plan.seed, begin[1], workers, share)
    expected = Expected(method, task, data.clients[0].train.x[0], limits)
    context, rows = Context(method, task, transport, plan, expected), client_rows(data)[: task.clients]
    return play(context, begin, rows, folder, meta, checkpoint_every, progress, mmap_above_mb, membership)


@one_thread()
def play(
    context: Context,
    begin: tuple[State, Tree],
    clients: list[ClientRow],
    folder: Path | None = None,
    meta: dict[str, str] | None = None,
    checkpoint_every: int = 1,
    progress: Progress | None = None,
    mmap_above_mb: float = MAP_ABOVE_MB,
    membership: Membership | None = None,
) -> Result:
    """The loop over any transport, with or without a folder that keeps all of it; ``membership`` says who comes and
    goes."""
    (state, client), logs = begin, list[RoundLog]()
    method, task, plan, transport = context.method, context.task, context.plan, context.transport
    store = TensorStore(mmap_above_mb * 2**20, folder)
    if folder is None:
        state = loop.run(context, state, _record(logs, plan.rounds, progress), store, membership)
        return Result(method, _with_all(task, logs), logs, state, transport.records())
    keeper = RunFolder(folder, plan.rounds, checkpoint_every, store, task.objective.scores)
    try:
        about = {**(meta or {}), **_identity(method, task, plan, client), "status": "running"}
        for key, role in (("weights", Role.WEIGHTS), ("clusters", Role.CLUSTERS)):
            about[key] = next(iter(named(method.roles, role)), "")
        account = account_of(method, plan.rounds, simulated="federation" not in about)
        about |= {} if account is None else {"privacy": account.to_json()}
        for newcomer in membership.members(keeper.position()) if membership is not None else ():
            clients, context = [*clients, newcomer.row(len(clients))], context.with_client(newcomer)
        state = keeper.begin(transport, state, clients, about, provenance.current(context.task))
        logs += keeper.earlier()
        state = loop.run(context, state, _record(logs, plan.rounds, progress, keeper), store, membership)
        keeper.finish()
    except RunError as error:
        keeper.fail(error.message)
        raise
    finally:
        keeper.close()
    return Result(method, _with_all(context.task, logs), logs, state, transport.records())


def _with_all(task: Task, logs: Sequence[RoundLog]) -> Task:
    """With whoever joined in these rounds."""
    for newcomer in (newcomer for log in logs for newcomer in log.joined):
        task = task.with_client(newcomer.name, newcomer.train)
    return task


def _identity(method: Method, task: Task, plan: Plan, client: Tree) -> dict[str, str]:
    """What must not change between two sessions of one run, or its numbers mean nothing."""
    parts = {"method": method, "training": task.training, "plan": plan, "objective": task.objective}
    told = {name: repr(part) for name, part in parts.items()} | {SETTINGS: settings_to_json(**parts)}
    scores = json.dumps(scores_to_json(task.objective.scores))
    numbers = {"numerics": str(NUMERICS), "revision": str(method.revision)}
    return {**told, "scores": scores, "start": digest(client)[:16], "engine": task.engine, **numbers}


def wire(method: Method, task: Task, sample: Tensor) -> tuple[Tree, Tree]:
    """What one client receives and sends in one round, as trees, once the first rounds are over."""
    return Expected(method, task, sample).exchanges(3)[-1]


def wire_bytes(method: Method, task: Task, sample: Tensor) -> tuple[int, int]:
    """Bytes down and up per client and round, counted from the trees."""
    down, up = wire(method, task, sample)
    return count_bytes(down), count_bytes(up)


def doubts(method: Method, task: Task, sample: Tensor) -> list[str]:
    """What is to be said before a run: why the method may not fit the task, or learn nothing from noised uploads."""
    said, noised = method.remarks(task) + _whole_model(method, task, sample), noise_of(method)
    return said if noised is None else said + noised.doubts(task, *Expected(method, task, sample).exchanges(1)[0])


def _whole_model(method: Method, task: Task, sample: Tensor) -> list[str]:
    """model.shared says what is theta; a method that sends phi as well does not keep to it."""
    if not task.model.is_patterned or method.needs_head:
        return []
    sizes = {leaf.shape[-1] for leaf in wire(method, task, sample)[1].values() if leaf.ndim}
    if task.P + task.Q not in sizes or task.Q == 0:
        return []
    return [f"{type(method).__name__} sends the whole model; methods with a private part keep to model.shared (fedper)"]


def _record(logs: list[RoundLog], rounds: int, progress: Progress | None, keeper: RunFolder | None = None) -> Sink:
    def sink(log: RoundLog, state: State) -> None:
        if keeper is not None:
            keeper(log, state)
        if logs and (keeper is not None or logs[-1].round % watched_stride(log, rounds)):
            logs[-1].watched = {}  # in run.db, or too much for memory
        logs.append(log)
        if progress is not None:
            progress(log)

    return sink
