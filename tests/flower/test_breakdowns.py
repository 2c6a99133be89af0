"""What befalls one site, over TLS with real processes: a pulled cable, a full disk.

They take minutes, and run in `make test-federation`. Where this machine allows it, all sites come in through the
reverse proxy, one of them from a network namespace of its own, and another one has a small disk of its own.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from subprocess import Popen
from typing import TypeVar

import pytest
from federation import OFFLINE, REAL, Federation, absences, assert_same, events, trained, wait, wait_for_round
from fleet import NAMES
from hardship import Disk, Network, disk, network

from fedapa.federation import processes, site_status
from fedapa.transports.flower import server_supervisor

pytestmark = REAL
OUTAGE = OFFLINE + 5  # seconds without network
REMOTE, CRAMPED = "birch", "cedar"  # the site with a network of its own, the site with a small disk
T = TypeVar("T")


class Hard(Federation):
    """One that can be made to suffer; ``without`` says why not."""

    network: Network | None = None
    disk: Disk | None = None
    without = ""


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Hard]:
    folder = tmp_path_factory.mktemp("federation")
    with ExitStack() as stack:
        proxy_port = processes.free_port() if server_supervisor.find_nginx() else 0
        cable, no_cable = attempt(stack, network) if proxy_port else (None, "nginx is not installed")
        made = Hard(folder, proxy_port, host=cable.host if cable else "127.0.0.1")
        made.network = cable
        made.disk, no_disk = attempt(stack, lambda: disk(folder / "kits" / CRAMPED, 8))
        made.without = no_cable or no_disk
        stack.callback(made.close)
        if cable:
            made.within[REMOTE] = cable.within
        made.start()
        yield made


def attempt(stack: ExitStack, make: Callable[[], AbstractContextManager[T]]) -> tuple[T | None, str]:
    """What was made, or why it cannot be made here."""
    try:
        return stack.enter_context(make()), ""
    except (PermissionError, FileNotFoundError) as error:
        return None, str(error)


def test_a_site_whose_network_is_pulled_mid_round_is_asked_again(federation):
    """It has its request and cannot answer: its heartbeat expires, its message comes back, and it is asked again."""
    run, process = pulled(federation, "waited", 4, 300.0)
    time.sleep(OUTAGE)
    assert len(trained(run)) <= 2  # the round waits for it
    federation.network.plug()
    assert process.wait(900) == 0
    assert trained(run) == [4] * 4
    assert_same(federation, run)


def test_a_site_whose_network_is_away_for_too_long_is_left_out_and_comes_back(federation):
    run, process = pulled(federation, "missed", 7, 5.0)
    wait(lambda: bool(absences(run)))
    federation.network.plug()
    assert process.wait(900) == 0
    absent, remote = absences(run), NAMES.index(REMOTE)
    assert {i for _, i in absent} == {remote}
    assert (6, remote) not in absent
    assert trained(run) == [4 - sum(t == k for t, _ in absent) for k in range(7)]
    assert_same(federation, run, absent)


def pulled(federation: Hard, out: str, rounds: int, rejoin: float) -> tuple[Path, Popen[bytes]]:
    """A run in whose second round a site's cable is pulled, just when it has received its request."""
    if federation.network is None:
        pytest.skip(f"no network of its own for a site: {federation.without}")
    process = federation.run(out, "--set", f"run.rounds={rounds}", "--set", f"federation.rejoin={rejoin}")
    wait_for_request(federation, REMOTE, 2)
    federation.network.pull()
    return federation.folder / out / "fedapa-seed0", process


def wait_for_request(federation: Federation, name: str, number: int) -> None:
    """Until a site has received what it is asked in this round of a run that just began."""
    log = federation.folder / "kits" / name / "log" / "node.log"
    start = log.stat().st_size

    def asked() -> bool:
        told = log.read_bytes()[start:].decode(errors="replace").partition(f", ROUND {number}]")[2]
        return "Received successfully" in told

    wait(asked, pause=0.02)


def test_a_full_disk_at_a_site_costs_its_rounds_and_nothing_else(federation):
    """To the last byte: states, logs and status of the site are all on it."""
    if federation.disk is None:
        pytest.skip(f"no disk of its own for a site: {federation.without}")
    run = federation.folder / "full" / "fedapa-seed0"
    process = federation.run("full", "--set", "run.rounds=5")
    wait_for_round(run, 1)
    federation.disk.fill()
    wait(lambda: bool(absences(run)))
    shown = site_status.read(federation.folder / "kits" / CRAMPED)["fault"]
    federation.disk.free()
    assert process.wait(900) == 0
    absent, cramped = absences(run), NAMES.index(CRAMPED)
    assert {i for _, i in absent} == {cramped}
    assert all("No space left on device" in text for _, _, _, text in events(run))
    assert "No space left on device" in shown
    assert (4, cramped) not in absent
    assert trained(run) == [4 - sum(t == k for t, _ in absent) for k in range(5)]
    assert_same(federation, run, absent)
    assert not list((federation.folder / "kits" / CRAMPED).rglob("*.part"))
