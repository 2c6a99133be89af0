"""Where clients and the server compute: names of devices, what is there, and moving what a visit needs.

Random numbers are drawn on the CPU, so that allocation, start and order of batches do not depend on the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedapa.core.tree import Tree, count_bytes
from fedapa.data.federated import ClientData, Split
from fedapa.errors import InputError

CPU = torch.device("cpu")
STATE_ROOM = 3  # times the server's state that a device must have free to hold it


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


def seed_torch(seed: int) -> None:
    """``torch.manual_seed``, which keeps a stack trace per kind of device that is not there: 0.6 ms a call."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


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


def server_device(devices: tuple[torch.device, ...], server: Mapping[str, Tensor], most_bytes: float) -> torch.device:
    """Where the server's state is: on the first device of the clients, unless it is too large for it.

    A server step needs the state, a changed copy and what it computes. MPS has no double precision, which several
    methods aggregate in. States above ``most_bytes`` are mapped files.
    """
    first, size = devices[0], count_bytes(server)
    if first.type == "mps" or any(leaf.nbytes > most_bytes for leaf in server.values()):
        return CPU
    return CPU if STATE_ROOM * size > _free_bytes(first) else first


def _free_bytes(device: torch.device) -> float:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf


def at(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, new tensors are made there. Nothing on the CPU, where torch's own context costs time in every call."""
    return nullcontext() if device == CPU else device


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
