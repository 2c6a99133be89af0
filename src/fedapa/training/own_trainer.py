"""A user's own training loop in place of the library's: ``train(module, data, training, generator)``.

The module carries the weights that arrived. The loop trains it in place, or returns another module of the same
architecture. What a method asks of it is plain minimisation from a start, of the whole model or of one of its parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fedapa.core.tree import Tree
from fedapa.data.federated import Split
from fedapa.data.samples import are_fields, in_memory
from fedapa.errors import FedapaError, InputError
from fedapa.plugins import failed, file_of, load_object
from fedapa.training.devices import seed_torch
from fedapa.training.settings import Training
from fedapa.training.task import Task, Trainer

PARTS = {"theta", "phi"}
ARGUMENTS = "(module, data, training, generator)"
PLAIN = "use a method that minimises the plain loss, such as fedapa, fedavg, fedper or fedrep, or leave the trainer out"


class Wanted(NamedTuple):
    """What a method asks to be trained: ``params``, from where they are, with ``given`` held still."""

    params: Tree
    given: Tree
    loss: Callable[..., Any]
    is_plain: bool  # the loss is the task's, without carry, projection or a fixed number of steps


class Samples(Dataset[Any]):
    """Samples that are no tensor in memory: read and prepared one by one. Those with fields are dictionaries, of which
    torch's DataLoader makes batches."""

    def __init__(self, task: Task, data: Split) -> None:
        self._task, self._data = task, data

    def __len__(self) -> int:
        return len(self._data.y)

    def __getitem__(self, k: int) -> tuple[Any, Tensor]:
        x: Any = self._data.x[k]
        return (dict(x.items()) if are_fields(x) else self._task.prepare(x[None])[0]), self._data.y[k]


def load_trainer(name: str) -> Trainer:
    """The function behind ``file.py:function`` or ``package.module:function``."""
    found = load_object(name, "trainer") if ":" in name else None
    if found is None:
        raise InputError(f"training.trainer is {name!r}", "name a function: file.py:function")
    check_trainer(found, name)
    trainer: Trainer = found
    return trainer


def check_trainer(trainer: object, name: str) -> None:
    try:
        inspect.signature(trainer).bind(None, None, None, None)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(
            f"trainer {name!r} cannot be called with {ARGUMENTS}", f"write it as def train{ARGUMENTS}"
        ) from None


def refuse_unheard(task: Task) -> None:
    """What the library's loop does with a batch, a trainer would leave out without a word."""
    training, plain = task.training, getattr(task.objective, "plain", True)
    settings = {
        "training.augment": training.augment,
        "training.patience": training.patience,
        "training.precision": training.precision if training.precision != "float32" else "",
        "objective.label_smoothing or class_weights": not plain,
    }
    if task.trainer is not None and (unheard := [name for name, value in settings.items() if value]):
        raise InputError(f"training.trainer has its own loop, which {unheard[0]} does not reach", "do it in the loop")


def name_of(trainer: object) -> str:
    """Under which a run notes it."""
    return f"{getattr(trainer, '__module__', '')}:{getattr(trainer, '__qualname__', type(trainer).__qualname__)}"


def concerns(params: Tree) -> bool:
    """Whether a training is one of the model. A method's own few numbers are trained by the library's loop."""
    return bool(PARTS & params.keys())


def train_with(trainer: Trainer, task: Task, wanted: Wanted, data: Split, recipe: Training, seed: int) -> Tree:
    """The trained ``params``. torch's generator is seeded, so that a loop which draws from it repeats."""
    if not wanted.is_plain or not wanted.params.keys() <= PARTS:
        name = getattr(wanted.loss, "__name__", "a loss of its own")
        raise InputError(
            f"training.trainer cannot train this method, which needs its own loss or steps ({name})", PLAIN
        )
    if task.training.epochs == 0:  # a dry visit, which asks for shapes alone
        return dict(wanted.params)
    module = _module(task, wanted)
    samples = TensorDataset(task.prepare(data.x), data.y) if in_memory(data.x) else Samples(task, data)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        seed_torch(seed)
        answer = _called(trainer, module, samples, recipe, torch.Generator().manual_seed(seed))
    return _read(task, answer if isinstance(answer, nn.Module) else module, wanted.params)


def _module(task: Task, wanted: Wanted) -> nn.Module:
    """The whole model; what the method holds still has no gradient."""
    both = {**wanted.given, **wanted.params}
    module, model = task.model.module(both["theta"], both["phi"]), task.model
    slots = {"theta": model.theta_slots, "phi": model.phi_slots}
    still = {model.own_name(slot.name) for part in PARTS - wanted.params.keys() for slot in slots[part]}
    for name, parameter in module.named_parameters():
        if name in still:
            parameter.requires_grad_(False)
    return module


def _called(trainer: Trainer, *arguments: Any) -> object:
    try:
        return trainer(*arguments)
    except FedapaError:
        raise
    except Exception as error:
        raise failed(f"trainer {name_of(trainer)!r}", error, file_of(trainer)) from error


def _read(task: Task, module: nn.Module, params: Tree) -> Tree:
    try:
        vectors = task.model.vectors(module.cpu())
    except KeyError as error:
        hint = "train the module that it was given, or return one of the same architecture"
        raise InputError(f"the trainer returned a module without {error}", hint) from None
    found: dict[str, Tensor] = dict(zip(("theta", "phi"), vectors, strict=True))
    for name, before in params.items():
        if found[name].shape != before.shape:
            raise InputError(f"the trainer changed the size of {name}", "keep the architecture as it is")
    return {name: found[name] for name in params}
