"""Random streams: one independent generator for every (seed, name, key).

The key is hashed as text, so that no two keys share a stream: numpy pads a list of integers with zeros, which makes
``default_rng([s, 3])`` and ``default_rng([s, 3, 0])`` the same generator.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, name: str, *key: int | str) -> np.random.Generator:
    """The generator of this key; it does not depend on what ran before or beside it."""
    return np.random.default_rng(_digest(seed, name, key))


def torch_seed(seed: int, name: str, *key: int | str) -> int:
    """A seed for torch's own generator, made in the same way."""
    return _digest(seed, name, key) % 2**63


def _digest(seed: int, name: str, key: tuple[int | str, ...]) -> int:
    text = repr((int(seed), name, *(part if isinstance(part, str) else int(part) for part in key)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
