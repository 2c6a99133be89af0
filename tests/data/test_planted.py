"""Partitions with planted groups: who belongs to whom, who holds what, and what clients do with their samples."""

from pathlib import Path

import numpy as np
import pytest

from fedapa.data.dataset import Dataset
from fedapa.data.federated import federate
from fedapa.data.inspect import table
from fedapa.data.partitions import planted
from fedapa.data.partitions.partition import Partition, fingerprint, label_counts
from fedapa.data.partitions.rules import RULES, split
from fedapa.data.partitions.sample_views import View
from fedapa.errors import InputError
from fedapa.store import partition_file

TEN = np.tile(np.arange(10), 500), np.tile(np.arange(10), 100)
FEW = {"min_train": 5, "min_test": 2}
PLANTED = ("uneven-groups", "overlapping-groups", "nested-groups", "rotated-groups", "permuted-groups", "outlier")


def held(made: Partition) -> list[set[int]]:
    """The classes of every client."""
    return [set(np.flatnonzero(row)) for row in label_counts(made, *TEN).train]


def small_images(classes: int = 4, shape: tuple[int, ...] = (1, 2, 2)) -> Dataset:
    y = np.tile(np.arange(classes), 30)
    x = np.arange(y.size * int(np.prod(shape))).reshape(y.size, *shape).astype(np.uint8)
    names = tuple(str(k) for k in range(classes))
    return Dataset("made up", x, y, x, y, classes, names, (0.5,), (0.5,))


@pytest.mark.parametrize("rule", [*PLANTED, "pathological"])
def test_planted_groups_are_kept_disjoint_and_deterministic(rule: str, tmp_path: Path) -> None:
    made, again, other = (split(rule, *TEN, 20, seed, **FEW) for seed in (3, 3, 4))
    assert len(made.rule["groups"]) == 20
    assert made.rule == again.rule
    assert fingerprint(made) == fingerprint(again) != fingerprint(other)
    for part in (made.train, made.test):
        together = np.concatenate(part)
        assert np.unique(together).size == together.size
    partition_file.save(made, tmp_path / "p.npz")
    kept = partition_file.load(tmp_path / "p.npz")
    assert kept.rule == made.rule
    assert (kept.views, fingerprint(kept)) == (made.views, fingerprint(made))


@pytest.mark.parametrize("rule", PLANTED)
def test_declared_defaults_are_the_defaults(rule: str) -> None:
    declared = {p.name: p.default for p in RULES[rule].parameters}
    assert split(rule, *(np.repeat(y, 10) for y in TEN), clients=20).rule["parameters"] == declared


def test_who_holds_what_by_hand() -> None:
    pairs = held(split("pathological", *TEN, 20, **FEW))
    assert pairs == [{2 * (i // 4), 2 * (i // 4) + 1} for i in range(20)]
    assert split("pathological", *TEN, 20, **FEW).rule["groups"] == [i // 4 for i in range(20)]
    ring = held(split("overlapping-groups", *TEN, 10, **FEW))
    assert ring[0] == ring[1] == {0, 1, 2}
    assert ring[8] == {8, 9, 0}
    nested = held(split("nested-groups", *TEN, 8, **FEW))
    assert nested[::2] == [{0, 1, 2}, {0, 3, 4}, {5, 6, 7}, {5, 8, 9}]
    alone = held(split("outlier", *TEN, 6, **FEW))
    assert alone[:5] == [set(range(8))] * 5
    assert alone[5] == {8, 9}


@pytest.mark.parametrize(("clients", "sizes"), [(20, [7, 5, 3, 3, 2]), (10, [2] * 5), (100, [48, 25, 14, 8, 5])])
def test_sizes_of_uneven_groups_by_hand(clients: int, sizes: list[int]) -> None:
    assert np.bincount(planted.halving(clients, 5)).tolist() == sizes


@pytest.mark.parametrize("rule", ["uneven-groups", "outlier"])
def test_nobody_has_more_because_of_the_size_of_its_group(rule: str) -> None:
    sizes = [index.size for index in split(rule, *TEN, 20, **FEW).train]
    assert max(sizes) < 3 * min(sizes)  # shares are drawn from 0.3 to 0.7


def test_turned_images_and_other_names_reach_the_clients() -> None:
    dataset = small_images()
    plain = federate(dataset, split("iid", dataset.y_train, dataset.y_test, 4, min_train=0, min_test=0))
    for rule in ("rotated-groups", "permuted-groups"):
        made = split(rule, dataset.y_train, dataset.y_test, 4, min_train=0, min_test=0)
        seen = federate(dataset, made, validation=0.2)
        assert seen.groups == (0, 1, 2, 3)
        assert seen.fingerprint != plain.fingerprint
        for i, client in enumerate(seen.clients):
            parts = [(client.train, dataset.x_train, dataset.y_train), (client.test, dataset.x_test, dataset.y_test)]
            assert client.validation is not None
            parts.append((client.validation, dataset.x_train, dataset.y_train))
            for part, _, y in parts:
                first = part.x[:, 0, 0, 0].numpy() if rule == "permuted-groups" else None
                if first is not None:  # the first pixel tells which sample it is
                    names = np.array(made.views[i].labels)
                    assert part.y.tolist() == names[y[first // 4]].tolist()
    turned = federate(dataset, split("rotated-groups", dataset.y_train, dataset.y_test, 4, min_train=0, min_test=0))
    for g, client in enumerate(turned.clients):
        expected = np.rot90(plain.clients[g].train.x.numpy(), g, axes=(2, 3))
        assert np.array_equal(client.train.x.numpy(), expected)
        assert client.train.y.tolist() == plain.clients[g].train.y.tolist()
    assert plain.groups == ()


def test_views_are_in_the_fingerprint_and_in_the_table() -> None:
    plain = split("iid", *TEN, 4, **FEW)
    for rule in ("rotated-groups", "permuted-groups"):
        made = split(rule, *TEN, 4, **FEW)
        assert all(np.array_equal(a, b) for a, b in zip(made.train, plain.train, strict=True))
        assert fingerprint(made) != fingerprint(plain)
    y = np.repeat([0, 1, 2, 3], [40, 8, 8, 8])
    made = split("permuted-groups", y, y, 4, min_train=0, min_test=0)
    shown = [row["largest_class"] for row in table(made, y, y)]
    assert shown == [view.labels[0] for view in made.views]
    assert len(set(shown)) > 1


@pytest.mark.parametrize(
    ("rule", "clients", "more", "message"),
    [
        ("uneven-groups", 9, {}, "9 clients in 5 groups of at least 2"),
        ("uneven-groups", 20, {"groups": 11}, "11 groups of 10 classes"),
        ("overlapping-groups", 4, {}, "4 clients in 5 groups"),
        ("nested-groups", 20, {"groups": 5}, "10 classes in 5 groups, two by two"),
        ("nested-groups", 20, {"groups": 8}, "10 classes in 8 groups, two by two"),
        ("rotated-groups", 20, {"groups": 5}, "5 groups of 4 quarters of a turn"),
        ("permuted-groups", 3, {}, "4 groups of 3 clients"),
        ("outlier", 2, {}, "2 clients"),
        ("uneven-groups", 20, {"groups": 1}, "groups = 1 is not"),
        ("iid", 20, {"train_share": 0.0}, "train_share = 0.0 is not a share"),
        ("iid", 20, {"train_share": 1.5}, "train_share = 1.5 is not a share"),
    ],
)
def test_impossible_groups_are_refused(rule: str, clients: int, more: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        split(rule, *TEN, clients, **FEW, **more)


def test_views_that_a_data_set_cannot_have_are_refused() -> None:
    flat = small_images(shape=(5,))
    made = split("rotated-groups", flat.y_train, flat.y_test, 4, min_train=0, min_test=0)
    with pytest.raises(InputError, match=r"shape \(5,\) cannot be turned"):
        federate(flat, made)
    few, more = small_images(4), small_images(5)
    made = split("permuted-groups", few.y_train, few.y_test, 4, min_train=0, min_test=0)
    with pytest.raises(InputError, match="labels of 4 classes are renamed, the data set has 5"):
        federate(more, made)


def test_numbers_have_no_names() -> None:
    with pytest.raises(InputError, match="labels that are numbers cannot be renamed"):
        View(labels=(1, 0)).label(np.array([0.5, 1.0]))


def test_a_subset_deals_a_share_of_every_class_and_leaves_the_test_set_whole() -> None:
    made, whole = (split("iid", *TEN, 5, 1, train_share=share, **FEW) for share in (0.1, 1.0))
    assert label_counts(made, *TEN).train.sum(0).tolist() == [50] * 10
    assert label_counts(made, *TEN).test.sum(0).tolist() == label_counts(whole, *TEN).test.sum(0).tolist()
    drawn = np.sort(np.concatenate(made.train))
    assert drawn.max() > 2500  # not the first ones
    other = np.sort(np.concatenate(split("iid", *TEN, 5, 2, train_share=0.1, **FEW).train))
    assert not np.array_equal(drawn, other)
    assert made.rule["train_share"] == 0.1
    assert "train_share" not in whole.rule
