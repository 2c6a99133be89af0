"""Checkpoints: one safetensors file per round, written atomically and checked when read.

A checkpoint is whole, or it holds what changed since a whole one, its base: clients that did not train since are not
written again. Beside the newest two, their bases stay and one whole checkpoint more, so that no file is needed by all:
a damaged one, base or not, costs rounds and not the run.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedapa.core.tree import Tree, count_bytes, digest, raw
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


WORTH = 1 / 3  # of a whole checkpoint: one without idle clients must save as much
LEAST = 2**20  # bytes, and at least so many


class Checkpoint(NamedTuple):
    state: State
    records: list[Record]


class Base(NamedTuple):
    """A whole checkpoint that others build on."""

    round: int
    digest: str


class Writer:
    """Writes a run's checkpoints; a client that did not train since the last whole one is not written again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._base: Base | None = None
        self._changed: set[int] = set()  # clients, since the base

    def changed(self, clients: Iterable[int]) -> None:
        """These have other records than before."""
        self._changed |= set(clients)

    def write(self, checkpoint: Checkpoint, whole: bool = False) -> Path:
        """Write what is needed, or all of it, atomically; then delete what is no longer."""
        if self._base is not None and not whole and _saves(checkpoint, self._changed):
            path, _ = _write(self.folder, checkpoint, self._base, self._changed)
            return path
        self._base, self._changed = None, set()
        path, found = _write(self.folder, checkpoint)
        self._base = Base(checkpoint.state.round, found)
        return path


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a whole checkpoint atomically, then delete all but the last few."""
    return _write(folder, checkpoint)[0]


def _write(
    folder: Path, checkpoint: Checkpoint, base: Base | None = None, changed: Container[int] = ()
) -> tuple[Path, str]:
    make_folder(folder)
    path = _path(folder, checkpoint.state.round)
    tree = _flatten(checkpoint)
    if base is not None:
        tree = {name: leaf for name, leaf in tree.items() if (i := _client(name)) is None or i in changed}
        tree["base"], tree["base digest"] = torch.tensor(base.round), _digest_tensor(base.digest)
        tree["changed"] = torch.tensor([i in changed for i in range(len(checkpoint.records))])
    found = write_tree(path, tree)
    for old in _superfluous(_all(folder)):
        old.unlink()
    return path, found


def _saves(checkpoint: Checkpoint, changed: Container[int]) -> bool:
    """Is it worth while to leave out the clients that did not change?"""
    sizes = [count_bytes(record.state) + count_bytes(record.memory) for record in checkpoint.records]
    idle = sum(size for i, size in enumerate(sizes) if i not in changed)
    return idle >= max(LEAST, WORTH * (sum(sizes) + count_bytes(checkpoint.state.server)))


def _superfluous(paths: Sequence[Path]) -> list[Path]:
    """All but the newest few, their bases, and one whole checkpoint beside the newest whole one."""
    bases = {path: _base_of(path) for path in paths}
    kept = set(paths[-KEEP:])
    kept |= {_path(path.parent, base) for path in kept if (base := bases[path]) is not None}
    whole = [path for path in paths if bases[path] is None]
    if any(bases[path] is not None for path in paths[-KEEP:]):
        kept |= set(whole[-2:])
    return [path for path in paths if path not in kept]


def _base_of(path: Path) -> int | None:
    """The round of a checkpoint's base; None if it is whole, or cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return int(file.get_tensor("base")) if "base" in file.keys() else None  # noqa: SIM118
    except (OSError, SafetensorError, ValueError):
        return None


def _path(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}.safetensors"


def _digest_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _client(name: str) -> int | None:
    """Whose record a tensor is part of."""
    kind, _, rest = name.partition("/")
    return int(rest.partition("/")[0]) if kind in ("client", "memory") else None


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
    tree = read_tree(path, tensors)
    if "base" not in tree:
        return _unflatten(tree)
    base = _path(path.parent, int(tree["base"]))
    if not base.is_file():
        raise RunError(f"{path}: builds on {base.name}, which is missing")
    rest = read_tree(base, TensorStore())
    if not torch.equal(_digest_tensor(digest(rest)), tree["base digest"]):
        raise RunError(f"{path}: builds on another {base.name} than this one")
    changed = tree["changed"].tolist()
    return _unflatten(tree | {k: v for k, v in rest.items() if (i := _client(k)) is not None and not changed[i]})


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
        if (i := _client(name)) is not None:
            by_client[i][name.startswith("memory/")].append(name)
    records = [
        Record(_under(tree, f"client/{i}/", mine), _under(tree, f"memory/{i}/", memory))
        for i, (mine, memory) in enumerate(by_client)
    ]
    return Checkpoint(State(round, server, tree["last"].numpy().astype(np.float64)), records)


def _under(tree: Tree, prefix: str, names: Iterable[str]) -> Tree:
    return {name.removeprefix(prefix): tree[name] for name in names if name.startswith(prefix)}
