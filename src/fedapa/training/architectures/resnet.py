"""ResNet-18 (He et al., CVPR 2016), with BatchNorm or GroupNorm.

Images below 64x64 get the first layer that is usual for CIFAR: one 3x3 convolution without pooling. Larger ones get the
paper's 7x7 convolution of stride 2 and a max-pool.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from fedapa.errors import InputError

Norm = Callable[[int], nn.Module]
WIDTHS = (64, 128, 256, 512)
SMALL = 64  # pixels: from here on images begin with the paper's first layers
GROUPS = 32


def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """With BatchNorm, whose statistics ride with theta or phi (``model.buffers``)."""
    return _resnet18("resnet18", shape, classes, nn.BatchNorm2d)


def resnet18_gn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """With GroupNorm, which does not depend on the other samples of a batch."""
    return _resnet18("resnet18-gn", shape, classes, lambda width: nn.GroupNorm(GROUPS, width))


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm(width)
        self.relu = nn.ReLU()
        same = stride == 1 and before == width
        self.shortcut = nn.Sequential() if same else _projection(before, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        found: Tensor = self.relu(inner + self.shortcut(x))
        return found


def _projection(before: int, width: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(conv=nn.Conv2d(before, width, 1, stride, bias=False), norm=norm(width)),
    )


def _resnet18(name: str, shape: tuple[int, ...], classes: int, norm: Norm) -> nn.Module:
    if len(shape) != 3 or min(shape[1:]) < 8:
        hint = 'use "mlp" for anything else'
        raise InputError(f"model {name} needs images of at least 8x8, the data has shape {list(shape)}", hint)
    layers = _stem(shape, norm)
    before = WIDTHS[0]
    for k, width in enumerate(WIDTHS):
        stride = 1 if k == 0 else 2
        layers[f"layer{k + 1}"] = nn.Sequential(Block(before, width, stride, norm), Block(width, width, 1, norm))
        before = width
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": nn.Linear(before, classes)}
    return nn.Sequential(layers)


def _stem(shape: tuple[int, ...], norm: Norm) -> OrderedDict[str, nn.Module]:
    first = {"norm1": norm(WIDTHS[0]), "relu1": nn.ReLU()}
    if max(shape[1:]) < SMALL:
        return OrderedDict(conv1=nn.Conv2d(shape[0], WIDTHS[0], 3, padding=1, bias=False), **first)
    conv = nn.Conv2d(shape[0], WIDTHS[0], 7, 2, padding=3, bias=False)
    return OrderedDict(conv1=conv, **first, pool1=nn.MaxPool2d(3, 2, padding=1))
