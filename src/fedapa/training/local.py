"""One client's toolbox for one visit: its data, its random stream, and the training loop."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.data.federated import Split
from fedapa.data.samples import chosen, pieces
from fedapa.errors import InputError
from fedapa.streams import stream, torch_seed
from fedapa.training import own_trainer
from fedapa.training.fused import train_fused
from fedapa.training.job import Held, Job, Loss, LossSum, Project, Rates, Trained, is_half
from fedapa.training.optimizers import Rule, base_rate, direction, rule_of, schedule_factor, state_of
from fedapa.training.task import CPU, Batch, Task, proximal, pull, task_loss

EVALUATION_BATCH = 512
LOSS_SCALE = 2.0**10  # fp16: small gradients would be 0; a power of two changes no digit
T = TypeVar("T")


class Pass(NamedTuple):
    """A function of one sample and a model, ``function(task, tree, x)``, to be taken at all samples of a client."""

    function: Callable[[Task, Tree, Tensor], Tensor]
    task: Task
    tree: Tree
    x: Tensor


class Engine(Protocol):
    """Runs the training of a visit. An engine may interrupt a visit and replay it, hence ``once``."""

    def train(self, job: Job) -> Trained:
        """Run one training."""

    def outputs(self, wanted: Pass) -> Tensor:
        """[n, ...] one row per sample, without gradients."""

    def once(self, compute: Callable[[], T]) -> T:
        """The result of ``compute``, computed once per visit even if the visit is replayed."""

    def clock(self) -> float:
        """Seconds; only differences mean something."""


class Plain:
    """One client at a time, every training at once."""

    def train(self, job: Job) -> Trained:
        return train(job)

    def outputs(self, wanted: Pass) -> Tensor:
        return outputs(wanted)

    def once(self, compute: Callable[[], T]) -> T:
        return compute()

    def clock(self) -> float:
        return time.perf_counter()


class Normal(Protocol):
    """A source of normal numbers."""

    def normal(self, count: int) -> npt.NDArray[np.float32]:
        """So many independent standard normal numbers."""


class Seeded:
    """From a seeded stream, which anybody who knows its key can repeat."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def normal(self, count: int) -> npt.NDArray[np.float32]:
        return self._random.standard_normal(count, dtype=np.float32)


class Entropy:
    """From the operating system's cryptographic generator: no seed, no state, nothing that could be drawn again.

    A fast generator with a secret seed would not do: anybody who guesses the update knows the noise, and could find the
    state of such a generator from it.
    """

    def normal(self, count: int) -> npt.NDArray[np.float32]:
        from scipy.special import ndtri

        bits = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64) >> 12
        return np.asarray(ndtri((bits + 0.5) * 2.0**-52), dtype=np.float32)  # 52 bits: neither 0 nor 1 is drawn


@dataclass
class Local:
    """``memory`` is the optimiser's state between visits; the run keeps it beside the client's state."""

    task: Task
    client: int
    round: int
    seed: int
    data: Split
    memory: Tree = field(default_factory=dict)
    calls: int = 0
    engine: Engine = field(default_factory=Plain)
    entropy: Normal | None = None  # at a real site; None in a simulation
    validation: Split | None = None  # held out: it ends trainings that have a patience
    loss: LossSum = LossSum()  # of all trainings of this toolbox so far

    @property
    def n(self) -> int:
        return len(self.data.y)

    @property
    def rounds(self) -> int:
        return self.task.rounds

    def random(self) -> np.random.Generator:
        """The next random stream of this visit, keyed by (seed, round, client, call)."""
        self.calls += 1
        return self._stream(self.calls)

    def private(self) -> Normal:
        """Noise that the server must not know: a seeded stream in a simulation, entropy at a real site."""
        seeded = self.random()  # drawn at a site, too, so that later streams of the visit are the same in both
        return self.entropy or Seeded(seeded)

    def fresh(self) -> tuple[Tensor, Tensor]:
        """theta and phi of this client's own random start, drawn on the CPU wherever the client computes."""
        with CPU:
            theta, phi = self.task.init(own_start(self.seed, self.client))
        return theta.to(self.task.device), phi.to(self.task.device)

    def counts(self) -> Tensor:
        """[C] how many samples of every class."""
        return torch.bincount(self.data.y, minlength=self.task.classes).float()

    def features(self, params: Mapping[str, Tensor]) -> Tensor:
        """z [n, d] of all own training samples, without gradients."""
        return self.engine.outputs(Pass(Task.features, self.task, dict(params), self.data.x))

    def part(self, fraction: float) -> Local:
        """The same toolbox on a random share of the samples (at least one), in their order."""
        size = max(1, int(fraction * self.n))
        index = torch.from_numpy(np.sort(self.random().choice(self.n, size, replace=False)))
        piece = Split(chosen(self.data.x, index), self.data.y[index])
        return replace(self, data=piece, calls=self.calls + 1000)

    @contextmanager
    def only(self, index: Tensor) -> Iterator[None]:
        """Inside, the toolbox has these samples alone."""
        whole = self.data
        self.data = Split(chosen(whole.x, index), whole.y[index])
        try:
            yield
        finally:
            self.data = whole

    def batches(self, epochs: int, drop_last: bool | None = None) -> Iterator[Tensor]:
        """Indices of shuffled mini-batches; a client smaller than one batch uses all it has."""
        return self._epochs(self.random(), epochs, drop_last)

    def _epochs(self, random: np.random.Generator, epochs: int, drop_last: bool | None = None) -> Iterator[Tensor]:
        size = self.task.training.batch
        drop = self.task.training.drop_last if drop_last is None else drop_last
        for _ in range(epochs):
            order = torch.from_numpy(random.permutation(self.n))
            stop = self.n - self.n % size if drop and self.n >= size else self.n
            if self.task.model.batch_statistics and (stop % size == 1 or stop == 1):
                raise InputError(
                    f"{self.task.name(self.client)}: BatchNorm cannot learn from a batch of one sample",
                    "set training.drop_last, change training.batch, or use a model without BatchNorm",
                )
            yield from torch.split(order[:stop], size)

    def sgd(
        self,
        loss: Loss,
        params: Tree,
        *,
        given: Tree | None = None,
        carry: Tree | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | Mapping[str, float | None] | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        clip_norm: float | None = None,
        project: Project | None = None,
        memory: str | None = "main",
        replaced: bool = False,
        judge: Loss = task_loss,
        rule: Rule | None = None,
    ) -> Tree:
        """Minimise ``loss(task, params, batch, given)`` over ``params``; returns params and carry as one tree.

        ``given`` are constants of the loss. A ``carry`` is state that the loss threads from batch to batch: it is seen
        in ``given`` and the loss returns (value, new carry). ``steps`` draws that many batches instead of epochs.
        ``project`` is applied after every step. Momentum lives under the name ``memory`` from visit to visit; None
        starts afresh. So does ``replaced``, which says that ``params`` were just overwritten by what arrived, unless
        ``training.keep_momentum`` decides for all.

        Optimiser, schedule, augmentation and early stopping are the run's (``training``). A method that gives
        ``momentum`` states a problem of its own, with its own plain SGD on the samples as they are. A rate that is
        given has no schedule; where a mapping of rates has None, the run's rate holds. With a ``rule``, a method takes
        every step of its training by that one. ``judge`` is the loss on held-out samples.
        """
        memory = memory if self._keeps(replaced) else None
        training = self.task.training
        self.calls += 1
        if (trainer := self.task.trainer) is not None and own_trainer.concerns(params):
            asked = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "clip_norm": clip_norm}
            changed: dict[str, Any] = {
                k: v for k, v in {**asked, "epochs": epochs}.items() if isinstance(v, int | float)
            }
            is_plain = _is_plain(loss, given or {}) and not (carry or project or steps or isinstance(lr, Mapping))
            wanted = own_trainer.Wanted(params, given or {}, loss, is_plain)
            seed = torch_seed(self.seed, "trainer", self.round, self.client, self.calls)
            return own_trainer.train_with(trainer, self.task, wanted, self.data, replace(training, **changed), seed)
        own, call, rates = momentum is not None, self.calls, partial(self._rates, _per_name(lr, params))
        held = None if own or rule is not None or steps is not None else self._held(judge)
        rule = rule or (rule_of(training) if momentum is None else Rule(momentum, training.weight_decay))
        rule = rule if weight_decay is None else rule._replace(weight_decay=weight_decay)
        done = self.engine.train(
            Job(
                self.task, loss, params, self._recall(memory, params, rule), given or {}, carry or {}, self.data,
                partial(copy(self)._indices, call, epochs, steps),  # a copy: its data stay what they are now
                rates(0.0), rule, clip_norm or training.clip_norm or None, project,
                rates if training.lr_steps and not own else None,
                held, None if own or self.task.augment is None else partial(self._augmented, call),
            )
        )  # fmt: skip
        self._remember(memory, done.velocity)
        if params.keys() & {"theta", "phi"}:  # mixing weights and the like are no model
            self.loss = self.loss.plus(done.loss)
        return done.params

    def _stream(self, call: int) -> np.random.Generator:
        return stream(self.seed, "visit", self.round, self.client, call)

    def _indices(self, call: int, epochs: int | None, steps: int | None) -> Iterator[Tensor]:
        random = self._stream(call)
        if steps is None:
            yield from self._epochs(random, self.task.training.epochs if epochs is None else epochs)
            return
        size = min(self.task.training.batch, self.n)
        for _ in range(steps):
            yield torch.from_numpy(random.choice(self.n, size, replace=False))

    def _rates(self, given: Mapping[str, float | None], share: float) -> Rates:
        """The rate of every parameter, after a share of this visit's steps."""
        training = self.task.training
        factor = schedule_factor(training, self.round + share, self.rounds)
        return {k: base_rate(training, k) * factor if rate is None else rate for k, rate in given.items()}

    def _held(self, judge: Loss) -> Held | None:
        patience, size = self.task.training.patience, self.task.training.batch
        if not patience or self.validation is None:
            return None
        whole, rest = divmod(self.n, size)
        every = whole if whole and self.task.training.drop_last else whole + (rest > 0)
        return Held(self.validation, judge, every, patience)

    def _augmented(self, call: int, x: Any, batch: int) -> Any:
        """Drawn by a stream of the batch's own: the same after a resume, whoever else is at work."""
        assert self.task.augment is not None
        return self.task.augment(x, stream(self.seed, "augment", self.round, self.client, call, batch))

    def _recall(self, memory: str | None, params: Tree, rule: Rule) -> Tree:
        begun = {k: v for name, param in params.items() for k, v in state_of(rule, name, param).items()}
        kept = {} if memory is None else {k: self.memory.get(f"{memory}/{k}") for k in begun}
        return {k: v if (was := kept.get(k)) is None else _as_long(was, v) for k, v in begun.items()}

    def _remember(self, memory: str | None, velocity: Tree) -> None:
        if memory is not None:
            self.memory = {**self.memory, **{f"{memory}/{k}": v for k, v in velocity.items()}}

    def _keeps(self, replaced: bool) -> bool:
        """Momentum belongs to weights: by default it stays with those that the client itself goes on with."""
        keep = self.task.training.keep_momentum
        return not replaced if keep == "auto" else keep


def _is_plain(loss: Loss, given: Tree) -> bool:
    """Whether the loss is the task's: a pull of strength 0 adds nothing."""
    return loss is task_loss or (loss is proximal and not given["rho"])


def own_start(seed: int, client: int) -> int:
    """Seed of a client's own random start, which the server can compute too."""
    return torch_seed(seed, "start", client)


def _as_long(velocity: Tensor, param: Tensor) -> Tensor:
    """A copy; where a parameter has more entries than before, the new ones begin at rest."""
    return velocity.clone() if velocity.shape == param.shape else F.pad(velocity, (0, len(param) - len(velocity)))


def train(job: Job) -> Trained:
    """The training loop: the whole training in one native call where the kernel can, else batch by batch."""
    if (done := train_fused(job)) is not None:
        return done
    task, velocity, carry = job.task, job.velocity, job.carry
    params = {k: v.clone() for k, v in job.params.items()}
    epochs, losses = Epochs(job), list[tuple[Tensor, int]]()
    with task.model.training() as buffers:
        for k, (index, rates) in enumerate(_paced(job)):
            index = index.to(job.data.y.device)
            x = job.data.x[index]
            batch = Batch(x if job.augment is None else job.augment(x, k), job.data.y[index])
            grads, carry, value = gradients(task, job.loss, params, batch, job.given, carry)
            losses.append((value, len(index)))
            if job.clip_norm is not None:
                grads = clipped(grads, job.clip_norm)
            for name, w in params.items():
                _step(task, name, w, direction(job.rule, name, w, grads[name], velocity), rates[name])
            if buffers:
                task.model.write_buffers(buffers, params.get("theta"), params.get("phi"))
            if job.project is not None:
                params = job.project(params)
            if epochs.over(k + 1, params, carry):
                break
    return Trained({**epochs.best(params), **carry}, velocity, _summed(losses))


def _summed(losses: list[tuple[Tensor, int]]) -> LossSum:
    """Of batches' mean losses and sizes; read once at the end, since reading waits for the device."""
    if not losses:
        return LossSum()
    values, sizes = zip(*losses, strict=True)
    means = torch.stack(values).flatten().tolist()
    return LossSum(sum(mean * size for mean, size in zip(means, sizes, strict=True)), sum(sizes))


def _paced(job: Job) -> Iterator[tuple[Tensor, Rates]]:
    """Every batch with its rates."""
    if job.pace is None:
        yield from ((index, job.rates) for index in job.batches())
        return
    batches = list(job.batches())
    yield from ((index, job.pace(k / len(batches))) for k, index in enumerate(batches))


class Epochs:
    """Looks at held-out samples after every epoch; keeps the parameters of the best one."""

    def __init__(self, job: Job) -> None:
        self._job, self._lowest, self._waited = job, float("inf"), 0
        self._kept: Tree | None = None

    def over(self, steps: int, params: Tree, carry: Tree) -> bool:
        """Whether the training is to end here."""
        held = self._job.held
        if held is None or steps % held.every:
            return False
        value = self._value(held, params, carry)
        if value < self._lowest:
            self._lowest, self._waited, self._kept = value, 0, {k: v.clone() for k, v in params.items()}
        else:
            self._waited += 1
        return self._waited >= held.patience

    def best(self, params: Tree) -> Tree:
        return params if self._kept is None else self._kept

    def _value(self, held: Held, params: Tree, carry: Tree) -> float:
        with torch.no_grad():
            answer = held.loss(self._job.task, params, Batch(*held.data), {**self._job.given, **carry})
        return float(answer[0] if isinstance(answer, tuple) else answer)


def gradients(
    task: Task, loss: Loss, params: Tree, batch: Batch, given: Tree, carry: Tree
) -> tuple[Tree, Tree, Tensor]:
    """Gradient of the loss in every parameter, the new carry, and the loss; a parameter the loss ignores gets zeros.

    A pull towards an anchor is no part of the loss that is returned: the native kernel does not report it either.
    """
    leaves = {k: v.detach().requires_grad_() for k, v in params.items()}
    with _passes(task):
        answer = (task_loss if loss is proximal else loss)(task, leaves, batch, {**given, **carry})
        value, carry = answer if isinstance(answer, tuple) else (answer, carry)
        told = value.detach()
        if loss is proximal:
            value = value + pull(leaves, given)
    if scaled := task.training.precision == "fp16":
        value = value * LOSS_SCALE
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    if scaled:
        found = tuple(None if g is None else g / LOSS_SCALE for g in found)
    grads = {k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(params.items(), found, strict=True)}
    return grads, {k: v.detach() for k, v in carry.items()}, told


def _passes(task: Task) -> Any:
    """Forward passes inside run in the precision of the recipe."""
    if not is_half(task):
        return nullcontext()
    dtype = torch.bfloat16 if task.training.precision == "bf16" else torch.float16
    return torch.autocast(task.device.type, dtype)


def clipped(grads: Tree, norm: float) -> Tree:
    """Scale all gradients together so that their joint norm is at most ``norm``."""
    total = torch.stack([g.norm() for g in grads.values()]).norm()
    scale = (norm / (total + 1e-6)).clamp(max=1.0)
    return {k: g * scale for k, g in grads.items()}


def compute(work: Job | Pass) -> Any:
    return outputs(work) if isinstance(work, Pass) else train(work)


def outputs(wanted: Pass) -> Tensor:
    """A pass over all samples, part by part."""
    function, task, tree, x = wanted
    with torch.no_grad():
        return torch.cat([function(task, tree, part) for part in pieces(x, EVALUATION_BATCH)])


def count_correct(predict: Callable[[Tensor], Tensor], data: Split) -> tuple[int, int]:
    """(correct, total) of the largest logit."""
    with torch.no_grad():
        pairs = zip(pieces(data.x, EVALUATION_BATCH), torch.split(data.y, EVALUATION_BATCH), strict=True)
        correct = sum(int((predict(x).argmax(1) == y).sum()) for x, y in pairs)
    return correct, len(data.y)


def _per_name(lr: float | Mapping[str, float | None] | None, params: Tree) -> Mapping[str, float | None]:
    if not isinstance(lr, Mapping):
        return dict.fromkeys(params, lr)
    if missing := params.keys() - lr.keys():
        raise InputError(f"no learning rate for {sorted(missing)[0]}", "give one number or one per parameter")
    return lr


def _step(task: Task, name: str, w: Tensor, v: Tensor, rate: float) -> None:
    """Move the trainable part only: buffers at the tail of theta or phi are statistics, not weights."""
    stop = {"theta": task.model.theta_trainable, "phi": task.model.phi_trainable}.get(name, w.numel())
    w.view(-1)[:stop].sub_(v.view(-1)[:stop], alpha=rate)
