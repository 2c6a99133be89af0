"""LeNet-5, a CNN for 8x8 digits and a multilayer perceptron."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from fedapa.errors import InputError


def lenet5(shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5 as the paper sizes it: 61,156 shared and 850 private parameters on CIFAR-10."""
    channels, flat = shape[0], 16 * _after_two_pools(shape) ** 2
    return _sequential(
        conv1=nn.Conv2d(channels, 6, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        head=nn.Linear(84, classes),
    )


def _after_two_pools(shape: tuple[int, ...]) -> int:
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] < 16:
        raise InputError(
            f"model lenet5 needs square images of at least 16x16, the data has shape {list(shape)}",
            'use model "cnn8" for 8x8 images or "mlp" for anything else',
        )
    return ((shape[1] - 4) // 2 - 4) // 2


def cnn8(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small CNN for 8x8 digits."""
    if len(shape) != 3 or shape[1] < 4 or shape[2] < 4:
        raise InputError(f"model cnn8 needs images of at least 4x4, the data has shape {list(shape)}", 'use "mlp"')
    flat = 16 * (shape[1] // 2) * (shape[2] // 2)
    return _sequential(
        conv1=nn.Conv2d(shape[0], 16, 3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 32),
        relu2=nn.ReLU(),
        head=nn.Linear(32, classes),
    )


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden layers of 64 for tables and small images."""
    flat = int(torch.Size(shape).numel())
    return _sequential(
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 64),
        relu1=nn.ReLU(),
        fc2=nn.Linear(64, 64),
        relu2=nn.ReLU(),
        head=nn.Linear(64, classes),
    )


def _sequential(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))
