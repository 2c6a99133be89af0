import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from fedapa.data.datasets.cifar import read_cifar_binary, read_cifar_python
from fedapa.data.datasets.fashion_mnist import read_idx
from fedapa.errors import InputError

from . import files


def test_idx_of_six_bytes_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "six"
    path.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 20, 21, 22]))
    assert read_idx(path, (2, 3)).tolist() == [[10, 11, 12], [20, 21, 22]]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda c: c[:-1], "17: the file is truncated"),
        (lambda c: c + b"\0", "found more"),
        (lambda c: b"\0\0\x09\x02" + c[4:], "starts with 00 00 09 02"),
        (lambda c: c[:7] + b"\x03" + c[8:], "found 3 x 3 bytes"),
        (lambda c: b"", "starts with nothing"),
        (lambda c: c[:6], "starts with 00 00 08 02"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_refuses_what_is_not_exactly_the_expected_file(
    tmp_path: Path, change: object, found: str, packed: bool
) -> None:
    content = change(files.idx_bytes(np.zeros((2, 3), np.uint8)))  # type: ignore[operator]
    path = tmp_path / ("six.gz" if packed else "six")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(InputError, match=found) as caught:
        read_idx(path, (2, 3))
    assert str(path) in caught.value.message
    assert "fetch" in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("cut", [0, 5, 15, 40, -1, -8])
def test_a_truncated_gzip_is_never_accepted(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(files.idx_bytes(files.pixels(5, 8, 8)))[:cut])
    with pytest.raises(InputError, match=r"images\.gz"):
        read_idx(path, (5, 8, 8))


def test_a_flipped_bit_fails_the_checksum_of_gzip(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(files.idx_bytes(files.pixels(5, 8, 8))))
    content[-6] ^= 1  # in the CRC
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="complete gzip"):
        read_idx(path, (5, 8, 8))


def test_a_gz_that_is_not_gzip_and_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "page.gz").write_bytes(b"<html>404</html>")
    with pytest.raises(InputError, match="complete gzip"):
        read_idx(tmp_path / "page.gz", (1,))
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read_idx(tmp_path / "folder", (1,))


def test_cifar_binary_takes_the_fine_label_and_channel_order(tmp_path: Path) -> None:
    x = files.pixels(3, 3, 32, 32)
    coarse, fine = np.array([19, 0, 1], np.uint8), np.array([99, 7, 8], np.uint8)
    (tmp_path / "train.bin").write_bytes(files.binary_records(x, coarse, fine))
    pixels, labels = read_cifar_binary(tmp_path / "train.bin", 3, 100, label_bytes=2)
    assert labels.tolist() == [99, 7, 8]
    np.testing.assert_array_equal(pixels, x)


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: c + b"\0", lambda c: c[:3073], lambda c: b""])
def test_cifar_binary_refuses_a_wrong_length(tmp_path: Path, change: object) -> None:
    path = tmp_path / "batch.bin"
    content = files.binary_records(files.pixels(2, 3, 32, 32), np.array([0, 1], np.uint8))
    path.write_bytes(change(content))  # type: ignore[operator]
    with pytest.raises(InputError, match=r"batch\.bin: expected 6,146 bytes"):
        read_cifar_binary(path, 2, 10, label_bytes=1)


def test_cifar_binary_refuses_a_label_outside_the_classes(tmp_path: Path) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes(files.binary_records(files.pixels(2, 3, 32, 32), np.array([0, 10], np.uint8)))
    with pytest.raises(InputError, match=r"labels in 0\.\.9, found label 10"):
        read_cifar_binary(path, 2, 10, label_bytes=1)


@pytest.mark.parametrize(
    "write",
    [
        files.python2_batch,
        lambda x, y, key: files.python3_batch(x, y, key, protocol=2),
        lambda x, y, key: files.python3_batch(x, y, key, protocol=4, as_bytes=True),
        lambda x, y, key: files.python3_batch(x, y, key, protocol=5),
        lambda x, y, key: pickle.dumps({"data": np.asfortranarray(x.reshape(4, -1)), key: y.tolist()}, 2),
    ],
    ids=["python2", "protocol 2", "bytes keys", "protocol 5", "fortran order"],
)
@pytest.mark.parametrize("key", ["labels", "fine_labels"])
def test_cifar_python_in_every_dialect(tmp_path: Path, write: object, key: str) -> None:
    x, y = files.pixels(4, 3, 32, 32), np.array([3, 1, 0, 2])
    (tmp_path / "batch").write_bytes(write(x, y, key))  # type: ignore[operator]
    pixels, labels = read_cifar_python(tmp_path / "batch", 4, 10, key)
    np.testing.assert_array_equal(pixels, x)
    assert labels.tolist() == [3, 1, 0, 2]
    assert labels.dtype == np.int64


class Shell:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.command,)


class Evaluated(Shell):
    def __reduce__(self) -> tuple[object, ...]:
        return eval, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_malicious_pickle_is_refused_without_running(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    attacks = (Shell(f"touch {victim}"), Evaluated(f"open({str(victim)!r}, 'w')"))
    for attack in attacks:
        (tmp_path / "batch").write_bytes(pickle.dumps({"data": attack, "labels": [0]}, protocol))
        with pytest.raises(InputError, match="forbidden name"):
            read_cifar_python(tmp_path / "batch", 1, 10, "labels")
        assert not victim.exists()


def test_no_codec_but_latin1(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.")
    with pytest.raises(InputError, match="codec hex"):
        read_cifar_python(tmp_path / "batch", 1, 10, "labels")


@pytest.mark.parametrize(
    "content",
    [
        {"data": np.zeros((1, 3072), np.uint8)},
        {"data": [0] * 3072, "labels": [0]},
        {"data": np.zeros((1, 3072), np.float64), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [0, 1]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [0.5]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [10]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [-1]},
        [1, 2],
        None,
    ],
)
def test_cifar_python_refuses_other_contents(tmp_path: Path, content: object) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps(content, 2))
    with pytest.raises(InputError, match="batch: expected"):
        read_cifar_python(tmp_path / "batch", 1, 10, "labels")


@pytest.mark.parametrize("cut", [0, 1, 10, 100, 3000, -1])
def test_cifar_python_refuses_a_truncated_pickle(tmp_path: Path, cut: int) -> None:
    content = files.python2_batch(files.pixels(2, 3, 32, 32), np.array([0, 1]), "labels")
    (tmp_path / "batch").write_bytes(content[:cut])
    with pytest.raises(InputError, match="expected a CIFAR batch"):
        read_cifar_python(tmp_path / "batch", 2, 10, "labels")
