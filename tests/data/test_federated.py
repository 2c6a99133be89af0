import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapa.data.dataset import Dataset
from fedapa.data.federated import Federated, federate, from_arrays, from_datasets, set_aside, warnings
from fedapa.data.partitions.partition import Partition, fingerprint
from fedapa.data.partitions.rules import split
from fedapa.data.sources import load
from fedapa.errors import InputError

Client = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


def small(digits: Dataset, clients: int = 4) -> Partition:
    return split("iid", digits.y_train, digits.y_test, clients, min_train=10)


def own(n: int = 4, dtype: type = np.float32) -> Client:
    x = np.arange(n * 3).reshape(n, 3).astype(dtype)
    return x, np.arange(n) % 2, x[:2], np.array([0, 1])


# --- federate ------------------------------------------------------------------------------------


def test_every_client_gets_its_samples_as_bytes(digits: Dataset) -> None:
    partition = small(digits)
    fed = federate(digits, partition)
    assert (fed.name, fed.classes, fed.shape, fed.mean, fed.std) == ("digits", 10, (1, 8, 8), (0.5,), (0.5,))
    assert fed.fingerprint == fingerprint(partition)
    assert fed.sizes.tolist() == [index.size for index in partition.train]
    for client, train, test in zip(fed.clients, partition.train, partition.test, strict=True):
        assert (client.train.x.dtype, client.train.y.dtype) == (torch.uint8, torch.int64)
        np.testing.assert_array_equal(client.train.x.numpy(), digits.x_train[train])
        np.testing.assert_array_equal(client.test.y.numpy(), digits.y_test[test])
        assert client.validation is None


def test_a_client_does_not_share_memory_with_the_data_set(digits: Dataset) -> None:
    fed = federate(digits, small(digits))
    before = digits.x_train.copy()
    fed.clients[0].train.x.zero_()
    np.testing.assert_array_equal(digits.x_train, before)


def test_validation_is_taken_from_train_deterministically(digits: Dataset) -> None:
    partition = small(digits)
    first, again, other = (federate(digits, partition, 0.2, seed) for seed in (0, 0, 1))
    for i, client in enumerate(first.clients):
        assert client.validation is not None
        together = torch.cat([client.train.y, client.validation.y]).sort().values
        assert together.tolist() == sorted(digits.y_train[partition.train[i]].tolist())
        assert len(client.validation.y) == pytest.approx(0.2 * len(together), abs=1)
        torch.testing.assert_close(client.validation.x, again.clients[i].validation.x)  # type: ignore[union-attr]
    assert first.fingerprint == again.fingerprint
    assert len({fingerprint(partition), first.fingerprint, other.fingerprint}) == 3


def test_validation_of_one_client_does_not_depend_on_the_others(digits: Dataset) -> None:
    partition = small(digits)
    fewer = Partition(partition.train[:2], partition.test[:2], {})
    both = federate(digits, partition, 0.2), federate(digits, fewer, 0.2)
    torch.testing.assert_close(both[0].clients[1].train.x, both[1].clients[1].train.x)


@settings(max_examples=80, deadline=None)
@given(
    y=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    share=st.floats(0.001, 0.999),
    seed=st.integers(0, 99),
)
def test_what_is_set_aside(y: list[int], share: float, seed: int) -> None:
    labels = np.array(y)
    mask = set_aside(labels, share, np.random.default_rng(seed))
    assert not mask.all()
    assert mask.any() == (len(y) > 1)
    if 1 <= round(share * len(y)) < len(y):
        taken, present = np.bincount(labels[mask], minlength=5), np.bincount(labels, minlength=5)
        assert (np.abs(taken - share * present) <= 1.0 + 1e-9).all()


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_that_is_none(digits: Dataset, share: float) -> None:
    with pytest.raises(InputError, match="not a share of the train samples"):
        federate(digits, small(digits), share)


def test_a_negative_seed(digits: Dataset) -> None:
    with pytest.raises(InputError, match="seed = -1 is negative"):
        federate(digits, small(digits), 0.1, seed=-1)


def test_a_partition_of_another_data_set_is_refused(digits: Dataset) -> None:
    y = np.tile(np.arange(10), 5000)
    with pytest.raises(InputError, match="the data set has 1,501 train samples"):
        federate(digits, split("iid", y, y, 4))


def test_a_client_without_samples_is_refused(digits: Dataset) -> None:
    nobody = Partition((np.arange(3), np.arange(0)), (np.arange(2), np.arange(2, 4)), {})
    with pytest.raises(InputError, match="client 1: empty train set"):
        federate(digits, nobody)


def test_groups_lend_their_names(digits: Dataset) -> None:
    groups = {"groups_train": np.arange(1501) % 2, "groups_test": np.arange(296) % 2}
    sites = {name: np.where(values, "north", "south") for name, values in groups.items()}
    fed = federate(digits, split("by-group", digits.y_train, digits.y_test, None, **sites))
    assert [client.name for client in fed.clients] == ["north", "south"]


# --- own arrays ----------------------------------------------------------------------------------


def test_own_arrays_by_hand() -> None:
    fed = from_arrays([own(4), own(6)], names=["north", "south"])
    assert fed.sizes.tolist() == [4, 6]
    assert (fed.classes, fed.shape, fed.mean, fed.std) == (2, (3,), (0.0,) * 3, (1.0,) * 3)
    assert fed.clients[1].train.x[1].tolist() == [3.0, 4.0, 5.0]
    assert [client.name for client in fed.clients] == ["north", "south"]


def test_bytes_stay_bytes_and_doubles_become_floats() -> None:
    image = np.zeros((2, 3, 4, 4), np.uint8)
    fed = from_arrays([(image, np.array([0, 1]), image, np.array([0, 1], np.uint8))])
    assert fed.clients[0].train.x.dtype == torch.uint8
    assert fed.mean == (0.5, 0.5, 0.5)
    assert from_arrays([own(4, np.float64)]).clients[0].train.x.dtype == torch.float32


def test_torch_and_numpy_give_the_same() -> None:
    tensors = tuple(torch.from_numpy(array) for array in own())
    assert from_arrays([tensors]).fingerprint == from_arrays([own()]).fingerprint  # type: ignore[list-item]
    changed = own()
    changed[0][0, 0] += 1
    assert from_arrays([changed]).fingerprint != from_arrays([own()]).fingerprint


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_own_arrays_are_copied(kind: Callable[[np.ndarray], Any]) -> None:
    arrays = own()
    fed = from_arrays([tuple(kind(array) for array in arrays)])  # type: ignore[list-item]
    arrays[0][:] = -1
    assert fed.clients[0].train.x.min() == 0


def spoil(at: int, value: object) -> Client:
    arrays = list(own())
    arrays[at] = value  # type: ignore[call-overload]
    return tuple(arrays)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (spoil(0, np.zeros((0, 3), np.float32)), "client 1: train set is empty"),
        (spoil(3, np.zeros(0, int)), "client 1: test set is empty"),
        (spoil(0, np.full((4, 3), np.nan)), "client 1: train x has 12 NaN or infinite values"),
        (spoil(2, np.full((2, 3), np.inf)), "client 1: test x has 6 NaN"),
        (spoil(1, np.array([0, 1, 2, 0])), "client 1: train label 2 is outside 0..1"),
        (spoil(3, np.array([0, -1])), "client 1: test label -1 is outside 0..1"),
        (spoil(1, np.array([0.0, 1.0, 0.0, 1.0])), "client 1: train labels are floats, others are whole numbers"),
        (spoil(1, np.array([[0], [1], [0], [1]])), "client 1: train y has shape (4, 1)"),
        (spoil(1, np.array(["a", "b", "a", "b"])), "client 1: train arrays are of type <U1"),
        (
            spoil(0, np.zeros((4, 5), np.float32)),
            "client 1: samples of shape (5,) and type float32, client 0",
        ),
        (spoil(2, np.zeros((2, 3), np.uint8)), "client 1: samples of shape (3,) and type uint8, client 0"),
        (spoil(0, np.zeros((3, 3), np.float32)), "client 1: train set has 3 samples and 4 labels"),
        (spoil(0, np.zeros((4, 3), np.int64)), "client 1: samples of shape (3,) and type int64, client 0"),
        (spoil(0, np.zeros(4, np.float32)), "client 1: train x has shape (4,)"),
        (own()[:3], "client 1: 3 arrays instead of 4"),
    ],
)
def test_bad_arrays_name_the_client(bad: Client, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        from_arrays([own(), bad], classes=2)
    assert caught.value.hint


def test_bad_requests_for_own_arrays() -> None:
    for named, message in [
        ({"names": ["a"]}, "1 different names for 2 clients"),
        ({"names": ["a", "a"]}, "1 different names for 2 clients"),
        ({"mean": [0.0, 0.0]}, "mean has 2 values for 3 channels"),
        ({"std": [0.0]}, "cannot be used for scaling"),
        ({"classes": 0}, "classes = 0"),
    ]:
        with pytest.raises(InputError, match=message):
            from_arrays([own(), own()], **named)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there are no clients"):
        from_arrays([])


def test_a_client_of_one_class_is_legal_and_mentioned() -> None:
    fed: Federated = from_arrays([own(), spoil(1, np.zeros(4, int))])
    assert warnings(fed) == [
        "client 1: all train samples are of class 0",
        "client 1: 1 of 2 test samples are of classes absent from its train set",
    ]


def test_datasets_of_pytorch_and_of_rows() -> None:
    from PIL import Image
    from torch.utils.data import TensorDataset

    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
    pairs = TensorDataset(x, y)
    rows = [{"pixels": value.numpy(), "label": int(label)} for value, label in pairs]
    one = from_datasets({"a": (pairs, pairs)})
    other = from_datasets({"a": (rows, rows)}, x="pixels", y="label")
    assert torch.equal(one.clients[0].train.x, x)
    assert one.fingerprint == other.fingerprint
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    photos = [(image, 0), (image, 1)]
    assert from_datasets({"a": (photos, photos)}).shape == (3, 2, 4)
    with pytest.raises(InputError, match="row 0 has pixels, label"):
        from_datasets({"a": (rows, rows)})
    with pytest.raises(InputError, match="different shapes"):
        from_datasets({"a": ([(torch.zeros(2), 0), (torch.zeros(3), 1)], pairs)})
