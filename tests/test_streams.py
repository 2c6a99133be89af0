"""Random streams: every key has its own, and none depends on the process."""

import subprocess
import sys

import numpy as np
import pytest

from fedapa.streams import stream, torch_seed

KEYS = [
    (0, "a"), (0, "a", 0), (0, "a", 0, 0), (0, "b"), (1, "a"), (0, "a", 1), (0, "a", "1"), (0, "a", 1, 2), (0, "a", 12),
    (0, "a,1"), (10, "a"), (2**40, "a"),
]  # fmt: skip


def test_no_two_keys_share_a_stream() -> None:
    """numpy's own lists do: a trailing zero is padding."""
    assert np.random.default_rng([5, 3]).random() == np.random.default_rng([5, 3, 0]).random()
    assert len({stream(*key).random() for key in KEYS}) == len(KEYS)
    assert len({torch_seed(*key) for key in KEYS}) == len(KEYS)


def test_whole_numbers_of_any_type_are_one_key() -> None:
    assert stream(3, "a", 4).random() == stream(np.int64(3), "a", np.int32(4)).random()


@pytest.mark.parametrize("hashing", ["0", "1"])
def test_streams_are_the_same_in_every_process(hashing: str) -> None:
    code = "from fedapa.streams import stream, torch_seed; print(stream(7, 'x', 1).random(), torch_seed(7, 'x', 's'))"
    told = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": hashing, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.split() == ["0.8593484602250896", "2943418619522007065"]
