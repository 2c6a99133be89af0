"""Conversion to and from Flower's messages: trees as raw bytes with dtype and shape, no pickle, everything checked."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor

from fedapa.core.tree import DTYPES, Tree, raw
from fedapa.federation.messages import Failure, FailureKind, Outgoing, Unsound

KIND = "fedapa.raw"  # of the bytes: C order, little endian
MOST_TENSORS, LONGEST_NAME = 10_000, 200


AWAY = 5  # Flower's code for a node whose heartbeat has stopped
GIANT, GARBLED = 901, 902  # ours for replies that are too large or cannot be reassembled
FAILURES: dict[int, FailureKind] = {AWAY: "away", GIANT: "too large", GARBLED: "unreadable"}


def to_flower(message: Outgoing) -> Message:
    content = RecordDict({name: ConfigRecord(values) for name, values in message.records.items()})
    for name, tree in message.trees.items():
        content[name] = pack(tree)
    kind = MessageType.TRAIN if message.kind == "train" else MessageType.QUERY
    return Message(content, message.place, kind, ttl=message.seconds, group_id=message.group)


class FlowerReply:
    """Flower's message as an ``Incoming``."""

    def __init__(self, message: Message) -> None:
        self.message = message

    @property
    def reply_to(self) -> str:
        return str(self.message.metadata.reply_to_message_id)

    @property
    def failure(self) -> Failure | None:
        if not self.message.has_error():
            return None
        code, reason = self.message.error.code, self.message.error.reason or ""
        return Failure(FAILURES.get(code, "failed"), reason)

    def record(self, name: str) -> object:
        return self.message.content.get(name)

    def tree(self, name: str, most_bytes: float) -> Tree:
        return unpack(self.message.content.get(name), most_bytes)


def pack(tree: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: _packed(leaf) for name, leaf in tree.items()})


def unpack(record: object, most_bytes: float = math.inf) -> Tree:
    """Parse the tree of an untrusted record; an invalid one raises ``Unsound`` before anything is copied."""
    if not isinstance(record, ArrayRecord):
        raise Unsound("it holds no tensors")
    if len(record) > MOST_TENSORS:
        raise Unsound(f"it holds {len(record)} tensors")
    if (size := sum(len(array.data) for array in record.values())) > most_bytes:
        raise Unsound(f"it is {size / 1e6:.1f} MB large, more than {most_bytes / 1e6:.1f} MB")
    return {name: _unpacked(name, array) for name, array in record.items()}


def _packed(leaf: Tensor) -> Array:
    dtype = str(leaf.dtype).removeprefix("torch.")
    return Array(dtype=dtype, shape=tuple(leaf.shape), stype=KIND, data=bytes(raw(leaf)))


def _unpacked(name: str, array: Array) -> Tensor:
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise Unsound("a tensor has an invalid name")
    dtype = DTYPES.get(array.dtype)
    if array.stype != KIND or dtype is None:
        raise Unsound(f"{name} is {array.dtype[:40]!r} as {array.stype[:40]!r}")
    shape = tuple(array.shape)
    if not all(isinstance(n, int) and 0 <= n < 2**40 for n in shape) or len(shape) > 8:
        raise Unsound(f"{name} has an invalid shape")
    if math.prod(shape) * dtype.itemsize != len(array.data):
        raise Unsound(f"{name} has {len(array.data)} bytes, its shape needs {math.prod(shape) * dtype.itemsize}")
    if dtype == torch.bool and array.data.strip(b"\0\1"):
        raise Unsound(f"{name} has bytes that are not booleans")
    if not array.data:
        return torch.empty(shape, dtype=dtype)
    # Copied into memory of torch's own: at an odd address, matrix products would round differently.
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(shape).clone()
