"""Checkpoints: all or nothing, checked when read, and a damaged one is passed over."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedapa.core.tree import equal
from fedapa.errors import RunError
from fedapa.rounds.round_log import State
from fedapa.rounds.transport import Record
from fedapa.store import checkpoint
from fedapa.store.checkpoint import Checkpoint, newest, read, write, write_atomically


def point(round: int) -> Checkpoint:
    shared = torch.arange(6.0).reshape(2, 3)
    last = np.array([[1, 2, 0, 0], [-1, -1, -1, -1]])
    records = [Record({"theta": shared, "phi": shared[0]}, {"main/theta": torch.full((2,), round)}), Record({}, {})]
    return Checkpoint(State(round, {"A": torch.eye(3) * round, "n": torch.tensor([3])}, last), records)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    found, wanted = read(write(tmp_path, point(7))), point(7)
    assert found.state.round == 7
    assert equal(found.state.server, {"A": torch.eye(3) * 7, "n": torch.tensor([3])})
    np.testing.assert_array_equal(found.state.last, wanted.state.last)
    assert len(found.records) == 2
    for mine, theirs in zip(found.records, wanted.records, strict=True):
        assert equal(mine.state, theirs.state)
        assert equal(mine.memory, theirs.memory)


def test_a_checkpoint_is_a_plain_safetensors_file_without_pickle(tmp_path: Path) -> None:
    with safe_open(write(tmp_path, point(1)), framework="np") as file:
        assert "server/A" in file.keys()  # noqa: SIM118
        assert len(file.metadata()["digest"]) == 64


def test_every_kind_of_tensor_comes_back(tmp_path: Path) -> None:
    kinds = {str(dtype): torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype) for dtype in checkpoint.DTYPES}
    server = {
        **kinds,
        "strided": torch.arange(6).reshape(2, 3).T,
        "empty": torch.zeros(0, 2),
        "scalar": torch.tensor(2),
    }
    path = write(tmp_path, Checkpoint(State(1, server, np.zeros((0, 4), np.int64)), []))
    assert equal(read(path).state.server, server)
    loaded = load_file(path)  # by the library whose format it is
    assert all(torch.equal(loaded[f"server/{name}"], leaf) for name, leaf in server.items())


def test_the_newest_two_stay(tmp_path: Path) -> None:
    for round in range(1, 6):
        write(tmp_path, point(round))
    assert sorted(os.listdir(tmp_path)) == ["round-000004.safetensors", "round-000005.safetensors"]


def test_no_folder_and_an_empty_folder_have_no_checkpoint(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "nowhere") is None


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, -200, -1])
def test_a_truncated_newest_falls_back_to_the_one_before(tmp_path: Path, size: int) -> None:
    write(tmp_path, point(1))
    path = write(tmp_path, point(2))
    path.write_bytes(path.read_bytes()[:size])
    found = newest(tmp_path)
    assert found is not None
    assert found.state.round == 1


def test_any_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    """No single flipped bit of the file changes what comes out of it unnoticed, and none makes a traceback."""
    path = write(tmp_path, point(3))
    sound, content = read(path), path.read_bytes()
    bad = tmp_path / "bad.safetensors"
    noticed = 0
    for bit in range(0, 8 * len(content), 3):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << (bit % 8)
        bad.write_bytes(flipped)
        try:
            found = read(bad)
        except RunError:
            noticed += 1
            continue
        assert found.state.round == 3
        assert equal(found.state.server, sound.state.server)
        assert all(equal(a.state, b.state) for a, b in zip(found.records, sound.records, strict=True))
    start = 8 + struct.unpack("<Q", content[:8])[0]
    assert noticed >= 8 * (len(content) - start) // 3  # at the very least every bit of the tensors


def test_a_rewritten_round_number_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, point(3))
    shutil.copy(path, tmp_path / "round-000009.safetensors")
    found = newest(tmp_path)
    assert found is not None
    assert found.state.round == 3  # what the file says, not what it is called


def test_foreign_files_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, point(1))
    for name in (
        "round-2.safetensors",
        "round-000009.safetensors.bak",
        "notes.txt",
        ".round-000009.safetensors.1.part",
    ):
        (tmp_path / name).write_text("not a checkpoint")
    found = newest(tmp_path)
    assert found is not None
    assert found.state.round == 1
    write(tmp_path, point(2))
    assert (tmp_path / "notes.txt").exists()


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "round-000001.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(RunError, match="digest"):
        read(tmp_path / "round-000001.safetensors")


def test_if_all_are_damaged_the_error_says_so(tmp_path: Path) -> None:
    for round in (1, 2):
        write(tmp_path, point(round)).write_bytes(b"garbage")
    with pytest.raises(RunError, match=r"no checkpoint under .* can be read") as caught:
        newest(tmp_path)
    assert "new folder" in caught.value.hint


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RunError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_sweep_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / ".round-000002.safetensors.123.part").write_bytes(b"half")
    (tmp_path / "round-000001.safetensors").write_bytes(b"whole")
    checkpoint.sweep(tmp_path)
    assert os.listdir(tmp_path) == ["round-000001.safetensors"]
