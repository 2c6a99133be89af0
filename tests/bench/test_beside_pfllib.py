"""The benchmark beside PFLlib: what it writes for PFLlib, and how it refuses what it cannot use."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fedapa as fa
from maker import load_maker


@pytest.fixture
def beside() -> ModuleType:
    return load_maker("beside_pfllib", "benchmarks")


def test_their_files_hold_the_normalised_samples_of_every_client(beside: ModuleType, tmp_path: Path) -> None:
    x, y = np.full((3, 3, 4, 4), 255, dtype=np.uint8), np.array([0, 1, 1])
    data = fa.from_arrays([(x, y, x[:1], y[:1])] * 2, 2, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.5))
    beside.write_theirs(data, tmp_path)
    for client in ("0", "1"):
        for part, count in (("train", 3), ("test", 1)):
            with (tmp_path / "dataset" / "Partition" / part / f"{client}.npz").open("rb") as file:  # as PFLlib does
                found = np.load(file, allow_pickle=True)["data"].tolist()
            assert found["x"].shape == (count, 3, 4, 4)
            assert found["x"][0, :, 0, 0].tolist() == [2.0, 2.0, 1.0]
            assert found["y"].tolist() == y[:count].tolist()


def test_the_ratio_is_taken_repeat_by_repeat(beside: ModuleType) -> None:
    pairs = [(beside.Spent(8, 10), beside.Spent(1, 2)), (beside.Spent(6, 9), beside.Spent(2, 1))]
    found = beside.row("FedAvg", pairs)
    assert found["wall"] == {"ratio": 7.0, "low": 5.0, "high": 9.0, "theirs": 9.5, "ours": 1.5}
    assert found["cpu"]["ratio"] == 5.5


def test_a_folder_without_pfllib_and_an_unknown_case_are_refused(beside: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"is no clone of PFLlib\nhint: git clone"):
        beside.main([str(tmp_path)])
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "main.py").write_text("")
    with pytest.raises(SystemExit, match="there is no case FedX"):
        beside.main([str(tmp_path), "--only", "FedX"])
