"""A small Transformer on token ids: every client writes in its own language, and some share one.

python examples/tokens.py
"""

from __future__ import annotations

from functools import partial

import numpy as np

import fedapa as fa
from fedapa.training.architectures import MODELS

VOCABULARY, STEPS, CLIENTS = 40, 12, 6


def sentences(client: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids 1 to 39, padded with 0; the label says from which half of the client's language three of four words are."""
    random = np.random.default_rng([client, count])
    words = 1 + np.random.default_rng(client % 2).permutation(VOCABULARY - 1)  # two languages
    y = random.integers(0, 2, count)
    x = np.zeros((count, STEPS), dtype=np.float32)  # the model takes them for whole numbers
    for row, label in zip(x, y, strict=True):
        length = random.integers(6, STEPS + 1)
        from_first = random.random(length) < (0.75 if label else 0.25)
        row[:length] = np.where(from_first, random.choice(words[:19], length), random.choice(words[19:], length))
    return x, y


if __name__ == "__main__":
    data = fa.from_arrays([(*sentences(i, 96), *sentences(i, 95)) for i in range(CLIENTS)], 2)
    model = partial(MODELS["transformer"], vocabulary=VOCABULARY, width=32, depth=1)
    for method in ("local", "fedavg", "fedapa"):
        result = fa.fit(method, data, model, rounds=10, lr=0.1, batch=16)
        print(f"{method}: {result.curve('after')[-1].pooled:.1f} %")
