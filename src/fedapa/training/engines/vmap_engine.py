"""The vmap engine: many clients of a round trained in one vectorised step.

A method is written for one client and asks for training in the middle of its code. Methods are pure, so a visit
can be interrupted where it asks, and replayed with the answer once all clients of the cohort have asked. No
threads wait for each other, and what is trained together depends on the clients alone, never on timing.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.nn.utils.rnn import pad_sequence

from fedapa.core.tree import Tree, clone, count_bytes
from fedapa.training.job import Job, Loss, LossSum, Trained
from fedapa.training.local import EVALUATION_BATCH, Engine, Pass, Plain, clipped, compute
from fedapa.training.objective import Classification
from fedapa.training.optimizers import direction
from fedapa.training.task import Batch, Task, proximal, pull, task_loss

T = TypeVar("T")
Rows = slice | Tensor
Work = Job | Pass
Found = Trained | Tensor | Exception
LARGEST = 64  # clients in a cohort: part of the results' last digits, so it does not depend on cores
MOST_PAUSES = 32  # a visit that asks more often goes on alone, since replaying it would cost more
STACK_LIMIT = 2**29  # bytes of stacked parameters and constants
PASS_LIMIT = 2**22  # numbers in the samples of one vectorised pass


def cohorts(visits: Sequence[T], vectorise: bool) -> list[Sequence[T]]:
    """Cut into groups of about the same size, in order; every visit is one of its own where nothing is vectorised."""
    count = -(-len(visits) // LARGEST) if vectorise else len(visits)
    ends = [len(visits) * k // max(count, 1) for k in range(count + 1)]
    return [visits[a:b] for a, b in pairwise(ends)]


# ------------------------------------------------------------------------------------------------- playing visits


class Pause(BaseException):
    """A visit needs some work done first. Not an Exception: no method's own handler may stop it."""

    def __init__(self, work: Work) -> None:
        self.work = work


class Script:
    """The engine of a visit that is replayed: earlier answers are given again."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._answers: list[Any] = []
        self._at, self._began = 0, 0.0

    def play(self, visit: Callable[[Engine], T]) -> T:
        self._at, self._began = 0, time.perf_counter()
        try:
            return visit(self)
        finally:
            self.spent += time.perf_counter() - self._began

    def answer(self, found: Found, seconds: float) -> None:
        self._answers.append(found)
        self.spent += seconds

    def train(self, job: Job) -> Trained:
        found = self._ask(job)
        return Trained(clone(found.params), clone(found.velocity), found.loss)  # a method may change what it was given

    def outputs(self, wanted: Pass) -> Tensor:
        found: Tensor = self._ask(wanted)
        return found.clone()

    def once(self, compute: Callable[[], T]) -> T:
        if self._at == len(self._answers):
            self._answers.append(compute())
        found: T = self._next()
        return found

    def clock(self) -> float:
        return self.once(lambda: self.spent + time.perf_counter() - self._began)

    def _ask(self, work: Work) -> Any:
        if self._at == len(self._answers):
            if self._at < MOST_PAUSES:
                raise Pause(work)
            self._answers.append(_alone(work))
        return self._next()

    def _next(self) -> Any:
        found = self._answers[self._at]
        self._at += 1
        if isinstance(found, Exception):
            raise found
        return found


def play_together(visits: Sequence[Callable[[Engine], T]]) -> list[T]:
    """Run all visits to their ends; trainings that they request at the same time are run together."""
    if len(visits) == 1:
        return [visits[0](Plain())]
    scripts, ends = [Script() for _ in visits], dict[int, T]()
    while len(ends) < len(visits):
        asked = dict[int, Work]()
        for k, visit in enumerate(visits):
            if k not in ends:
                try:
                    ends[k] = scripts[k].play(visit)
                except Pause as pause:
                    asked[k] = pause.work
        for group in groups(asked):
            began = time.perf_counter()
            found = work_together([asked[k] for k in group])
            share = (time.perf_counter() - began) / len(group)
            for k, answer in zip(group, found, strict=True):
                scripts[k].answer(answer, share)
    return [ends[k] for k in range(len(visits))]


# ------------------------------------------------------------------------------------------------ work together


def groups(asked: dict[int, Work]) -> list[list[int]]:
    """Who can be served together: the same functions and options on tensors of the same shapes."""
    found = dict[object, list[int]]()
    for k, work in asked.items():
        found.setdefault(_kind(work), []).append(k)
    return list(found.values())


def _kind(work: Work) -> object:
    if isinstance(work, Pass):
        return id(work.task), _identity(work.function), _shapes(work.tree), _shapes({"x": work.x[:1]})
    options = (tuple(work.rates[k] for k in work.params), work.rule, work.clip_norm)
    sample = _shapes({"x": work.data.x[:1], "y": work.data.y[:1]})
    return id(work.task), _identity(work.loss), _identity(work.project), *map(_shapes, _trees(work)), options, sample


def _trees(work: Work) -> list[Tree]:
    return [work.tree] if isinstance(work, Pass) else [work.params, work.velocity, work.given, work.carry]


def _shapes(tree: Tree) -> object:
    return tuple((k, v.shape, v.dtype) for k, v in tree.items())


def _identity(function: object) -> object:
    """A bound method is a new object every time that it is looked up."""
    if inspect.ismethod(function):
        return id(function.__self__), id(function.__func__)
    return id(function)


def work_together(group: Sequence[Work]) -> Sequence[Found]:
    """Work of one kind, vectorised if vmap can do it and one by one if not."""
    if len(group) > 1 and _fits(group):
        try:
            return vectorise(group)
        except Exception:  # vmap refuses in many ways; a fault of the method itself comes up again, at its client
            pass
    return [_alone(work) for work in group]


def vectorise(group: Sequence[Work]) -> Sequence[Found]:
    if isinstance(group[0], Pass):
        return pass_together(cast(Sequence[Pass], group))
    return train_together(cast(Sequence[Job], group))


def _fits(group: Sequence[Work]) -> bool:
    model = group[0].task.model
    sizes = (count_bytes(tree) for work in group for tree in _trees(work))
    even = all(isinstance(work, Pass) or (work.even and work.task.objective.by_sample) for work in group)
    return even and not (model.has_buffers or model.stochastic) and sum(sizes) <= STACK_LIMIT


def _alone(work: Work) -> Found:
    try:
        found: Found = compute(work)
        return found
    except Exception as error:
        return error


def pass_together(passes: Sequence[Pass]) -> list[Tensor]:
    """One pass of many clients over their samples, some of each at a time."""
    one, tree = passes[0], _stacked([wanted.tree for wanted in passes])
    size = max(1, min(EVALUATION_BATCH, PASS_LIMIT // (len(passes) * one.x.shape[1:].numel())))
    parts = [torch.split(wanted.x, size) for wanted in passes]
    found: list[list[Tensor]] = [[] for _ in passes]
    with torch.no_grad():
        for at in range(max(map(len, parts))):
            members = [k for k, own in enumerate(parts) if at < len(own)]
            x = pad_sequence([parts[k][at] for k in members], batch_first=True)
            answers = vmap(partial(one.function, one.task))(_taken(tree, _rows(members)), x)
            for k, rows in zip(members, answers, strict=True):
                found[k].append(rows[: len(parts[k][at])])
    return [torch.cat(own) for own in found]


# --------------------------------------------------------------------------------------------- training together


def train_together(jobs: Sequence[Job]) -> list[Trained]:
    """The same steps as ``train`` for every job, with the clients as one more dimension of every tensor."""
    order = sorted(range(len(jobs)), key=lambda k: -len(jobs[k].data.y))  # who has batches left is at the front
    jobs = [jobs[k] for k in order]
    one, step = jobs[0], vectorised(jobs[0])
    trees = [[job.params, job.velocity, job.given, job.carry] for job in jobs]
    params, velocity, given, carry = (_stacked(column) for column in zip(*trees, strict=True))
    x, y = torch.cat([job.data.x for job in jobs]), torch.cat([job.data.y for job in jobs])
    losses = list[tuple[Rows, Tensor, Tensor]]()
    with one.task.model.training():
        for rows, index, weight in schedule(jobs):
            w, v, c = (_taken(tree, rows) for tree in (params, velocity, carry))
            sizes, index, weight = (weight > 0).sum(1), index.to(y.device), weight.to(y.device)
            w, v, c, told = step(w, v, c, _taken(given, rows), Batch(x[index], y[index]), weight)
            losses.append((rows, told, sizes))
            for tree, new in ((params, w), (velocity, v), (carry, c)):
                _put(tree, rows, new)
    found, ends = _summed(losses, len(jobs)), enumerate(order)
    done = {k: Trained(_row({**params, **carry}, at), _row(velocity, at), found[at]) for at, k in ends}
    return [done[k] for k in range(len(jobs))]


def _summed(losses: Sequence[tuple[Rows, Tensor, Tensor]], clients: int) -> list[LossSum]:
    """Of every client: the rows, mean losses and batch sizes of all steps."""
    sums, counts = torch.zeros(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.int64)
    for rows, told, sizes in losses:
        sums[rows] += told.cpu().double() * sizes
        counts[rows] += sizes
    return [LossSum(*pair) for pair in zip(sums.tolist(), counts.tolist(), strict=True)]


Step = Callable[[Tree, Tree, Tree, Tree, Batch, Tensor], tuple[Tree, Tree, Tree, Tensor]]


def vectorised(job: Job) -> Step:
    """One step of many clients: parameters, velocity and carry before, the same after, and the losses [clients]."""

    def value(
        params: Tree, x: Tensor, y: Tensor, weight: Tensor, given: Tree, carry: Tree
    ) -> tuple[Tensor, Tree, Tensor]:
        """What is minimised, the carry, and the loss, of which a pull towards an anchor is no part."""
        if job.loss in WEIGHTED:
            told = weighted_loss(job.task, params, Batch(x, y), {**given, **carry}, weight)
            return (told + pull(params, given) if job.loss is proximal else told), carry, told
        answer = job.loss(job.task, params, Batch(x, y), {**given, **carry})
        found, carry = answer if isinstance(answer, tuple) else (answer, carry)
        return found, carry, found

    def step(
        w: Tree, v: Tree, carry: Tree, given: Tree, batch: Batch, weight: Tensor
    ) -> tuple[Tree, Tree, Tree, Tensor]:
        leaves = {k: row.detach().requires_grad_() for k, row in w.items()}
        values, carry, told = vmap(value)(leaves, batch.x, batch.y, weight, given, carry)
        grads = _slopes(values, leaves)
        if job.clip_norm is not None:
            grads = vmap(partial(clipped, norm=job.clip_norm))(grads)
        for name in w:
            w[name].sub_(direction(job.rule, name, w[name], grads[name], v), alpha=job.rates[name])
        w = w if job.project is None else vmap(job.project)(w)
        return w, v, {k: c.detach() for k, c in carry.items()}, told.detach()

    return step


def weighted_loss(task: Task, params: Tree, batch: Batch, given: Tree, weight: Tensor) -> Tensor:
    """The task's loss as a weighted sum over the batch; weights 1 / batch make it the mean."""
    outputs = task.predict({**given, **params}, batch.x)
    if not (isinstance(task.objective, Classification) and task.objective.plain):
        return (task.objective.losses(outputs, batch.y) * weight).sum()
    logs = F.log_softmax(outputs, 1)  # PyTorch vectorises this, but not its cross-entropy
    return -(logs.gather(1, batch.y[:, None])[:, 0] * weight).sum()


# These have a form that batches of several sizes can share: clients smaller than one batch are common.
WEIGHTED: set[Loss] = {task_loss, proximal}


def _slopes(values: Tensor, leaves: Tree) -> Tree:
    """Gradient of every client's value in its own row: no value depends on another client's row."""
    if values.ndim != 1:
        raise TypeError("a loss must be one number per client")
    found = torch.autograd.grad(values.sum(), list(leaves.values()), allow_unused=True)
    return {k: torch.zeros_like(w) if g is None else g for (k, w), g in zip(leaves.items(), found, strict=True)}


def schedule(jobs: Sequence[Job]) -> Iterator[tuple[Rows, Tensor, Tensor]]:
    """Who takes a step together, on which samples [k, batch] of all data and with which weights [k, batch].

    Everybody goes through its own batches in their order. Smaller batches are filled up where the loss has a weighted
    form; elsewhere batches of one step have one size, and whoever comes to the last of an epoch waits for the others.
    """
    fill = jobs[0].loss in WEIGHTED
    starts = [0, *accumulate(len(job.data.y) for job in jobs)]
    batches = [[index + start for index in job.batches()] for job, start in zip(jobs, starts, strict=False)]
    full = [max((len(index) for index in own), default=0) for own in batches]
    at, laps = [0] * len(jobs), [0] * len(jobs)
    while waiting := {k: (laps[k], -len(own[at[k]])) for k, own in enumerate(batches) if at[k] < len(own)}:
        chosen = min(waiting.values())
        members = [k for k, place in waiting.items() if fill or place == chosen]
        yield _rows(members), *_filled([batches[k][at[k]] for k in members])
        for k in members:
            laps[k] += len(batches[k][at[k]]) < full[k]
            at[k] += 1


def _filled(batches: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Batches as one matrix; a smaller one repeats its first sample, with weight 0."""
    index = pad_sequence(batches, batch_first=True, padding_value=-1)
    real = index >= 0
    return torch.where(real, index, index[:, :1]), real / real.sum(1, keepdim=True)


def _rows(members: list[int]) -> Rows:
    """A slice where it can be one: its rows need not be copied."""
    first, last = members[0], members[-1]
    return slice(first, last + 1) if last - first + 1 == len(members) else torch.tensor(members)


def _stacked(trees: Sequence[Tree]) -> Tree:
    return {k: torch.stack([tree[k] for tree in trees]) for k in trees[0]}


def _taken(tree: Tree, rows: Rows) -> Tree:
    return {k: v[rows] for k, v in tree.items()}


def _put(tree: Tree, rows: Rows, new: Tree) -> None:
    """Write rows back; the carry of a loss must keep its names, shapes and dtypes to be stacked."""
    if tree.keys() != new.keys():
        raise TypeError(f"{sorted(tree.keys() ^ new.keys())} came or went")
    for k, v in new.items():
        if v.shape[1:] != tree[k].shape[1:] or v.dtype != tree[k].dtype:
            raise TypeError(f"{k} changed its shape or dtype")
        if v.data_ptr() != tree[k][rows].data_ptr():
            tree[k][rows] = v


def _row(tree: Tree, at: int) -> Tree:
    return {k: v[at].clone() for k, v in tree.items()}
