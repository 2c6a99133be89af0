"""Which engine runs a task: native where the kernel knows the model, else what a short measurement finds faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from fedapa.core.threads import one_thread
from fedapa.data.federated import Federated, Split
from fedapa.data.samples import in_memory
from fedapa.errors import InputError
from fedapa.training.engines.native import Kernel, available, shape_of
from fedapa.training.engines.vmap_engine import train_together
from fedapa.training.job import Job
from fedapa.training.local import train
from fedapa.training.optimizers import Rule
from fedapa.training.settings import Engine
from fedapa.training.split_model import SplitModel
from fedapa.training.task import Task, task_loss

FEWEST = 8  # clients; with fewer, the gain by vectorising is within noise
SAMPLE = 16  # clients that are measured: what pays with them pays more with many
GAIN = 1.3  # times that vmap must be faster
BUDGET = 0.1  # seconds for one look at the plain loop
LONG = 0.02  # seconds for two steps, which then go into arithmetic, not into the overhead that vmap saves


def with_engine(task: Task, data: Federated, engine: Engine) -> Task:
    """The task on the requested engine; an error if that cannot run it."""
    if engine == "torch" or ((alone := needs_torch(task)) and engine == "auto"):
        return task
    if alone:
        raise InputError(f"the {engine} engine cannot run this task: {alone}", 'use engine = "auto" or "torch"')
    if engine != "vmap" and (kernel := kernel_for(task, data, engine == "native")) is not None:
        return replace(task, kernel=kernel)
    few = task.clients < FEWEST or task.devices[0].type != "cpu"  # the measurement is one of the CPU
    obstacle = vmap_obstacle(task, data) if engine == "vmap" or not few else "too few clients"
    if engine == "vmap" and obstacle:
        raise InputError(f"the vmap engine cannot run this model: {obstacle}", 'use engine = "auto" or "torch"')
    return replace(task, vectorise=obstacle is None and (engine == "vmap" or vmap_is_faster(Measured(task, data))))


def needs_torch(task: Task) -> str:
    """Why only the torch engine can run the task; empty if others may."""
    if task.trainer is not None:
        return "it has a trainer of its own"
    return "its clients have different architectures" if task.architectures is not None else ""


def kernel_for(task: Task, data: Federated, insist: bool = False) -> Kernel | None:
    """The compiled engine, if it can run model and recipe; an error if the user requested it."""
    reason = native_obstacle(task)
    if reason is None and data.clients and not in_memory(data.clients[0].train.x):
        reason = "samples are no tensor in memory"
    if reason is not None and insist:
        raise InputError(f"the native engine cannot run this recipe: {reason}", 'use engine = "auto" or "torch"')
    return None if reason is not None else native_kernel(task.model, data, insist)


def native_obstacle(task: Task) -> str | None:
    """Why the kernel cannot compute passes of this task, whatever the model."""
    if task.devices[0].type != "cpu":
        return f"it computes on the CPU, the run on {task.devices[0]}"
    if task.training.precision != "float32":
        return f"it computes in float32, training.precision is {task.training.precision}"
    return None


def engine_note(task: Task) -> str:
    """The engine, and in one line what in the recipe keeps it from its fastest way."""
    if task.vectorise:
        return "vmap"
    if task.kernel is None:
        why = native_obstacle(task) or recipe_obstacle(task)
        return f"torch ({why})" if why else "torch"
    why = fusion_obstacle(task)
    return f"native, batch by batch ({why})" if why else "native"


def fusion_obstacle(task: Task) -> str | None:
    """What in a recipe the kernel does not do in one call; it then computes gradients, batch by batch."""
    unknown = task.objective.fuses is None
    return "the loss is neither cross-entropy nor squared error" if unknown else step_obstacle(task)


def step_obstacle(task: Task) -> str | None:
    """What in a recipe keeps an engine from taking many steps at once."""
    training = task.training
    return _first(
        {
            "the rate changes within a visit by training.lr_steps": training.lr_steps,
            "clients stop early by training.patience": training.patience > 0,
            f"training.precision is {training.precision}": training.precision != "float32",
            "batches are augmented by training.augment": task.augment is not None,
        }
    )


def recipe_obstacle(task: Task) -> str | None:
    """What in a recipe the vmap engine does not do."""
    return step_obstacle(task) or _first(
        {
            "clients have recipes of their own by training.by_client": bool(task.training.by_client),
            "every client weighs classes by its own labels": task.at(torch.zeros(1, dtype=torch.int64)) is not task,
        }
    )


def _first(reasons: dict[str, bool]) -> str | None:
    """The first reason that holds."""
    return next((reason for reason, holds in reasons.items() if holds), None)


def native_kernel(model: SplitModel, data: Federated, insist: bool = False) -> Kernel | None:
    """The compiled engine, if it was built and knows this model; an error if the user requested it."""
    built, reason = available()
    whole = model.is_cut_at_head and not (model.has_buffers or model.has_frozen)
    shape = shape_of(model.extractor, data.shape) if built and whole else None
    if shape is not None and model.plain_head:
        return Kernel(shape, model.outputs, data.mean, data.std)
    if insist:
        why = "it knows only 5x5 convolution, ReLU, 2x2 max-pool blocks with linear layers" if built else reason
        raise InputError(f"the native engine cannot run this model: {why}", 'use engine = "auto" or "torch"')
    return None


def vmap_obstacle(task: Task, data: Federated) -> str | None:
    """Why clients of this task cannot be trained together; None if they can."""
    if (reason := recipe_obstacle(task)) is not None:
        return reason
    if task.model.has_buffers:
        return "it keeps running statistics (BatchNorm), which only the torch engine follows"
    if task.model.stochastic:
        return "it draws random numbers (dropout), which only the torch engine repeats"
    try:
        with one_thread():
            train_together(sample_jobs(task, data, 2))
    except Exception as error:
        return f"PyTorch cannot vectorise it, {str(error).strip().splitlines()[0] if str(error).strip() else error!r}"
    return None


@dataclass(frozen=True)
class Measured:
    """A task as the measurement sees it: tasks that look the same are measured once in a process."""

    task: Task = field(compare=False)
    data: Federated = field(compare=False)
    looks: str = field(init=False)

    def __post_init__(self) -> None:
        model, training = self.task.model, self.task.training
        parts = (model.extractor, model.head, self.data.shape, training.batch, training.drop_last, self.task.sizes)
        object.__setattr__(self, "looks", repr(parts))


@lru_cache(maxsize=1)  # of the last task: an entry keeps its data alive
def vmap_is_faster(measured: Measured) -> bool:
    """Time the same few steps of some clients both ways. No random stream and no state is touched."""
    with one_thread():
        first = sample_jobs(measured.task, measured.data, 1)[0]
        two_steps = min(seconds(lambda: train(first)) for _ in range(2))
        if two_steps > LONG:
            return False
        count = min(SAMPLE, measured.task.clients, int(BUDGET / two_steps))
        jobs = sample_jobs(measured.task, measured.data, count)
        pairs = [(seconds(lambda: [train(job) for job in jobs]), seconds(lambda: train_together(jobs))) for _ in "123"]
    plain, together = (min(times) for times in zip(*pairs, strict=True))
    return bool(plain > GAIN * together)


def sample_jobs(task: Task, data: Federated, count: int) -> list[Job]:
    """The first two batches of some clients, from the largest to the smallest."""
    splits = sorted((client.train for client in data.clients), key=lambda split: -len(split.y))
    params = dict(zip(("theta", "phi"), task.init(0), strict=True))
    chosen = [splits[k * len(splits) // count] for k in range(count)]
    return [_job(task, split, params) for split in chosen]


def _job(task: Task, split: Split, params: dict[str, Tensor]) -> Job:
    velocity, rates = {k: torch.zeros_like(v) for k, v in params.items()}, dict.fromkeys(params, 0.0)
    order, size = torch.arange(len(split.y)), task.training.batch
    batches = partial(iter, [order[k : k + size] for k in (0, size) if k < len(order)])
    return Job(task, task_loss, params, velocity, {}, {}, split, batches, rates, Rule(0.9), None, None)


def seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread, which does not see what else the machine is doing."""
    began = time.thread_time()
    work()
    return time.thread_time() - began
