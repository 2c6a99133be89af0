"""Checkpoints: one safetensors file per round, written atomically and checked when read."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from fedapa.core.tree import Tree, digest, raw
from fedapa.errors import RunError
from fedapa.rounds.round_log import State
from fedapa.rounds.tensor_storage import TensorStore
from fedapa.rounds.transport import Record
from fedapa.store.atomic_io import Piece, make_folder
from fedapa.store.atomic_io import sweep as sweep
from fedapa.store.atomic_io import write_atomically as write_atomically
from fedapa.store.atomic_io import write_json as write_json

NAME = re.compile(r"round-(\d{6})\.safetensors")
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
KEEP = 2  # the newest, and one more in case the newest is damaged


class Checkpoint(NamedTuple):
    state: State
    records: list[Record]


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write atomically, then delete all but the last few."""
    make_folder(folder)
    path = folder / f"round-{checkpoint.state.round:06d}.safetensors"
    write_tree(path, _flatten(checkpoint))
    for old in _all(folder)[:-KEEP]:
        old.unlink()
    return path


def newest(folder: Path, tensors: TensorStore | None = None) -> Checkpoint | None:
    """The newest valid checkpoint; a damaged one is skipped."""
    paths = _all(folder)
    for path in reversed(paths):
        try:
            return read(path, tensors)
        except RunError:
            continue
    if paths:
        raise RunError(f"no checkpoint under {folder} can be read", "start the run again in a new folder")
    return None


def read(path: Path, tensors: TensorStore | None = None) -> Checkpoint:
    """The content of a checkpoint, in memory or where ``tensors`` puts it."""
    return _unflatten(read_tree(path, tensors))


def write_tree(path: Path, tree: Tree) -> str:
    """Write a tree with its digest atomically; returns the digest."""
    found = digest(tree)
    write_atomically(path, _pieces(tree, {"digest": found}))
    return found


def read_tree(path: Path, tensors: TensorStore | None = None) -> Tree:
    """Read a tree; an error if any bit of it changed."""
    copy = (tensors or TensorStore()).copy
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            # Copied: at an odd address inside the file, a tensor makes matrix products round differently.
            tree = {name: copy(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, AttributeError, KeyError) as error:
        raise RunError(f"{path}: not a readable checkpoint ({error})") from error
    if header.get("digest") != digest(tree):
        raise RunError(f"{path}: its content does not match its digest")
    return tree


def _pieces(tree: Tree, meta: dict[str, str]) -> Iterator[Piece]:
    """A safetensors file: its header, then every tensor's own memory. Copying a large state first would cost as much
    as writing it, which is more than the server's step."""
    header: dict[str, Any] = {"__metadata__": meta}
    names, start = sorted(tree, key=lambda name: (-tree[name].element_size(), name)), 0
    for name in names:
        leaf, stop = tree[name], start + tree[name].nbytes
        header[name] = {"dtype": DTYPES[leaf.dtype], "shape": list(leaf.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors
    yield struct.pack("<Q", len(text)) + text
    yield from (raw(tree[name]) for name in names)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*") if NAME.fullmatch(path.name)) if folder.is_dir() else []


def _flatten(checkpoint: Checkpoint) -> Tree:
    tree = {f"server/{k}": v.cpu() for k, v in checkpoint.state.server.items()}
    tree["last"] = torch.from_numpy(checkpoint.state.last)
    tree["position"] = torch.tensor([checkpoint.state.round, len(checkpoint.records)])
    for i, record in enumerate(checkpoint.records):
        tree |= {name.replace("/", f"/{i}/", 1): leaf for name, leaf in from_record(record).items()}
    return tree


def from_record(record: Record) -> Tree:
    """One client's record as one tree."""
    return {f"client/{k}": v for k, v in record.state.items()} | {f"memory/{k}": v for k, v in record.memory.items()}


def to_record(tree: Tree) -> Record:
    return Record(_under(tree, "client/", tree), _under(tree, "memory/", tree))


def _unflatten(tree: Tree) -> Checkpoint:
    round, clients = (int(n) for n in tree["position"])
    server = _under(tree, "server/", tree)
    by_client: list[tuple[list[str], list[str]]] = [([], []) for _ in range(clients)]
    for name in tree:
        kind, _, rest = name.partition("/")
        if kind in ("client", "memory"):
            by_client[int(rest.partition("/")[0])][kind == "memory"].append(name)
    records = [
        Record(_under(tree, f"client/{i}/", mine), _under(tree, f"memory/{i}/", memory))
        for i, (mine, memory) in enumerate(by_client)
    ]
    return Checkpoint(State(round, server, tree["last"].numpy().astype(np.float64)), records)


def _under(tree: Tree, prefix: str, names: Iterable[str]) -> Tree:
    return {name.removeprefix(prefix): tree[name] for name in names if name.startswith(prefix)}
