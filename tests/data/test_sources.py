import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import fedapa.data
from fedapa.data import datasets, sources
from fedapa.data.datasets import digits
from fedapa.data.sources import SOURCES, data_folder, is_present, load
from fedapa.errors import InputError

from . import files


def test_diabetes_has_numbers_to_predict_and_scaled_columns() -> None:
    data = load("diabetes")
    assert (data.classes, len(data.y_train), len(data.y_test)) == (0, 332, 110)
    assert (float(data.y_train.min()) >= 25, float(data.y_train.max()) <= 346) == (True, True)
    assert np.concatenate([data.x_train, data.x_test]).std(0) == pytest.approx(np.ones(10), abs=0.01)
    assert (set(data.mean), set(data.std)) == ({0.0}, {1.0})


@pytest.mark.parametrize("there", [True, False])
def test_digits_are_those_of_scikit_learn_wherever_its_file_is(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not there:
        monkeypatch.setattr(digits, "find_spec", lambda name: None)
    for mine, theirs in zip(digits._read.__wrapped__(), load_digits(return_X_y=True), strict=True):
        assert np.array_equal(mine, theirs)


def test_digits_are_complete_scaled_and_split_by_a_fixed_rule() -> None:
    data = load("digits")
    assert data.x_train.shape == (1501, 1, 8, 8)
    assert data.x_test.shape == (296, 1, 8, 8)
    assert (data.x_train.dtype, data.x_train.min(), data.x_train.max()) == (np.uint8, 0, 255)
    assert np.bincount(data.y_test).tolist() == [29, 30, 29, 30, 30, 30, 30, 29, 29, 30]
    assert data.y_train[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.x_train[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0, times 255/16
    assert (data.mean, data.std) == ((0.5,), (0.5,))


def test_rank_in_class_by_hand() -> None:
    assert digits.rank_in_class(np.array([2, 0, 2, 2, 0])).tolist() == [0, 0, 1, 2, 1]


def test_the_registry_describes_what_load_returns() -> None:
    info = SOURCES["digits"]
    data = load("digits")
    assert (len(data.y_train), len(data.y_test), data.classes) == (info.train, info.test, info.classes)
    assert data.x_train.shape[1:] == info.shape
    assert [info.classes for info in SOURCES.values()] == [10, 10, 10, 100, 0, 2]
    assert list(SOURCES["cifar100"].class_names) == sorted(SOURCES["cifar100"].class_names)


@pytest.mark.parametrize("folder", ["FashionMNIST/raw", "fashion-mnist", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_fmnist_from_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, packed: bool) -> None:
    files.shrink(monkeypatch, "fmnist", 30, 10)
    assert not is_present("fmnist", tmp_path)
    arrays = files.write_fmnist(tmp_path / folder, packed=packed)
    assert is_present("fmnist", tmp_path)
    data = load("fmnist", tmp_path)
    np.testing.assert_array_equal(data.x_train[:, 0], arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(data.y_test, arrays["t10k-labels-idx1-ubyte"])


def test_debians_folder_is_known() -> None:
    assert SOURCES["fmnist"].layouts[-1].folder == "/usr/share/datasets/fashion-mnist"


def test_cifar10_from_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.shrink(monkeypatch, "cifar10", 50, 10)
    x = files.write_cifar10_binary(tmp_path / "cifar-10-batches-bin")
    binary = load("cifar10", tmp_path)
    np.testing.assert_array_equal(binary.x_train, x[:50])
    np.testing.assert_array_equal(binary.x_test, x[50:])
    folder = tmp_path / "other" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for i, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        part = slice(10 * i, 10 * i + 10)
        (folder / name).write_bytes(files.python2_batch(x[part], np.arange(10), "labels"))
    pickled = load("cifar10", tmp_path / "other")
    for field in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(pickled, field), getattr(binary, field))
    assert binary.mean == (0.5, 0.5, 0.5)


def test_cifar100_from_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.shrink(monkeypatch, "cifar100", 200, 100)
    x = files.write_cifar100_binary(tmp_path / "cifar-100-binary")
    binary = load("cifar100", tmp_path)
    folder = tmp_path / "other" / "cifar-100-python"
    folder.mkdir(parents=True)
    y = files.cifar_labels(300, 100)
    (folder / "train").write_bytes(files.python2_batch(x[:200], y[:200], "fine_labels"))
    (folder / "test").write_bytes(files.python2_batch(x[200:], y[200:], "fine_labels"))
    pickled = load("cifar100", tmp_path / "other")
    assert binary.y_test.tolist() == list(range(100))
    for field in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(pickled, field), getattr(binary, field))


def test_cifar_batches_that_do_not_belong_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.shrink(monkeypatch, "cifar10", 50, 10)
    folder = tmp_path / "cifar-10-batches-bin"
    x = files.write_cifar10_binary(folder)
    (folder / "data_batch_2.bin").write_bytes(files.binary_records(x[:10], np.zeros(10, np.uint8)))
    with pytest.raises(InputError, match="expected 5 samples of every class, found 4 to 14") as caught:
        load("cifar10", tmp_path)
    assert caught.value.hint == "delete it and run 'fedapa data fetch cifar10'"


def test_missing_data_says_where_it_was_sought_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.shrink(monkeypatch, "fmnist", 30, 10)
    with pytest.raises(InputError, match="fmnist: no data files found") as caught:
        load("fmnist", tmp_path)
    assert str(tmp_path / "FashionMNIST/raw") in caught.value.message
    assert "fedapa data fetch fmnist" in caught.value.hint


def test_one_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.shrink(monkeypatch, "cifar10", 50, 10)
    files.write_cifar10_binary(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"cifar-10-batches-bin lacks data_batch_3\.bin\nhint"):
        load("cifar10", tmp_path)


def test_an_unknown_data_set_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="no data set called 'cifar-10'") as caught:
        load("cifar-10")
    assert caught.value.hint == "did you mean cifar10?"


def test_the_data_folder_is_argument_then_environment_then_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAPA_DATA", "/somewhere")
    assert data_folder(Path("/else")) == Path("/else")
    assert data_folder() == Path("/somewhere")
    monkeypatch.setenv("FEDAPA_DATA", "")
    assert data_folder() == Path.home() / ".cache" / "fedapa"


def test_importing_the_package_is_light() -> None:
    modules = "fedapa.data, fedapa.data.sources, fedapa.data.partitions.rules, fedapa.data.inspect"
    heavy = "{'torch', 'sklearn', 'matplotlib', 'pooch', 'requests'}"
    code = f"import sys, {modules}; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_listing_needs_no_arrays() -> None:
    code = "import sys; from fedapa.data.sources import SOURCES; assert SOURCES; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


NEW_DATASET = """
from fedapa.data.dataset import SourceInfo


def stripes():
    import numpy as np

    y = np.arange(6) % 2
    x = np.broadcast_to(255 * y[:, None, None, None], (6, 1, 4, 4)).astype(np.uint8)
    return (x[:4], y[:4]), (x[4:], y[4:])


DATASETS = (SourceInfo("stripes", "black or white", 4, 2, ("black", "white"), (1, 4, 4), examples=stripes),)
"""


def test_a_new_data_set_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stripes.py").write_text(NEW_DATASET)
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path)])
    monkeypatch.setattr(sources, "SOURCES", sources._listed())
    monkeypatch.delitem(sys.modules, "fedapa.data.datasets.stripes")
    assert list(sources.SOURCES) == ["stripes", *SOURCES]  # the smallest images come first
    assert load("stripes").y_train.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("name", fedapa.data.__all__)
def test_every_public_name_of_the_package_is_there(name: str) -> None:
    assert getattr(fedapa.data, name)


@pytest.mark.parametrize("name", ["fmnist", "cifar10", "cifar100"])
def test_the_real_files(name: str) -> None:
    folder = os.environ.get("FEDAPA_DATA")
    if not folder or not is_present(name, Path(folder)):
        pytest.skip(f"FEDAPA_DATA names no folder with {name}")
    info, data = SOURCES[name], load(name, Path(folder))
    assert data.x_train.shape == (info.train, *info.shape)
    assert data.x_test.shape == (info.test, *info.shape)
    assert np.bincount(data.y_train).tolist() == [info.train // info.classes] * info.classes
    # Published first labels: ankle boot; frog, truck, truck; cattle, dinosaur, apple.
    first = {"fmnist": [9, 0, 0], "cifar10": [6, 9, 9], "cifar100": [19, 29, 0]}[name]
    assert data.y_train[:3].tolist() == first
