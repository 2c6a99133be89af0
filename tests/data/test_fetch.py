"""Fetching, from a web server on this host: nothing here needs a network."""

import functools
import hashlib
import http.server
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedapa.data.download import Download
from fedapa.data.fetching import fetch
from fedapa.data.sources import SOURCES, is_present, load
from fedapa.errors import InputError, RunError

from . import files


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        self.server.served.append(self.path)  # type: ignore[attr-defined]


class Site:
    def __init__(self, folder: Path, url: str, served: list[str]) -> None:
        self.folder, self.url, self.served = folder, url, served

    def offer(self, name: str, content: bytes) -> Download:
        (self.folder / name).write_bytes(content)
        return Download(f"{self.url}/{name}", hashlib.md5(content).hexdigest())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.served = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Site(folder, f"http://127.0.0.1:{server.server_address[1]}", server.served)  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def tar_of(*folders: Path, extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for folder in folders:
            tar.add(folder, folder.name)
        for member in extra:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def offer_cifar10(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes = b"") -> np.ndarray:
    x = files.write_cifar10_binary(tmp_path / "made" / "cifar-10-batches-bin")
    item = site.offer("cifar-10-binary.tar.gz", content or tar_of(tmp_path / "made" / "cifar-10-batches-bin"))
    files.shrink(monkeypatch, "cifar10", 50, 10, downloads=(item,))
    return x


def test_the_published_hashes_and_places() -> None:
    assert all(len(item.md5) == 32 for info in SOURCES.values() for item in info.downloads)
    assert [url.rsplit("/", 1)[1] for url in SOURCES["fmnist"].urls] == [
        f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]


def test_digits_need_no_fetching(tmp_path: Path) -> None:
    assert fetch("digits", tmp_path, progress=False) == tmp_path


def test_fmnist_is_fetched_once_and_repaired(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write_fmnist(tmp_path / "made")
    items = tuple(site.offer(path.name, path.read_bytes()) for path in sorted((tmp_path / "made").iterdir()))
    files.shrink(monkeypatch, "fmnist", 30, 10, downloads=items)
    folder = fetch("fmnist", tmp_path / "data", progress=True)
    assert folder == tmp_path / "data" / "FashionMNIST" / "raw"
    assert "100 %" in capsys.readouterr().err
    assert len(load("fmnist", tmp_path / "data").y_train) == 30
    assert len(site.served) == 4
    fetch("fmnist", tmp_path / "data", progress=False)
    assert len(site.served) == 4  # all there: nothing to do
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"half")
    fetch("fmnist", tmp_path / "data", progress=False)
    assert len(site.served) == 5  # the damaged file alone
    assert capsys.readouterr().err == ""


def test_cifar_is_unpacked_and_the_archive_removed(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = offer_cifar10(site, tmp_path, monkeypatch)
    folder = fetch("cifar10", tmp_path / "data", progress=False)
    np.testing.assert_array_equal(load("cifar10", tmp_path / "data").x_train, x[:50])
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-bin"]
    (folder / "test_batch.bin").write_bytes(b"damaged")
    fetch("cifar10", tmp_path / "data", progress=False)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-bin"]
    assert len(load("cifar10", tmp_path / "data").y_test) == 10


def test_a_wrong_hash_leaves_nothing(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_cifar10(site, tmp_path, monkeypatch)
    (site.folder / "cifar-10-binary.tar.gz").write_bytes(b"something else")
    with pytest.raises(RunError, match="does not have the md5") as caught:
        fetch("cifar10", tmp_path / "data", progress=False)
    assert "\n" not in caught.value.message + caught.value.hint
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("kind", ["escape", "absolute", "link"])
def test_hostile_members_of_an_archive_are_not_unpacked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    names = {
        "escape": "../escaped",
        "absolute": str(tmp_path / "escaped"),
        "link": "cifar-10-batches-bin/link",
    }
    member = tarfile.TarInfo(names[kind])
    if kind == "link":
        member.type, member.linkname = tarfile.SYMTYPE, "/etc"
    else:
        member.size = 1
    files.write_cifar10_binary(tmp_path / "made" / "cifar-10-batches-bin")
    content = tar_of(tmp_path / "made" / "cifar-10-batches-bin", extra=(member,))
    offer_cifar10(site, tmp_path, monkeypatch, content)
    folder = fetch("cifar10", tmp_path / "data", progress=False)
    assert len(list(folder.iterdir())) == 6
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("damage", ["cut", "empty", "lacking"])
def test_a_damaged_archive_leaves_no_data_set(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    made = tmp_path / "made" / "cifar-10-batches-bin"
    files.write_cifar10_binary(made)
    if damage == "lacking":
        (made / "test_batch.bin").unlink()
    content = {"cut": tar_of(made)[:-2000], "empty": b"\0", "lacking": tar_of(made)}[damage]
    offer_cifar10(site, tmp_path, monkeypatch, content)
    with pytest.raises(InputError):
        fetch("cifar10", tmp_path / "data", progress=False)
    assert not is_present("cifar10", tmp_path / "data")
    assert not list((tmp_path / "data").glob(".unpack-*"))


def test_no_network_is_one_line_and_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = Download(f"http://127.0.0.1:{free.getsockname()[1]}/cifar-10-binary.tar.gz", "0" * 32)
        files.shrink(monkeypatch, "cifar10", 50, 10, downloads=(dead,))
        with pytest.raises(RunError, match="download failed: ConnectionError") as caught:
            fetch("cifar10", tmp_path, progress=False)
    assert "\n" not in caught.value.message
    assert "by hand" in caught.value.hint


def test_a_missing_page_tells_its_status(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Download(f"{site.url}/cifar-10-binary.tar.gz", "0" * 32)
    files.shrink(monkeypatch, "cifar10", 50, 10, downloads=(gone,))
    with pytest.raises(RunError, match="HTTP status 404"):
        fetch("cifar10", tmp_path / "data", progress=False)


def test_a_data_folder_that_is_a_file(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_cifar10(site, tmp_path, monkeypatch)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be created"):
        fetch("cifar10", tmp_path / "file", progress=False)


def test_files_of_sites_are_fetched_one_by_one(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = b"50,1,2,130,240,0,0,150,0,0,?,?,?,1\n"
    items = tuple(site.offer(Path(url).name, row) for url in SOURCES["heart-disease"].urls)
    files.shrink(monkeypatch, "heart-disease", 4, 0, downloads=items)
    folder = fetch("heart-disease", tmp_path / "data", progress=False)
    assert sorted(path.name for path in folder.iterdir()) == sorted(item.file_name for item in items)
    fetch("heart-disease", tmp_path / "data", progress=False)
    assert len(site.served) == 4
