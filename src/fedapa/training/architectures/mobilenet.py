"""A small network of inverted residuals, as in MobileNetV2 (Sandler et al., CVPR 2018).

Sized for small images: four stages up to 128 channels, about 0.2 million parameters.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fedapa.errors import InputError

EXPANSION = 4
STAGES = ((16, 1, 1), (24, 2, 2), (48, 2, 2), (96, 2, 2))  # width, blocks, stride of the first
FEATURES = 256


def mobilenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """With BatchNorm, whose statistics ride with theta or phi (``model.buffers``)."""
    if len(shape) != 3 or min(shape[1:]) < 8:
        hint = 'use "mlp" for anything else'
        raise InputError(f"model mobilenet needs images of at least 8x8, the data has shape {list(shape)}", hint)
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=_conv(shape[0], 16, 3, 1))
    before = 16
    for k, (width, blocks, stride) in enumerate(STAGES):
        widths, strides = [before] + [width] * (blocks - 1), [stride] + [1] * (blocks - 1)
        inner = (Inverted(old, width, step) for old, step in zip(widths, strides, strict=True))
        layers[f"stage{k + 1}"] = nn.Sequential(*inner)
        before = width
    layers |= {"last": _conv(before, FEATURES, 1, 1), "pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    layers["head"] = nn.Linear(FEATURES, classes)
    return nn.Sequential(layers)


class Inverted(nn.Module):
    """1x1 to more channels, 3x3 in every channel, 1x1 back; beside a shortcut where the shapes agree."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        inside = EXPANSION * before
        self.expand = _conv(before, inside, 1, 1)
        self.depthwise = _conv(inside, inside, 3, stride, groups=inside)
        self.project = nn.Sequential(
            OrderedDict(conv=nn.Conv2d(inside, width, 1, bias=False), norm=nn.BatchNorm2d(width))
        )
        self.adds = stride == 1 and before == width

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + found if self.adds else found


def _conv(before: int, width: int, size: int, stride: int, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, width, size, stride, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(width), relu=nn.ReLU6()))
