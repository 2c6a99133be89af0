"""Trees of tensors: flat dictionaries from names to tensors, the only kind of state and message there is."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedapa.errors import InputError

Tree = dict[str, Tensor]
DTYPES = {  # of messages, by name
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip


def count_bytes(tree: Mapping[str, Tensor]) -> int:
    """Size of a message on the wire, before any framing."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.values())


def clone(tree: Mapping[str, Tensor]) -> Tree:
    return {name: leaf.clone() for name, leaf in tree.items()}


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Bit for bit the same, NaN included."""
    return one.keys() == other.keys() and digest(one) == digest(other)


def digest(tree: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes: the same digest means the same bits."""
    state = hashlib.sha256()
    for name in sorted(tree):
        leaf = tree[name]
        state.update(f"{name}|{leaf.dtype}|{tuple(leaf.shape)}|".encode())
        state.update(raw(leaf))
    return state.hexdigest()


def raw(leaf: Tensor) -> memoryview:
    """The bytes of a tensor, without a copy if it is contiguous."""
    return leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def is_finite(leaf: Tensor) -> bool:
    """No NaN and no Inf. Either would survive in the sum, so a finite sum is proof and costs one quick pass."""
    return bool(torch.isfinite(leaf.sum())) or bool(torch.isfinite(leaf).all())


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Largest absolute difference over all leaves."""
    gaps = [(one[k].double() - other[k].double()).abs().max().item() for k in one if one[k].numel()]
    return max(gaps, default=0.0)


def weighted_mean(rows: Sequence[Tensor] | Tensor, weights: Tensor) -> Tensor:
    """Mean of ``rows`` (S of them, stacked or not) with the given weights [S]; equal rows come back as they are.

    Taken around the first row, so that averaging equal models changes no bit; one by one, so that uploads need no
    second copy.
    """
    base, moved = rows[0], torch.zeros_like(rows[0])
    for row, share in zip(rows, (weights / weights.sum()).tolist(), strict=True):
        moved.add_(row - base, alpha=share)
    return base + moved


def with_rows(matrix: Tensor, ids: Tensor, rows: Iterable[Tensor], donate: bool = False) -> Tensor:
    """``matrix`` with some rows replaced; in place only where the caller gave the matrix away."""
    matrix = writable(matrix, donate)
    for i, row in zip(ids.tolist(), rows, strict=True):  # one by one: uploads need no second copy, stacked
        matrix[i] = row
    return matrix


def writable(matrix: Tensor, donate: bool) -> Tensor:
    """The matrix itself where the caller gave it away, or else a copy; rows that share memory are always copied."""
    shared = matrix.stride(0) == 0 and len(matrix) > 1
    return matrix if donate and not shared else matrix.clone(memory_format=torch.contiguous_format)


def grown(tree: Mapping[str, Tensor], like: Mapping[str, Tensor], still: Container[str] = ()) -> Tree:
    """``tree`` of M clients with the shapes of ``like``, of M + 1: rows get their mean as another, a square matrix of
    weights a row and a column of its own with 1 where they meet, counters and whatever is ``still`` 0."""
    return {name: _grown(name, leaf, like[name].shape, name in still) for name, leaf in tree.items()}


def _grown(name: str, leaf: Tensor, shape: torch.Size, still: bool) -> Tensor:
    if leaf.shape == shape:
        return leaf
    if leaf.ndim != len(shape) or leaf.shape[0] + 1 != shape[0]:
        raise InputError(f"the server's {name} cannot take another client", "start a new federation with all clients")
    if leaf.ndim == 2 and leaf.shape[0] == leaf.shape[1] and shape[0] == shape[1]:
        square = leaf.new_zeros(shape)
        square[:-1, :-1] = leaf
        square[-1, -1] = 0.0 if still else 1.0
        return square
    if leaf.shape[1:] != shape[1:]:
        raise InputError(f"the server's {name} cannot take another client", "start a new federation with all clients")
    zero = still or leaf.ndim == 1
    return torch.cat([leaf, torch.zeros_like(leaf[:1]) if zero else leaf.mean(0, keepdim=True)])


def find_fault(tree: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> str | None:
    """Why ``tree`` is not a sound message shaped ``like`` the expected one; None if it is."""
    if missing := sorted(like.keys() - tree.keys()):
        return f"{missing[0]} is missing"
    if extra := sorted(tree.keys() - like.keys()):
        return f"{extra[0]} was not expected"
    for name, want in like.items():
        got = tree[name]
        if got.dtype != want.dtype:
            return f"{name} has dtype {got.dtype}, expected {want.dtype}"
        if got.shape != want.shape:
            return f"{name} has shape {list(got.shape)}, expected {list(want.shape)}"
        if got.is_floating_point() and not is_finite(got):
            bad = "NaN" if torch.isnan(got).any() else "Inf"
            return f"{name} holds {bad}"
    return None
