"""Bad input of all kinds: one line, a hint, exit code 2 (or 1), and nothing that a later command trips over."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command import Answer, Call
from fedapa.store import run_db, run_folder


def assert_one_line_and_a_hint(answer: Answer, *words: str, code: int = 2) -> None:
    assert answer.code == code, answer.err
    assert answer.out == ""
    first, hint = answer.err.splitlines()
    assert first.startswith("error: ")
    assert hint.startswith("hint: ")
    for word in words:
        assert word in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rnu demo", "Did you mean 'run'?"),
        ("run", "Missing argument 'CONFIG'"),
        ("run demo --rounds 3", "No such option"),
        ("run demo --seeds 0", "'--seeds'"),
        ("run demo --seeds x", "'--seeds'"),
        ("run demo --format xml", "'--format'"),
        ("run demo --set rounds=3", "unknown key rounds"),
        ("run demo --set run.rounds=0", "run.rounds is 0"),
        ("run demo --method fedapaa", "--method fedapaa: unknown method"),
        ("run demo --method local,local", "local is named twice"),
        ("run demo --method ,", "--method ,"),
        ("run dmeo", "did you mean demo?"),
        ("run nowhere.toml", "no file and no preset"),
        ("run demo --set data.source=imagenet", "imagenet"),
        ("run demo --set data.alpha=0", "data.alpha is 0"),
        ("run demo --set data.clients=5000", "5000 clients"),
        ("run demo --set data.partition=round-robin", "round-robin"),
        ("run demo --set data.partition=gone.npz", "gone.npz"),
        ("run demo --set data.alpha=0.001 --set data.max_redraws=3", "dirichlet"),
        ("run demo --set model.name=lenet5", "lenet5 needs square images"),
        ("run demo --set model.name=resnet", "unknown model 'resnet'"),
        ("run demo --set model.name=nowhere:net", "cannot be imported"),
        ("run demo --set model.head=last", "no submodule named 'last'"),
        ("run demo --set run.engine=native", "native engine"),
        ("run cifar10-dirichlet --data-dir nowhere", "fedapa data fetch cifar10"),
        ("run fmnist-dirichlet --set data.source=cifar100 --data-dir nowhere", "fedapa data fetch cifar100"),
        ("plan dmeo", "did you mean demo?"),
        ("plan demo --set data.alpha=0", "data.alpha is 0"),
        ("plan demo --set model.name=lenet5", "lenet5 needs"),
        ("cp dmeo x.toml", "did you mean demo?"),
        ("cp demo no/such/folder/x.toml", "cannot write"),
        ("compare", "there are no runs here"),
        ("compare nowhere", "no run with results under nowhere"),
        ("resume", "there are no runs here"),
        ("resume nowhere", "nowhere holds no run"),
        ("cite fedap", "did you mean"),
        ("verify nowhere.py", "nowhere.py does not exist"),
        ("ls method", "'method' is not one of"),
        ("data fetch imagenet", "imagenet"),
        ("data split imagenet", "imagenet"),
        ("data split digits --alpha 0", "alpha"),
        ("data split digits --clients 0", "'--clients'"),
        ("data split digits --clients 5000", "5000 clients"),
        ("data split digits --rule pathological --classes-per-client 11 --clients 4", "10 classes"),
        ("data split digits --rule nope", "nope"),
    ],
)
def test_a_mistake_is_one_line_with_a_hint(fedapa: Call, tmp_path: Path, words: str, said: str) -> None:
    assert_one_line_and_a_hint(fedapa(*words.split()), said)
    assert list(tmp_path.iterdir()) == []


def test_more_classes_per_client_than_there_are(fedapa: Call, small: Path, tmp_path: Path) -> None:
    changes = ("--set", "data.partition=pathological", "--set", "data.classes_per_client=11")
    answer = fedapa("run", small, *changes, "--set", "data.min_train=1", "--out", "out")
    assert_one_line_and_a_hint(answer)
    assert not (tmp_path / "out").exists()


# --------------------------------------------------------------------------------------------------------- data files


def write_cifar(data: Path, size: int) -> None:
    """Six CIFAR-10 files of the right names."""
    where = data / "cifar-10-batches-bin"
    where.mkdir(parents=True)
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        (where / name).write_bytes(bytes(size))


@pytest.mark.parametrize("size", [0, 3073 * 10, 3073 * 10000 - 1])
def test_truncated_data_files(fedapa: Call, tmp_path: Path, size: int) -> None:
    write_cifar(tmp_path / "data", size)
    answer = fedapa("run", "cifar10-dirichlet", "--data-dir", "data", "--out", "out")
    assert_one_line_and_a_hint(answer, "data_batch_1.bin")
    assert not (tmp_path / "out").exists()


def test_corrupt_data_files(fedapa: Call, tmp_path: Path) -> None:
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        path = tmp_path / "data" / "fashion-mnist" / f"{name}-ubyte.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x1f\x8b garbage")
    answer = fedapa("run", "fmnist-dirichlet", "--data-dir", "data", "--out", "out")
    if "no data files found" in answer.err:  # they are looked for in a folder of another name
        shutil.move(tmp_path / "data" / "fashion-mnist", tmp_path / "data" / "fmnist")
        answer = fedapa("run", "fmnist-dirichlet", "--data-dir", "data", "--out", "out")
    assert_one_line_and_a_hint(answer, "ubyte.gz")
    assert not (tmp_path / "out").exists()


def test_a_partition_file_that_is_none(fedapa: Call, small: Path, tmp_path: Path) -> None:
    (tmp_path / "p.npz").write_bytes(b"garbage")
    answer = fedapa("run", small, "--set", "data.partition=p.npz", "--out", "out")
    assert_one_line_and_a_hint(answer, "p.npz")
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------ output folders


def test_an_output_folder_below_a_file(fedapa: Call, small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for out in ("file", "file/runs"):
        assert_one_line_and_a_hint(fedapa("run", small, "--out", out), "file")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("verb", ["run small.toml", "demo"])
def test_a_folder_without_permission(fedapa: Call, small: Path, tmp_path: Path, verb: str) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; the mounted folders below stand in for this")
    (tmp_path / "locked").mkdir(mode=0o555)
    assert_one_line_and_a_hint(fedapa(*verb.split(), "--out", "locked/out"), "cannot be written to")


@contextmanager
def mounted(where: Path, options: str) -> Iterator[Callable[[str], None]]:
    """A small file system of its own, where the system lets us."""
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield lambda more: subprocess.run(["mount", "-o", f"remount,{more}", str(where)], check=True)  # type: ignore[misc]
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_read_only_folder(fedapa: Call, small: Path, tmp_path: Path) -> None:
    run = ("run", small, "--method", "local", "--out", tmp_path / "disk" / "out")
    with mounted(tmp_path / "disk", "size=9m") as remount:
        remount("ro")
        assert_one_line_and_a_hint(fedapa(*run), "cannot be written to")
        remount("rw")
        assert fedapa(*run).code == 0
        remount("ro")
        assert fedapa("compare", tmp_path / "disk" / "out").code == 0  # reading needs no writing
        assert fedapa("resume", tmp_path / "disk" / "out").code == 0  # nothing is left to do


def test_a_full_disk_and_room_again(fedapa: Call, small: Path, tmp_path: Path) -> None:
    run = ("run", small, "--method", "fedapa")
    assert fedapa(*run, "--out", "whole").code == 0
    with mounted(tmp_path / "disk", "size=500k") as remount:
        out = tmp_path / "disk" / "out"
        answer = fedapa(*run, "--out", out)
        assert_one_line_and_a_hint(answer, "full", code=1)
        assert not list(out.rglob("*.part"))
        remount("size=9m")
        assert fedapa("resume", out).code == 0
        numbers = [run_db.numbers(p / "fedapa-seed0" / "run.db") for p in (out, tmp_path / "whole")]
    assert numbers[0] == numbers[1]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond this, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [100, 5_000, 60_000, 200_000])
def test_files_that_cannot_grow_and_room_again(fedapa: Call, small: Path, tmp_path: Path, size: int) -> None:
    run = ("run", small, "--method", "fedapa")
    with largest_file(size):
        answer = fedapa(*run, "--out", "out")
    assert_one_line_and_a_hint(answer, "cannot write", code=1)
    assert not list((tmp_path / "out").rglob("*.part"))
    assert fedapa(*run, "--out", "out").code == 0
    assert fedapa(*run, "--out", "whole").code == 0
    numbers = [run_db.numbers(tmp_path / name / "fedapa-seed0" / "run.db") for name in ("out", "whole")]
    assert numbers[0] == numbers[1]


# ------------------------------------------------------------------------------------------- folders that were damaged


@pytest.fixture
def out(fedapa: Call, small: Path, tmp_path: Path) -> Path:
    assert fedapa("run", small, "--method", "local,fedavg", "--set", "run.rounds=2", "--out", "out").code == 0
    return tmp_path / "out"


def test_a_garbage_run_db(fedapa: Call, out: Path) -> None:
    (out / "local-seed0" / "run.db").write_bytes(b"garbage" * 999)
    said = "local-seed0/run.db is not a readable run.db"
    for words in (("compare", out / "local-seed0"), ("resume", out)):
        assert_one_line_and_a_hint(fedapa(*words), said)
    others = fedapa("compare", out)  # one damaged run does not hide the rest, and is not hidden either
    assert others.code == 0
    assert said in others.err
    assert "fedavg" in others.out
    assert "local " not in others.out.replace("vs local", "").replace("no local on the same allocation", "")


def test_a_deleted_config(fedapa: Call, out: Path) -> None:
    (out / "local-seed0" / "config.toml").unlink()
    assert fedapa("compare", out).code == 0
    (out / "local-seed0" / "run.db").write_bytes(b"")  # not finished, so resume has to know how to go on
    assert_one_line_and_a_hint(fedapa("resume", out), "cannot read", "local-seed0/config.toml")


def test_a_config_that_was_edited(fedapa: Call, out: Path) -> None:
    run = out / "local-seed0"
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("lr = 0.1", "lr = 0.2"))
    with ledger_open(run) as keeper:
        keeper.describe({"status": "running"}, [])
    assert_one_line_and_a_hint(fedapa("resume", run), "holds another run", "lr=0.1")
    (run / "config.toml").write_text(text)
    assert fedapa("resume", run).code == 0


@contextmanager
def ledger_open(run: Path) -> Iterator[run_db.Ledger]:
    keeper = run_db.Ledger(run / "run.db")
    try:
        yield keeper
    finally:
        keeper.close()


def test_all_checkpoints_damaged(fedapa: Call, out: Path) -> None:
    run = out / "local-seed0"
    with ledger_open(run) as keeper:
        keeper.describe({"status": "running"}, [])
    for path in (run / "checkpoints").iterdir():
        path.write_bytes(b"x")
    assert_one_line_and_a_hint(fedapa("resume", run), "no checkpoint", "new folder", code=1)
    assert run_folder.status(run) == "failed"
    assert fedapa("compare", out).code == 0


def test_a_planned_run_that_never_started(fedapa: Call, out: Path, small: Path) -> None:
    run = out / "local-seed0"
    for name in ("run.db", "env.json", "log.txt"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    assert fedapa("compare", out).code == 0
    assert fedapa("resume", out).code == 0
    assert run_folder.status(run) == "finished"


@pytest.mark.parametrize("name", ["../../../evil", "/tmp/evil", "a/b", ".."])
def test_a_newcomers_name_leads_nowhere_else(name: str, fedapa: Call, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "new.csv").write_text("label\n1\n")
    answer = fedapa("onboard", tmp_path / "run", tmp_path / "new.csv", "--name", name)
    assert (answer.code, "cannot name a client" in answer.err) == (2, True)
