"""From what a user names or gives to a split model."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedapa.errors import InputError
from fedapa.training.architectures import MODELS, Factory, factory, library_models
from fedapa.training.selection import Patterns
from fedapa.training.settings import HEAD, Buffers
from fedapa.training.split_model import SplitModel

Model = str | nn.Module | Callable[..., nn.Module]  # by name, with weights of its own, or made by a class or function
Models = Model | Sequence[Model] | Mapping[str, Model]  # one for all, one after another, or by client
HOW = "write it as (shape, classes) -> nn.Module"


ANYBODY = "*"  # in a table by client: all others


@dataclass(frozen=True, eq=False)
class Architectures:
    """Which client has which model: in turn, or by name."""

    models: tuple[SplitModel, ...]
    clients: tuple[str, ...] = ()  # whose they are; empty: in turn

    def of(self, i: int, client: str) -> SplitModel:
        by_name = dict(zip(self.clients, self.models, strict=True)) if self.clients else {}
        found: SplitModel = choose(by_name or self.models, i, client)
        return found


def choose(models: Any, i: int, client: str) -> Any:
    """The one of client i: of a list in turn, of a table by the client's name or number, else the only one."""
    if isinstance(models, Mapping):
        for key in (client, str(i), ANYBODY):
            if key in models:
                return models[key]
        hint = f'name it, or all others as "{ANYBODY}"; there are {", ".join(models)}'
        raise InputError(f"model.name has no model for client {client}", hint)
    return models if _is_one(models) else models[i % len(models)]


def distinct(models: Any) -> list[Any]:
    """All of them, each once, in order."""
    found: list[Any] = []
    for one in _in_order(models):
        if _place(one, found) is None:
            found.append(one)
    return found


def _is_one(models: Any) -> bool:
    return isinstance(models, str | nn.Module) or not isinstance(models, Sequence | Mapping)


def _in_order(models: Any) -> list[Any]:
    if _is_one(models):
        return [models]
    return list(models.values() if isinstance(models, Mapping) else models)


def _place(one: Any, known: Sequence[Any]) -> int | None:
    same = (k for k, other in enumerate(known) if other is one or (isinstance(one, str) and other == one))
    return next(same, None)


def build_models(
    models: Models, shape: tuple[int, ...], classes: int, **options: Any
) -> tuple[SplitModel, Architectures | None]:
    """The model of all clients; or of the first, and who has which."""
    if not _in_order(models):
        raise InputError("model is an empty list", "give one model, a list of them, or a table of them by client")
    known = distinct(models)
    built = [build_model(one, shape, classes, **options) for one in known]
    if len(built) == 1:
        return built[0], None
    split = tuple(built[_place(one, known) or 0] for one in _in_order(models))
    return split[0], Architectures(split, tuple(models) if isinstance(models, Mapping) else ())


def build_model(
    model: Model,
    shape: tuple[int, ...],
    classes: int,
    head: str = HEAD,
    buffers: Buffers = "shared",
    shared: Patterns = (),
    frozen: Patterns = (),
    pretrained: bool = False,
    features: int = 0,
    settings: Mapping[str, Any] | None = None,
    sample: Any = None,
) -> SplitModel:
    """A split model from a shipped name, ``package.module:function``, a class or function, or a module.

    A module's own weights are the start, whatever the seed; the others are made anew, and drawn by the seed. ``shared``
    and ``frozen`` are patterns over the names of its parameters, ``settings`` go to the function that makes it.
    ``features`` puts a layer of that size before the head, so that different architectures have features in common.
    ``sample`` are two samples to try it on; without them floats are tried, then whole numbers.
    """
    build = _builder(model, shape, classes, {**(settings or {}), **({"pretrained": True} if pretrained else {})})
    if head == HEAD and isinstance(model, str) and library_models.is_from_library(model):
        head = library_models.head_of(build())
    if features:
        build, head = partial(_projected, build, head, features), HEAD
    made = partial(SplitModel, build, head=head, buffers=buffers, shared=shared, frozen=frozen)
    try:
        found = made(torch.zeros(2, *shape) if sample is None else sample)
    except InputError:
        if sample is not None:
            raise
        found = _of_tokens(made, shape)
    if found.outputs != classes:
        wanted = f"the data {classes} classes" if classes > 1 else f"the objective needs {classes}"
        raise InputError(f"the model has {found.outputs} outputs, {wanted}", "change its last layer")
    if found.theta_trainable + found.phi_trainable == 0:
        raise InputError("the model has no trainable parameter", "freeze less of it")
    return found


def _of_tokens(made: Callable[[Tensor], SplitModel], shape: tuple[int, ...]) -> SplitModel:
    """A model that refuses floats may take token ids; if not, what it said about floats is the better error."""
    try:
        return made(torch.zeros(2, *shape, dtype=torch.int64))
    except InputError:
        return made(torch.zeros(2, *shape))


def _builder(model: Any, shape: tuple[int, ...], classes: int, settings: Mapping[str, Any]) -> Callable[[], nn.Module]:
    if isinstance(model, str):
        return partial(_made, model, _with_settings(model, factory(model), settings), shape, classes)
    if settings:
        said = f"the setting {next(iter(settings))!r} is for models by name"
        raise InputError(said, "give your module, class or function its arguments yourself")
    if isinstance(model, nn.Module):
        return lambda: model
    if not callable(model):
        hint = f"give a name ({', '.join(MODELS)}), a module, or a class or function that makes one"
        raise InputError(f"model is {model!r}", hint)
    name = getattr(model, "__qualname__", repr(model))
    make = (lambda shape, classes: model()) if _needs_nothing(model) else model
    return lambda: _made(name, make, shape, classes)


def _with_settings(name: str, make: Factory, settings: Mapping[str, Any]) -> Factory:
    """The factory with the settings of [model.settings] bound, once it is known to take them."""
    known = inspect.signature(make).parameters if settings else {}
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    if not open_ended and (unknown := sorted(settings.keys() - set(list(known)[2:]))):
        legal = ", ".join(list(known)[2:]) or "none"
        raise InputError(f"model {name!r} has no setting {unknown[0]!r}", f"it has {legal}")
    return partial(make, **settings) if settings else make


def _projected(build: Callable[[], nn.Module], head: str, features: int) -> nn.Module:
    """The module with one more layer before its head."""
    module = copy.deepcopy(build())
    last = dict(module.named_modules()).get(head)
    if not isinstance(last, nn.Linear):
        raise InputError(f"model.features is {features}, and the model has no linear head {head!r}", "leave it out")
    module.set_submodule(head, nn.Identity())
    project, top = nn.Linear(last.in_features, features), nn.Linear(features, last.out_features)
    return nn.Sequential(OrderedDict(base=module, project=project, relu=nn.ReLU(), head=top))


def _needs_nothing(make: Callable[..., nn.Module]) -> bool:
    """Whether it can be called without arguments; one with defaults for all is: they are not ours to fill."""
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError):
        return False
    return True


def _made(name: str, make: Factory, shape: tuple[int, ...], classes: int) -> nn.Module:
    try:
        found = make(shape, classes)
    except InputError:
        raise
    except Exception as error:  # a user's function may fail in any way
        said = f"model {name!r} cannot be made: {type(error).__name__}: {error} (samples of shape {list(shape)})"
        raise InputError(said, HOW) from error
    if not isinstance(found, nn.Module):
        raise InputError(f"model {name!r} made {type(found).__name__}", HOW)
    return found
