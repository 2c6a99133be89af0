"""Images that stay on the disk: every client reads its batches from one mapped file, and each batch is augmented anew.

    python examples/photographs.py

The file here holds the handwritten digits of scikit-learn; one of a terabyte would be read in the same way.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from torch import Tensor

import fedapa as fa


def shifted(x: Tensor, random: np.random.Generator) -> Tensor:
    """An augmentation of one's own, as ``training.augment = "examples/photographs.py:shifted"``: darker or brighter."""
    return (x.float() * random.uniform(0.8, 1.2)).clamp(0, 255).to(x.dtype)


def on_disk(folder: Path) -> tuple[np.memmap, np.ndarray]:
    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    np.save(folder / "images.npy", images)
    return np.load(folder / "images.npy", mmap_mode="r"), labels.astype(np.int64)


def clients(
    images: np.memmap, labels: np.ndarray, count: int = 4
) -> list[tuple[fa.Lazy, np.ndarray, fa.Lazy, np.ndarray]]:
    """Client k has the digits k, k+1, ... of half of the classes; nothing is read but the first of each."""
    found = []
    for k in range(count):
        mine = np.flatnonzero(np.isin(labels, (np.arange(5) + 2 * k) % 10))[k::count]
        train, test = mine[: len(mine) * 4 // 5], mine[len(mine) * 4 // 5 :]
        found.append((fa.Lazy(images, train), labels[train], fa.Lazy(images, test), labels[test]))
    return found


def main(rounds: int = 5, augment: str = "crop") -> float:
    with tempfile.TemporaryDirectory() as folder:
        data = fa.from_arrays(clients(*on_disk(Path(folder))), classes=10, name="photographs")
        result = fa.fit("fedapa", data, "cnn8", rounds, batch=16, lr=0.05, nesterov=True, augment=augment)
    return result.curve("after")[-1].pooled


if __name__ == "__main__":
    print(f"accuracy {main():.1f} %")
