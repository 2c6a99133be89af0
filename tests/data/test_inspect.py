from pathlib import Path

import numpy as np
import pytest

from fedapa.data.federated import federate
from fedapa.data.inspect import bubble_plot, table
from fedapa.data.partitions.partition import Partition
from fedapa.data.partitions.rules import split
from fedapa.data.sources import load
from fedapa.errors import InputError, RunError

Y_TRAIN, Y_TEST = np.array([0, 0, 0, 1, 2, 2]), np.array([0, 1, 2])
BY_HAND = Partition((np.array([0, 1, 2, 3]), np.array([4, 5])), (np.array([0, 2]), np.array([1])), {})


def test_table_by_hand() -> None:
    assert table(BY_HAND, Y_TRAIN, Y_TEST) == [
        {
            "client": "0",
            "train": 4,
            "test": 2,
            "classes": 2,
            "largest_class": 0,
            "largest_share": 0.75,
            "untested_classes": 1,
            "unseen_test": 1,
        },
        {
            "client": "1",
            "train": 2,
            "test": 1,
            "classes": 1,
            "largest_class": 2,
            "largest_share": 1.0,
            "untested_classes": 1,
            "unseen_test": 1,
        },
    ]


def test_the_table_is_the_same_before_and_after_federating() -> None:
    digits = load("digits")
    made = split("dirichlet", digits.y_train, digits.y_test, 5, alpha=1.0, min_train=20)
    assert table(made, digits.y_train, digits.y_test) == table(federate(digits, made))


def test_a_partition_without_labels_has_no_table() -> None:
    with pytest.raises(InputError, match="holds no labels"):
        table(BY_HAND)


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")]
)
def test_bubble_plot_writes_the_format_of_its_name(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"bubbles{suffix}"
    bubble_plot(BY_HAND, Y_TRAIN, path, class_names=["a", "b", "c"])
    assert path.read_bytes().startswith(magic)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_bubble_plot_refuses_other_formats_and_places(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="figures are"):
        bubble_plot(BY_HAND, Y_TRAIN, tmp_path / "bubbles.xls")
    with pytest.raises(RunError, match="cannot be written"):
        bubble_plot(BY_HAND, Y_TRAIN, tmp_path / "absent" / "bubbles.png")
    with pytest.raises(InputError, match="the data set has 3 train samples"):
        bubble_plot(BY_HAND, Y_TRAIN[:3], tmp_path / "bubbles.png")
