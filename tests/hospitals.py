"""Two small hospitals whose outcome can be learned, as CSV files with everything that real ones have."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CONFIG = """\
methods = ["local", "fedapa"]
seeds = [0, 1]

[sites]
files = ["north.csv", "south.csv"]
label = "outcome"
drop = ["patient"]

[model]
name = "mlp"

[training]
lr = 0.05
batch = 16
drop_last = false

[run]
rounds = 3
participation = 1.0
"""


def write_hospital(path: Path, rows: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    lines = ["patient,age,marker,ward,outcome"]
    for k in range(rows):
        ill = bool(rng.random() < 0.5)
        age = "" if rng.random() < 0.1 else f"{rng.normal(50, 9):.2f}"
        marker, ward = rng.normal(2.0 * ill, 1.0), "AB"[int(rng.integers(2))]
        lines.append(f"P{seed}{k:04d},{age},{marker:.4f},{ward},{'ill' if ill else 'fine'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_hospitals(folder: Path) -> Path:
    """Both files and a config beside them."""
    write_hospital(folder / "north.csv", 60, 1)
    write_hospital(folder / "south.csv", 44, 2)
    (folder / "silo.toml").write_text(CONFIG)
    return folder / "silo.toml"
