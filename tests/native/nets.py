"""Torch oracles for the native kernel."""

import torch
from torch import Tensor, nn

from fedapa.training.engines.native import Shape

CIFAR = Shape(3, 32, (6, 16), (120, 84))
FMNIST = Shape(1, 28, (6, 16), (120, 84))
TINY = Shape(1, 8, (3,), (5,))
ODD = Shape(2, 37, (4, 7, 5), (11, 9))


def extractor(shape: Shape, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    channels = shape.channels
    for out in shape.convs:
        layers += [nn.Conv2d(channels, out, 5), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    layers.append(nn.Flatten())
    width = shape.flat
    for out in shape.hidden:
        layers += [nn.Linear(width, out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers)


def network(shape: Shape, classes: int, seed: int = 0) -> tuple[nn.Sequential, nn.Linear]:
    return extractor(shape, seed), nn.Linear(shape.features, classes)


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def flat_grad(module: nn.Module) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in module.parameters()])


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the scale of b."""
    if a.shape != b.shape:
        raise AssertionError(f"{tuple(a.shape)} is not {tuple(b.shape)}")
    return float((a - b).abs().max()) / max(float(b.abs().max()), 1e-6) if a.numel() else 0.0
