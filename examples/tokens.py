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
    """Ids 1 to 39, padded with 0; the label says whether words of the first half of the language are in front."""
    random = np.random.default_rng([client, count])
    shuffled = 1 + np.random.default_rng(client % 2).permutation(VOCABULARY - 1)  # two languages
    low, high = shuffled[:19], shuffled[19:38]
    y = random.integers(0, 2, count)
    x = np.zeros((count, STEPS), dtype=np.int64)
    for row, label in zip(x, y, strict=True):
        words = random.integers(6, STEPS + 1)
        front, back = (low, high) if label else (high, low)
        row[: words // 2] = random.choice(front, words // 2)
        row[words // 2 : words] = random.choice(back, words - words // 2)
    return x, y


if __name__ == "__main__":
    data = fa.from_arrays([(*sentences(i, 96), *sentences(i, 95)) for i in range(CLIENTS)], 2)
    model = partial(MODELS["transformer"], vocabulary=VOCABULARY, width=32, depth=1)
    for method in ("local", "fedavg", "fedapa"):
        result = fa.fit(method, data, model, rounds=8, lr=0.1, batch=16)
        print(f"{method}: {result.curve('after')[-1].pooled:.1f} %")
