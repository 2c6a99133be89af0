import re
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapa.data.partitions import partition_math
from fedapa.data.partitions.partition import Partition, fingerprint, label_counts
from fedapa.data.partitions.rules import RULES, split
from fedapa.errors import InputError, RunError
from fedapa.store import partition_file

CIFAR10 = np.tile(np.arange(10), 5000), np.tile(np.arange(10), 1000)
CIFAR100 = np.tile(np.arange(100), 500), np.tile(np.arange(100), 100)
SMALL = np.tile(np.arange(4), 60), np.tile(np.arange(4), 12)
TINY = {"min_train": 0, "min_test": 0}
PLANTED = ("uneven-groups", "overlapping-groups", "nested-groups", "rotated-groups", "permuted-groups", "outlier")
ALL_BUT_GROUPS = [name for name in RULES if name not in ("by-group", *PLANTED)]  # test_planted.py has the others


def one(*lists: list[int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(values, np.int64) for values in lists)


# --- by hand -------------------------------------------------------------------------------------


def test_floor_sizes_and_owners_by_hand() -> None:
    sizes = partition_math.floor_sizes(np.array([[0.5, 0.5], [0.34, 0.66]]), np.array([5, 3]))
    assert sizes.tolist() == [[2, 2], [1, 1]]
    # classes 0 1 0 0 1 0 1 0: in data set order, the last of class 0 and of class 1 are left over
    owner = partition_math.owners(np.array([0, 1, 0, 0, 1, 0, 1, 0]), sizes)
    assert owner.tolist() == [0, 0, 0, 1, 1, 1, -1, -1]
    assert [index.tolist() for index in partition_math.indices(owner, 2)] == [[0, 1, 2], [3, 4, 5]]


def test_greedy_holders_by_hand() -> None:
    assert partition_math.greedy_holders(4, 4, 2).astype(int).tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 1],
        [0, 0, 1, 1],
    ]


def test_iid_by_hand() -> None:
    made = split("iid", [0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 1], clients=2, **TINY)
    counts = label_counts(made, [0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 1])
    assert counts.train.tolist() == [[2, 1], [2, 1]]
    assert counts.test.tolist() == [[1, 1], [1, 1]]


def test_iid_does_not_lose_samples_to_rounding() -> None:
    y = np.repeat([0, 1], 49)  # floor(49 * (1 / 49)) would be 0
    assert [index.size for index in split("iid", y, y, clients=49, **TINY).train] == [2] * 49


def test_by_group_by_hand() -> None:
    groups = {"groups_train": ["b", "a", "b", "a"], "groups_test": ["b", "a"]}
    made = split("by_group", [0, 1, 0, 1], [1, 0], None, **groups)
    assert [index.tolist() for index in made.train] == [[1, 3], [0, 2]]
    assert [index.tolist() for index in made.test] == [[1], [0]]
    assert made.rule["names"] == ["a", "b"]


def test_dirichlet_with_given_shares_takes_the_first_samples_of_every_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fixed:
        def dirichlet(self, alpha: np.ndarray, size: tuple[int, int]) -> np.ndarray:
            return np.broadcast_to([[0.75, 0.25], [0.4, 0.6]], (*size, 2))

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Fixed())
    made = split("dirichlet", [0, 0, 1, 1, 1, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0], clients=2, **TINY)
    # train: class 0 at 0 1 5 6 -> 3 + 1; class 1 at 2 3 4 7 8 -> 2 + 3. test: 3 of each -> 2 + 0 and 1 + 1
    assert [index.tolist() for index in made.train] == [[0, 1, 2, 3, 5], [4, 6, 7, 8]]
    assert [index.tolist() for index in made.test] == [[0, 1, 3], [2]]


# --- the rules of METHODS ------------------------------------------------------------------------


def test_dirichlet_statistics_agree_with_an_independent_monte_carlo() -> None:
    made = [split("dirichlet", *CIFAR10, clients=20, seed=seed, alpha=0.1) for seed in range(60)]
    draws = sum(int(str(p.rule["redraws"])) + 1 for p in made)
    counts = [label_counts(p, *CIFAR10) for p in made]
    # 20,000 draws outside this code: 0.445 (for Fashion-MNIST's 6,000 per class 0.51; 50 clients 0.0016)
    assert 60 / draws == pytest.approx(0.445, abs=0.12)
    assert np.mean([(c.train > 0).sum(1).mean() for c in counts]) == pytest.approx(5.49, abs=0.12)
    untested = np.mean([((c.train > 0) & (c.test == 0)).sum(1).mean() for c in counts])
    assert untested == pytest.approx(0.84, abs=0.08)
    dropped = np.mean([50_000 - c.train.sum() for c in counts])
    assert dropped == pytest.approx(63, abs=8)


def test_cifar100_statistics() -> None:
    made = [split("dirichlet", *CIFAR100, clients=20, seed=seed, alpha=0.01) for seed in range(5)]
    assert all(p.rule["redraws"] == 0 for p in made)
    classes = np.mean([(label_counts(p, *CIFAR100).train > 0).sum(1).mean() for p in made])
    assert classes == pytest.approx(10.3, abs=0.8)


def test_fifty_clients_are_found_quickly() -> None:
    start = time.perf_counter()
    made = split("dirichlet", *CIFAR10, clients=50, seed=0, alpha=0.1)
    assert time.perf_counter() - start < 2.0
    assert min(index.size for index in made.train) > 128
    assert min(index.size for index in made.test) > 2
    assert int(str(made.rule["redraws"])) > 10


@pytest.mark.parametrize(
    ("labels", "clients", "per_client", "groups"),
    [(CIFAR10, 20, 2, 5), (CIFAR10, 50, 2, 5), (CIFAR100, 20, 10, 10), (CIFAR100, 50, 10, 10)],
)
def test_pathological_plants_groups_of_equal_classes(
    labels: tuple[np.ndarray, np.ndarray], clients: int, per_client: int, groups: int
) -> None:
    made = split("pathological", *labels, clients=clients, classes_per_client=per_client)
    counts = label_counts(made, *labels).train
    sets = [tuple(np.flatnonzero(row)) for row in counts]
    size = clients // groups
    expected = [tuple(range(i // size * per_client, i // size * per_client + per_client)) for i in range(clients)]
    assert sets == expected
    smallest = np.where(counts > 0, counts, counts.max()).min(0)
    assert (counts.max(0) / (smallest + 1) < 7 / 3).all()  # U(0.3, 0.7) within every class
    assert np.median(counts.max(0) / smallest) > 1.2  # and not the same for everybody


def test_random_classes_covers_every_class_and_mixes_the_groups() -> None:
    made = split("random-classes", *CIFAR10, clients=20, seed=1)
    held = label_counts(made, *CIFAR10).train > 0
    assert (held.sum(1) == 2).all()
    assert (held.sum(0) >= 1).all()
    assert len({tuple(np.flatnonzero(row)) for row in held}) > 8


def test_random_classes_with_too_few_places_for_all_classes() -> None:
    made = split("random-classes", *CIFAR10, clients=3, classes_per_client=2)
    held = label_counts(made, *CIFAR10).train > 0
    assert held.sum(1).tolist() == [2, 2, 2]
    assert held.sum() == held.any(0).sum() == 6


def test_quantity_gives_everybody_the_same_mix() -> None:
    made = split("quantity", *CIFAR10, clients=8, alpha=0.5)
    counts = label_counts(made, *CIFAR10).train
    assert (counts == counts[:, :1]).all()
    assert counts[:, 0].max() > 2 * counts[:, 0].min()


def test_iid_depends_on_the_seed_and_not_on_the_order() -> None:
    first, second = split("iid", *CIFAR10, clients=10, seed=0), split("iid", *CIFAR10, clients=10, seed=1)
    assert fingerprint(first) != fingerprint(second)
    assert (label_counts(first, *CIFAR10).train == 500).all()


# --- properties ----------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    rule=st.sampled_from(ALL_BUT_GROUPS),
    clients=st.sampled_from([1, 2, 4, 6]),
    seed=st.integers(0, 10_000),
    order=st.randoms(use_true_random=False),
)
def test_disjoint_sorted_in_range_and_deterministic(rule: str, clients: int, seed: int, order: object) -> None:
    y_train, y_test = SMALL[0].copy(), SMALL[1].copy()
    order.shuffle(y_train)  # type: ignore[attr-defined]
    extra = {} if rule == "iid" else {"max_redraws": 2000}
    if rule in ("dirichlet", "quantity"):
        extra["alpha"] = 1.0  # type: ignore[assignment]
    if rule == "pathological" and clients == 1:
        extra["classes_per_client"] = 4
    made = split(rule, y_train, y_test, clients, seed, **TINY, **extra)
    for lists, size in ((made.train, y_train.size), (made.test, y_test.size)):
        together = np.concatenate(lists)
        assert np.unique(together).size == together.size
        assert together.min() >= 0
        assert together.max() < size
        assert all((np.diff(index) > 0).all() and index.size > 0 for index in lists)
    again = split(rule, y_train, y_test, clients, seed, **TINY, **extra)
    assert fingerprint(made) == fingerprint(again)
    assert made.rule == again.rule


@settings(max_examples=25, deadline=None)
@given(
    rule=st.sampled_from(["dirichlet", "pathological", "random-classes", "quantity"]),
    seed=st.integers(0, 999),
)
def test_train_and_test_have_the_same_shares_up_to_rounding(rule: str, seed: int) -> None:
    extra = {"alpha": 1.0} if rule in ("dirichlet", "quantity") else {}
    made = split(rule, *CIFAR10, 10, seed, **TINY, **extra)
    counts = label_counts(made, *CIFAR10)
    assert np.abs(counts.train / 5000 - counts.test / 1000).max() <= 1 / 1000


@pytest.mark.parametrize("rule", ["dirichlet", "pathological", "random-classes", "quantity"])
@pytest.mark.parametrize("at_once", [1, 7])
def test_the_batch_size_of_candidates_changes_nothing(rule: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    minimum = {"dirichlet": 300, "pathological": 2000, "random-classes": 1600, "quantity": 200}[rule]
    expected = split(rule, *CIFAR10, clients=20, seed=3, min_train=minimum)
    assert int(str(expected.rule["redraws"])) > 0
    monkeypatch.setattr(partition_math, "NUMBERS_AT_ONCE", at_once * 200)
    assert fingerprint(split(rule, *CIFAR10, clients=20, seed=3, min_train=minimum)) == fingerprint(expected)


def test_gaps_in_the_labels_do_not_matter() -> None:
    plain = split("pathological", *SMALL, clients=4, seed=5, **TINY)
    gapped = split("pathological", SMALL[0] * 7 + 3, SMALL[1] * 7 + 3, clients=4, seed=5, **TINY)
    assert fingerprint(plain) == fingerprint(gapped)


# --- fingerprint and files -----------------------------------------------------------------------


def test_the_fingerprint_is_fixed_for_all_time() -> None:
    assert fingerprint(Partition(one([0, 2], [1]), one([0], [1]), {})) == "97c6e8625a53fea9"


@settings(max_examples=30, deadline=None)
@given(client=st.integers(0, 3), part=st.sampled_from(["train", "test"]), data=st.data())
def test_the_fingerprint_changes_with_any_index(client: int, part: str, data: st.DataObject) -> None:
    made = split("iid", *SMALL, clients=4, **TINY)
    lists = [index.copy() for index in getattr(made, part)]
    lists[client][data.draw(st.integers(0, lists[client].size - 1))] += 1000
    changed = {"train": made.train, "test": made.test} | {part: tuple(lists)}
    assert fingerprint(Partition(**changed, rule={})) != fingerprint(made)


def test_the_fingerprint_sees_who_has_what() -> None:
    base = fingerprint(Partition(one([0, 1], [2]), one([0], [1]), {}))
    assert fingerprint(Partition(one([0], [1, 2]), one([0], [1]), {})) != base
    assert fingerprint(Partition(one([2], [0, 1]), one([0], [1]), {})) != base


@pytest.mark.parametrize("rule", ALL_BUT_GROUPS)
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, rule: str) -> None:
    made = split(rule, *SMALL, clients=4, seed=2, **TINY)
    partition_file.save(made, tmp_path / "p.npz")
    again = partition_file.load(tmp_path / "p.npz")
    assert fingerprint(again) == fingerprint(made)
    assert again.rule == made.rule
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]


@pytest.mark.parametrize("cut", [0, 1, 30, 200, 700, -1, -30])
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "p.npz"
    partition_file.save(split("iid", *SMALL, clients=4, **TINY), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"p\.npz: not a sound partition file") as caught:
        partition_file.load(path)
    assert "\n" not in caught.value.message


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    made = split("iid", *SMALL, clients=4, **TINY)
    partition_file.save(made, path)
    content = path.read_bytes()
    for at in range(0, len(content), 23):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            again = partition_file.load(path)
        except InputError:
            continue
        assert fingerprint(again) == fingerprint(made)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", a=np.arange(3))
    np.savez(tmp_path / "pickled.npz", header=np.array([{"a": 1}], object), allow_pickle=True)
    np.save(tmp_path / "single.npy", np.arange(3))
    header = np.frombuffer(b'{"format": "fedapa-partition-9"}', np.uint8)
    np.savez(tmp_path / "newer.npz", header=header)
    (tmp_path / "text.npz").write_text("hello")
    for name in ("other.npz", "pickled.npz", "single.npy", "newer.npz", "text.npz"):
        with pytest.raises(InputError, match="not a sound partition file"):
            partition_file.load(tmp_path / name)
    with pytest.raises(InputError, match="no such partition file"):
        partition_file.load(tmp_path / "absent.npz")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    made = split("iid", *SMALL, clients=4, **TINY)
    with pytest.raises(RunError, match="cannot write"):
        partition_file.save(made, tmp_path / "absent" / "p.npz")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.npz"
    partition_file.save(split("iid", *SMALL, clients=4, **TINY), path)
    before = path.read_bytes()

    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedapa.store.atomic_io.os.fsync", full)
    with pytest.raises(RunError, match="No space left"):
        partition_file.save(split("iid", *SMALL, clients=2, **TINY), path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_indices_outside_a_data_set_are_refused() -> None:
    made = split("iid", *SMALL, clients=4, **TINY)
    with pytest.raises(InputError, match=r"client \d has train index 2\d\d, the data set has 100 train samples"):
        label_counts(made, SMALL[0][:100], SMALL[1])


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "clients", "params", "message"),
    [
        ("dirichlet", 20, {"alpha": 0}, "alpha = 0 is not a number of at least 0.001"),
        ("dirichlet", 20, {"alpha": -1.0}, "alpha = -1.0 is not"),
        ("dirichlet", 20, {"alpha": float("nan")}, "alpha = nan is not"),
        ("dirichlet", 20, {"alpha": float("inf")}, "alpha = inf is not"),
        ("dirichlet", 20, {"alpha": "0.1"}, "alpha = '0.1' is not"),
        ("dirichlet", 20, {"min_train": 1.5}, "min_train = 1.5 is not a whole number"),
        ("dirichlet", 20, {"min_test": -1}, "min_test = -1 is not"),
        ("dirichlet", 0, {}, "clients = 0 is not a whole number of at least 1"),
        ("dirichlet", True, {}, "clients = True is not"),
        ("dirichlet", 2.0, {}, "clients = 2.0 is not"),
        ("dirichlet", None, {}, "clients = None is not"),
        ("dirichlet", 388, {}, "388 clients with more than 128 train samples each need 50,052"),
        ("iid", 300, {"min_train": 0, "min_test": 50}, "test samples each need 15,300 samples"),
        (
            "pathological",
            20,
            {"classes_per_client": 11},
            "classes_per_client = 11, the data set has 10 classes",
        ),
        ("random-classes", 20, {"classes_per_client": 11}, "classes_per_client = 11, the data set has 10"),
        ("pathological", 20, {"classes_per_client": 0}, "classes_per_client = 0 is not"),
        ("dirichlet", 20, {"alfa": 1.0}, "no parameter of dirichlet called 'alfa'"),
        ("iid", 20, {"alpha": 1.0}, "no parameter of iid called 'alpha'"),
        ("dirichlett", 20, {}, "no partition rule called 'dirichlett'"),
        ("by-group", None, {}, "by-group: groups_train and groups_test must be given"),
    ],
)
def test_bad_requests(rule: str, clients: object, params: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        split(rule, *CIFAR10, clients, **params)  # type: ignore[arg-type]
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_a_negative_seed() -> None:
    with pytest.raises(InputError, match="seed = -1 is not"):
        split("iid", *CIFAR10, clients=2, seed=-1)


@pytest.mark.parametrize(
    ("clients", "per_client", "hint"),
    [
        (
            12,
            2,
            "with 2 classes per client use 10 or 15 clients; with 12 clients use 5 or 10 classes per client",
        ),
        (3, 2, "with 2 classes per client use 5 clients; with 3 clients use 10 classes per client"),
        (10, 3, "with 10 clients use 1 or 2 or 5 or 10 classes per client; or use the rule random-classes"),
    ],
)
def test_pathological_that_cannot_come_out_even(clients: int, per_client: int, hint: str) -> None:
    with pytest.raises(InputError, match="cannot be dealt evenly from 10 classes") as caught:
        split("pathological", *CIFAR10, clients=clients, classes_per_client=per_client)
    assert caught.value.hint == hint


@pytest.mark.parametrize("clients", range(1, 25))
@pytest.mark.parametrize("per_client", [1, 2, 3, 4, 5, 6])
def test_the_condition_for_even_dealing_is_exact(clients: int, per_client: int) -> None:
    """Refused if and only if the greedy deal leaves somebody with fewer classes than asked for."""
    holders = partition_math.greedy_holders(clients, 6, per_client)
    even = (holders.sum(0) == per_client).all() and len(set(holders.sum(1))) == 1
    y = np.tile(np.arange(6), 1000)
    request = partial(split, "pathological", y, y, clients, classes_per_client=per_client, min_train=1)
    if even:
        request()
    else:
        with pytest.raises(InputError, match="dealt evenly"):
            request()


def test_an_exhausted_search_says_what_failed_and_what_to_change() -> None:
    with pytest.raises(InputError) as caught:
        split("dirichlet", *CIFAR10, clients=100, max_redraws=500)
    assert "none of 501 draws gave each of 100 clients more than 128 train" in caught.value.message
    assert re.search(r"in the best draw the smallest train set had \d+ <= 128", caught.value.message)
    assert caught.value.hint == "use fewer clients, a larger alpha, or a smaller min_train"


def test_an_exhausted_search_for_test_samples() -> None:
    with pytest.raises(InputError, match=r"smallest test set had \d+ <= 995"):
        split("pathological", *CIFAR10, clients=10, min_train=0, min_test=995, max_redraws=300)


@pytest.mark.parametrize("rule", ["dirichlet", "pathological", "random-classes"])
def test_one_class_cannot_be_distributed_by_class(rule: str) -> None:
    with pytest.raises(InputError, match="all samples are of one class"):
        split(rule, np.zeros(1000, int), np.zeros(100, int), clients=2)


@pytest.mark.parametrize(
    ("y_train", "y_test", "message"),
    [
        ([], [0], "train labels have"),
        (np.zeros(0, int), [0], "no train samples"),
        ([0, 1], np.zeros(0, int), "no test samples"),
        ([0.5, 1.0], [0, 1], "train labels have"),
        ([[0], [1]], [0, 1], "train labels have shape"),
        ([0, 1], [0, 2], "class 2 is in the test set and not in the train set"),
    ],
)
def test_bad_labels(y_train: object, y_test: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split("iid", y_train, y_test, clients=1, **TINY)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("train", "test", "clients", "message"),
    [
        (["a", "b", "a"], ["a", "b"], None, "3 groups for 4 train samples"),
        (["a", "b", "a", "c"], ["a", "b"], None, "group 'c' is in only one"),
        (["a", "b", "a", "b"], ["a", "c"], None, "group 'b' is in only one"),
        (["a", "b", "a", "b"], ["a", "b"], 3, "clients = 3, there are 2 groups"),
        (["a", "b", "a", "b"], ["a", "b"], 0, "clients = 0 is not"),
    ],
)
def test_bad_groups(train: list[str], test: list[str], clients: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split("by-group", [0, 1, 0, 1], [1, 0], clients, groups_train=train, groups_test=test)


def test_a_group_that_is_too_small() -> None:
    groups = {"groups_train": ["a", "b", "a", "a"], "groups_test": ["a", "b"]}
    with pytest.raises(InputError, match="client 'b' would have 1 train samples, not more than 1"):
        split("by-group", [0, 1, 0, 1], [1, 0], None, min_train=1, **groups)


@pytest.mark.parametrize("rule", ALL_BUT_GROUPS)
def test_declared_defaults_are_the_defaults(rule: str) -> None:
    declared = {p.name: p.default for p in RULES[rule].parameters}
    assert split(rule, *CIFAR10, clients=5).rule["parameters"] == declared


@pytest.mark.parametrize("alpha", [1e-3, 1e6])
def test_extreme_alphas_are_finite(alpha: float) -> None:
    made = split("dirichlet", *CIFAR10, clients=2, alpha=alpha, **TINY)
    assert all(index.size > 0 for index in made.train)
