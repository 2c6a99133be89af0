import pytest
import torch

from fedapa.core import tree


def test_bytes() -> None:
    assert tree.count_bytes({"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}) == 12 + 32


def test_digest_sees_every_bit_name_shape_and_dtype() -> None:
    base = {"a": torch.tensor([1.0, 2.0])}
    others = [
        {"a": torch.tensor([1.0, 2.0000002])},
        {"b": torch.tensor([1.0, 2.0])},
        {"a": torch.tensor([[1.0, 2.0]])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"a": torch.tensor([-0.0, 2.0])},
    ]
    assert all(tree.digest(base) != tree.digest(other) for other in others)
    assert tree.equal(base, {"a": torch.tensor([1.0, 2.0])})
    assert tree.equal({"a": torch.tensor([float("nan")])}, {"a": torch.tensor([float("nan")])})
    assert tree.digest({"a": torch.zeros(0)}) == tree.digest({"a": torch.zeros(0)})


def test_the_order_of_names_does_not_matter() -> None:
    one, two = torch.ones(1), torch.zeros(2)
    assert tree.digest({"a": one, "b": two}) == tree.digest({"b": two, "a": one})


def test_a_distance_has_no_sign() -> None:
    one, other = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.5, 4.0])}
    assert tree.distance(one, other) == tree.distance(other, one) == 2.0


def test_a_clone_has_memory_of_its_own() -> None:
    original = {"a": torch.zeros(2)}
    tree.clone(original)["a"].add_(1)
    assert original["a"].tolist() == [0, 0]


def test_digest_of_a_view_is_that_of_its_values() -> None:
    matrix = torch.arange(6.0).view(2, 3)
    assert tree.digest({"a": matrix[:, 1]}) == tree.digest({"a": torch.tensor([1.0, 4.0])})


def test_weighted_mean_by_hand() -> None:
    rows = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    assert tree.weighted_mean(rows, torch.tensor([1.0, 3.0])).tolist() == [2.5, 3.0]


def test_mean_of_equal_rows_is_that_row_bit_for_bit() -> None:
    row = torch.rand(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(tree.weighted_mean(row.repeat(7, 1), torch.arange(1.0, 8.0)), row)


def test_rows_are_replaced_in_place_only_if_given_away() -> None:
    matrix, ids, rows = torch.zeros(3, 2), torch.tensor([1]), torch.ones(1, 2)
    assert tree.with_rows(matrix, ids, rows)[1].tolist() == [1.0, 1.0]
    assert matrix.sum() == 0
    assert tree.with_rows(matrix, ids, rows, donate=True) is matrix


LIKE = {"a": torch.zeros(2), "n": torch.zeros(1)}


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ({"a": torch.ones(2), "n": torch.ones(1)}, None),
        ({"a": torch.ones(2)}, "n is missing"),
        ({**LIKE, "x": torch.ones(1)}, "x was not expected"),
        ({"a": torch.ones(3), "n": torch.ones(1)}, "a has shape [3], expected [2]"),
        ({"a": torch.ones(2).double(), "n": torch.ones(1)}, "a has dtype torch.float64, expected torch.float32"),
        ({"a": torch.tensor([1.0, float("nan")]), "n": torch.ones(1)}, "a holds NaN"),
        ({"a": torch.ones(2), "n": torch.tensor([float("-inf")])}, "n holds Inf"),
    ],
)
def test_faults_of_a_message(message: tree.Tree, fault: str | None) -> None:
    assert tree.find_fault(message, LIKE) == fault


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([], True),
        ([1.0, -2.0], True),
        ([3e38, 3e38], True),  # their sum is not
        ([1.0, float("nan")], False),
        ([float("inf"), float("-inf")], False),
    ],
)
def test_finite(values: list[float], finite: bool) -> None:
    assert tree.is_finite(torch.tensor(values)) is finite


def test_raw_bytes_are_the_tensors_own_memory_unless_it_is_strided() -> None:
    leaf = torch.tensor([[1, 2], [3, 4]], dtype=torch.int16)
    view = tree.raw(leaf)
    assert bytes(view) == b"\x01\x00\x02\x00\x03\x00\x04\x00"
    assert bytes(tree.raw(leaf.T)) == b"\x01\x00\x03\x00\x02\x00\x04\x00"
    leaf[0, 0] = 9
    assert view[0] == 9
