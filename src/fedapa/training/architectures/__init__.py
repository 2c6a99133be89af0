"""The shipped models by name, one file per family; every one is ``(shape, classes, **settings) -> nn.Module``."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedapa.errors import InputError, did_you_mean
from fedapa.plugins import is_own, load_object
from fedapa.training.architectures import library_models
from fedapa.training.architectures.cnn1d import cnn1d
from fedapa.training.architectures.mobilenet import mobilenet
from fedapa.training.architectures.resnet import resnet18, resnet18_gn
from fedapa.training.architectures.small import cnn8, lenet5, mlp
from fedapa.training.architectures.transformer import transformer

Factory = Callable[..., nn.Module]


MODELS: dict[str, Factory] = {
    "lenet5": lenet5,
    "cnn8": cnn8,
    "mlp": mlp,
    "resnet18": resnet18,
    "resnet18-gn": resnet18_gn,
    "mobilenet": mobilenet,
    "cnn1d": cnn1d,
    "transformer": transformer,
}


def factory(name: str) -> Factory:
    """A shipped model, one of an installed library (``torchvision:NAME``), or the user's own (``file.py:function``)."""
    if name in MODELS:
        return MODELS[name]
    if library_models.is_from_library(name):
        return library_models.maker(name)
    if not is_own(name):
        hint = did_you_mean(name, MODELS, f"choose one of {', '.join(MODELS)}, or file.py:function")
        raise InputError(f"unknown model {name!r}", hint)
    found: Factory = load_object(name, "model")
    return found
