"""Sweeps on other machines: the same numbers, failures stay with their run, a lost place gives its run to another."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from command import COMMAND, SMALL
from fedapa.errors import InputError, RunError
from fedapa.store import run_db
from fedapa.sweep import parcel
from fedapa.sweep.dispatch import TRIES, Dispatch, Lost
from fedapa.sweep.parcel import Item, Parcel
from fedapa.sweep.places import ssh_hosts
from fedapa.sweep.pool import ENDS, Event
from fedapa.sweep.where import parse

CONFIG = SMALL.replace('["fedapa", "fedavg", "local"]', '["fedapa", "local"]').replace("rounds = 3", "rounds = 2")


# ------------------------------------------------------------------------------------------------------- the words


@pytest.mark.parametrize(
    ("on", "found"),
    [
        ("here", ("here", [], {})),
        ("ray", ("ray", [], {})),
        ("ray://head:10001", ("ray", ["ray://head:10001"], {})),
        ("ray:10.0.0.1:6379", ("ray", ["10.0.0.1:6379"], {})),
        ("slurm:partition=cpu,timeout_min=60", ("slurm", [], {"partition": "cpu", "timeout_min": "60"})),
        ("ssh:anna*2,ben,python=/opt/p", ("ssh", ["anna*2", "ben"], {"python": "/opt/p"})),
    ],
)
def test_places_by_word(on: str, found: object) -> None:
    assert parse(on) == found


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ("rai", "did you mean ray"),
        ("ssh", "names no host"),
        ("slurm:cpu", "not KEY=VALUE"),
        ("here:x", "takes no words"),
    ],
)
def test_other_words_are_refused(on: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        parse(on)
    assert says in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize("host", ["*2", "-oProxyCommand=x", "anna*0", "anna*x"])
def test_a_host_cannot_be_an_option(host: str) -> None:
    with pytest.raises(InputError, match="is not a host"):
        ssh_hosts.places([host], {}, None)


def test_hosts_take_turns() -> None:
    assert [place.name for place in ssh_hosts.places(["anna*2", "ben"], {}, None)] == ["anna 1", "ben 1", "anna 2"]
    assert [place.name for place in ssh_hosts.places(["anna*2", "ben"], {}, 2)] == ["anna 1", "ben 1"]


# --------------------------------------------------------------------------------------------------- handing out


class Fake:
    """Plays by saying so; ``lose`` says which of its calls are lost."""

    def __init__(self, name: str, lose: Callable[[int], bool] = lambda call: False, what: str = "finished") -> None:
        self.name, self.lose, self.what, self.calls, self.stopped = name, lose, what, 0, False

    def play(self, sent: Parcel) -> Iterator[Item]:
        self.calls += 1
        yield Event(Path(sent.path), "started")
        if self.lose(self.calls):
            raise Lost("power cut")
        yield Event(Path(sent.path), self.what)

    def stop(self) -> None:
        self.stopped = True


def folders(top: Path, count: int) -> list[Path]:
    paths = [top / f"run{k}" for k in range(count)]
    for path in paths:
        path.mkdir()
        (path / "config.toml").write_text("")
    return paths


def ends(places: Sequence[Fake], runs: list[Path]) -> dict[Path, Event]:
    found: list[Event] = []
    Dispatch(places, runs).play(found.append)
    last = [event for event in found if event.what in ENDS]
    assert len(last) == len(runs)
    assert all(place.stopped for place in places)
    return {event.path: event for event in last}


def test_a_lost_place_gives_its_run_to_another(tmp_path: Path) -> None:
    bad = Fake("bad", lose=lambda call: True)
    found = ends([bad, Fake("good")], folders(tmp_path, 8))
    assert {event.what for event in found.values()} == {"finished"}
    assert bad.calls <= TRIES


@pytest.mark.parametrize("count", [2, 4])
def test_a_run_that_is_always_lost_fails_alone(tmp_path: Path, count: int) -> None:
    runs = folders(tmp_path, 4)

    class Killer(Fake):
        def play(self, sent: Parcel) -> Iterator[Item]:
            self.lose = lambda call: sent.path.endswith("run1")
            return super().play(sent)

    found = ends([Killer(f"place {k}") for k in range(count)], runs)
    assert [found[path].what for path in runs] == ["finished", "failed", "finished", "finished"]
    assert "lost by " in found[runs[1]].text
    assert "power cut" in found[runs[1]].text


def test_without_any_place_the_sweep_ends(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="every place was lost"):
        Dispatch([Fake("a", lose=lambda call: True)], folders(tmp_path, 9)).play(lambda event: None)


def test_an_interrupt_stops_what_is_being_played(tmp_path: Path) -> None:
    waiting = threading.Event()

    class Slow(Fake):
        def play(self, sent: Parcel) -> Iterator[Item]:
            yield Event(Path(sent.path), "started")
            waiting.wait(20)

        def stop(self) -> None:
            waiting.set()

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Dispatch([Slow("a")], folders(tmp_path, 1)).play(interrupt)
    assert waiting.is_set()


# ------------------------------------------------------------------------------------------------------- real runs


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("here")
    (top / "c.toml").write_text(CONFIG)
    assert sweep_on("here", top).returncode == 0
    return top / "out"


def assert_same_numbers(one: Path, other: Path) -> None:
    for name in ("local-seed0", "fedapa-seed0"):
        paths = [next(top.rglob(name)) / "run.db" for top in (one, other)]
        assert run_db.numbers(paths[0]) == run_db.numbers(paths[1])


def sweep_on(place: str, top: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    (top / "c.toml").write_text(CONFIG)
    command = [COMMAND, "sweep", "c.toml", "--out", "out", "--on", place, "--jobs", "2"]
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=top, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("shared", [None, False])
def test_a_parcel_is_played_with_the_same_numbers(tmp_path: Path, here: Path, shared: bool | None) -> None:
    for name in ("local-seed0", "fedapa-seed0"):
        run = tmp_path / name
        run.mkdir()
        (run / "config.toml").write_bytes((next(here.rglob(name)) / "config.toml").read_bytes())
        items = list(parcel.play(parcel.send(run, shared)))
        assert any(isinstance(item, bytes) for item in items) is (shared is False)
        assert [event.what for item in items if (event := parcel.receive(item, run))] == [
            "started", "round", "round", "finished",
        ]  # fmt: skip
    assert_same_numbers(here, tmp_path)


def test_an_archive_stays_in_its_folder(tmp_path: Path) -> None:
    with io.BytesIO() as memory:
        with tarfile.open(fileobj=memory, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("../evil"))
        content = memory.getvalue()
    with pytest.raises(tarfile.FilterError):
        parcel.unpack(content, tmp_path / "run")
    assert not (tmp_path / "evil").exists()


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    """A command named ssh that knows two hosts: ``up`` is this machine, ``down`` does not answer."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "ssh"
    script.write_text(
        '#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done; host=$2; shift 2\n'
        '[ "$host" = up ] || { echo "ssh: connect to host $host: No route to host" >&2; exit 255; }\nexec sh -c "$*"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script.parent)


def test_ssh_plays_the_same_numbers_and_a_host_that_is_down_gives_its_runs_away(
    tmp_path: Path, here: Path, ssh: str
) -> None:
    done = sweep_on(f"ssh:down,up,python={sys.executable}", tmp_path, ssh)
    assert done.returncode == 0, done.stderr
    assert_same_numbers(here, tmp_path / "out")


def test_hosts_that_are_down_end_the_sweep_with_the_reason(tmp_path: Path, ssh: str) -> None:
    done = sweep_on("ssh:down", tmp_path, ssh)
    assert done.returncode == 1
    assert "every place was lost" in done.stderr or "No route to host" in done.stderr


@pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed: pip install 'fedapa[slurm]'")
def test_submitit_plays_the_same_numbers(tmp_path: Path, here: Path) -> None:
    """With submitit's own local queue, since there is no Slurm here."""
    done = sweep_on("slurm:cluster=local,timeout_min=5", tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_numbers(here, tmp_path / "out")


def test_without_slurm_the_error_says_so(tmp_path: Path) -> None:
    done = sweep_on("slurm", tmp_path)
    assert done.returncode == 2
    assert "Slurm" in done.stderr or "pip install 'fedapa[slurm]'" in done.stderr
