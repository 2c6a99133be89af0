"""A convolutional network along time, for series of one or several channels."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedapa.errors import InputError

SHORTEST = 8  # steps that two pools and the last convolution need


def cnn1d(shape: tuple[int, ...], classes: int, width: int = 64) -> nn.Module:
    """Three convolutions of ``width`` channels, GroupNorm, and the mean over time. [channels, steps] or [steps]"""
    if len(shape) not in (1, 2) or shape[-1] < SHORTEST:
        said = f"model cnn1d needs series [channels, steps] of at least {SHORTEST} steps"
        raise InputError(f"{said}, the data has shape {list(shape)}", 'use "mlp" for anything else')
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if len(shape) == 1:
        layers["channel"] = nn.Unflatten(1, (1, shape[0]))
    before = 1 if len(shape) == 1 else shape[0]
    for k in (1, 2, 3):
        layers[f"conv{k}"] = nn.Conv1d(before, width, 5, padding=2)
        layers[f"norm{k}"] = nn.GroupNorm(8 if width % 8 == 0 else 1, width)
        layers[f"relu{k}"] = nn.ReLU()
        if k < 3:
            layers[f"pool{k}"] = nn.MaxPool1d(2)
        before = width
    layers |= {"mean": nn.AdaptiveAvgPool1d(1), "flatten": nn.Flatten(), "head": nn.Linear(width, classes)}
    return nn.Sequential(layers)
