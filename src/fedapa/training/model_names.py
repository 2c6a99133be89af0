"""The shipped models by name, for listings that need no torch; ``architectures`` has the code behind each."""

from __future__ import annotations

from typing import NamedTuple


class ModelName(NamedTuple):
    what: str
    features: int  # the size of what its head gets


SHIPPED = {
    "lenet5": ModelName("LeNet-5 of the paper, square images from 16x16", 84),
    "cnn8": ModelName("one convolution, for 8x8 digits", 32),
    "mlp": ModelName("two hidden layers of 64, for tables and anything else", 64),
    "resnet18": ModelName("ResNet-18 with BatchNorm; a small first layer for images below 64x64", 512),
    "resnet18-gn": ModelName("the same with GroupNorm, which keeps no statistics", 512),
    "mobilenet": ModelName("inverted residuals as in MobileNetV2, for small images", 256),
    "cnn1d": ModelName("three convolutions along time, for series [channels, steps] or [steps]", 64),
    "transformer": ModelName("a small encoder for token ids [steps]; settings: vocabulary", 64),
}
