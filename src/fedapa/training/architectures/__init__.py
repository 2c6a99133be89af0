"""The shipped models by name, one file per family; every one is ``(shape, classes, **settings) -> nn.Module``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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


class Shipped(NamedTuple):
    make: Factory
    what: str
    features: int  # the size of what its head gets


SHIPPED = {
    "lenet5": Shipped(lenet5, "LeNet-5 of the paper, square images from 16x16", 84),
    "cnn8": Shipped(cnn8, "one convolution, for 8x8 digits", 32),
    "mlp": Shipped(mlp, "two hidden layers of 64, for tables and anything else", 64),
    "resnet18": Shipped(resnet18, "ResNet-18 with BatchNorm; a small first layer for images below 64x64", 512),
    "resnet18-gn": Shipped(resnet18_gn, "the same with GroupNorm, which keeps no statistics", 512),
    "mobilenet": Shipped(mobilenet, "inverted residuals as in MobileNetV2, for small images", 256),
    "cnn1d": Shipped(cnn1d, "three convolutions along time, for series [channels, steps] or [steps]", 64),
    "transformer": Shipped(transformer, "a small encoder for token ids [steps]; settings: vocabulary", 64),
}
MODELS: dict[str, Factory] = {name: shipped.make for name, shipped in SHIPPED.items()}


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
