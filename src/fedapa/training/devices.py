"""Where clients compute: names of devices, what is there, and moving what a visit needs.

Random numbers are drawn on the CPU, so that allocation, start and order of batches do not depend on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Split
from fedapa.errors import InputError


def devices_of(spec: str) -> tuple[torch.device, ...]:
    """``cpu``, ``auto`` (the first accelerator, else the CPU), ``cuda``, ``cuda:1``, ``mps``; several by commas."""
    if spec == "auto":
        found = accelerators()
        return (torch.device(found[0] if found else "cpu"),)
    return tuple(_device(name.strip()) for name in spec.split(","))


def accelerators() -> list[str]:
    """The devices of this machine beside the CPU that this build of torch can use."""
    found = [f"cuda:{k}" for k in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device is {name!r}", "choose auto, cpu, cuda, cuda:1, mps, or several by commas") from None
    there = ["cpu", "meta", *accelerators()]
    if name not in there and device.type not in {torch.device(one).type for one in there if device.index is None}:
        has = ", ".join(accelerators()) or "none beside the CPU"
        raise InputError(f"device {name!r} is not there: this machine has {has}", "`fedapa doctor` lists devices")
    return device


def tree_on(tree: Mapping[str, Tensor], device: torch.device) -> Tree:
    return {name: leaf.to(device) for name, leaf in tree.items()}


def data_on(data: ClientData, device: torch.device) -> ClientData:
    """A client's samples; those that are read lazily go there batch by batch. What is there already is not copied."""
    train, test, held = (part and _split_on(part, device) for part in (data.train, data.test, data.validation))
    assert train is not None
    assert test is not None
    return ClientData(data.name, train, test, held)


def _split_on(split: Split, device: torch.device) -> Split:
    x: Any = split.x
    return Split(x.to(device), split.y.to(device))
