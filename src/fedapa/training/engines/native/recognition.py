"""Recognise the extractors that the kernel can run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedapa.errors import InputError
from fedapa.training.engines.native.kernel import Kernel
from fedapa.training.engines.native.libraries import available
from fedapa.training.engines.native.network_shape import KERNEL, Shape


def _leaves(module: nn.Module) -> list[nn.Module]:
    if type(module) is nn.Sequential:
        return [leaf for child in module for leaf in _leaves(child)]
    return [] if type(module) is nn.Identity else [module]


def _is(value: Any, *allowed: Any) -> bool:
    return value in allowed


def _is_conv(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and module.kernel_size == (KERNEL, KERNEL)
        and module.stride == (1, 1)
        and _is(module.padding, (0, 0), "valid")
        and module.dilation == (1, 1)
        and module.groups == 1
        and module.bias is not None
    )


def _is_pool(module: nn.Module) -> bool:
    return (
        type(module) is nn.MaxPool2d
        and _is(module.kernel_size, 2, (2, 2))
        and _is(module.stride, 2, (2, 2))
        and _is(module.padding, 0, (0, 0))
        and _is(module.dilation, 1, (1, 1))
        and not module.ceil_mode
        and not module.return_indices
    )


def _read_shape(module: nn.Module, sample_shape: Sequence[int]) -> Shape | None:
    """The shape that the children spell, in order, or None."""
    if len(sample_shape) != 3 or sample_shape[1] != sample_shape[2]:
        return None
    if type(module) is not nn.Sequential:
        return None
    rest = _leaves(module)
    convs = _take_convs(rest, int(sample_shape[0]))
    if not convs or not rest or not _is_flatten(rest.pop(0)):
        return None
    hidden = _take_hidden(rest)
    if rest:
        return None
    try:
        return Shape(int(sample_shape[0]), int(sample_shape[1]), tuple(convs), tuple(hidden))
    except InputError:
        return None


def _take_convs(rest: list[nn.Module], width: int) -> list[int]:
    """Channels of the leading blocks, which are removed from ``rest``; none if one of them does not fit."""
    found = []
    while len(rest) >= 3 and _is_conv(rest[0]):
        conv, first, second = rest[:3]
        assert isinstance(conv, nn.Conv2d)
        relu_pool = type(first) is nn.ReLU and _is_pool(second)
        pool_relu = _is_pool(first) and type(second) is nn.ReLU
        if conv.in_channels != width or not (relu_pool or pool_relu):
            return []
        width = conv.out_channels
        found.append(width)
        del rest[:3]
    return found


def _is_flatten(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and module.start_dim == 1 and module.end_dim == -1


def _take_hidden(rest: list[nn.Module]) -> list[int]:
    """Widths of the leading [linear, ReLU] layers, which are removed from ``rest``."""
    found = []
    while len(rest) >= 2 and isinstance(linear := rest[0], nn.Linear) and type(linear) is nn.Linear:
        if type(rest[1]) is not nn.ReLU:
            break
        found.append(linear.out_features)
        del rest[:2]
    return found


def shape_of(module: nn.Module, sample_shape: Sequence[int]) -> Shape | None:
    """The shape of an extractor that the kernel can run, or None.

    Only `nn.Sequential` of the layers above is recognised, and only if the kernel, where it is available,
    computes the same features as the module on random input.
    """
    shape = _read_shape(module, sample_shape)
    if shape is None or not _plain_parameters(module, shape):
        return None
    return shape if not available()[0] or _computes_the_same(module, shape, sample_shape) else None


def _plain_parameters(module: nn.Module, shape: Shape) -> bool:
    """Parameters of float32 on the CPU, as many as the shape has, and no buffers."""
    parameters = list(module.parameters())
    plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters)
    return plain and sum(p.numel() for p in parameters) == shape.theta_size and not any(True for _ in module.buffers())


def _computes_the_same(module: nn.Module, shape: Shape, sample_shape: Sequence[int]) -> bool:
    x = torch.randn(3, *sample_shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            expected: Tensor = module(x)
    except RuntimeError:
        return False
    theta = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    found = Kernel(shape, 1).features(theta, x)
    if expected.shape != found.shape:
        return False
    scale = max(1.0, float(expected.abs().max()))
    return float((expected - found).abs().max()) <= 1e-4 * scale
