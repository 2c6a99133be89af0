"""Real processes over TLS on loopback: the same bits as in one process, whoever is killed when.

They take minutes, and run in `make test-federation`.
"""

import os
import signal
import time
from pathlib import Path

import pytest
from federation import Federation, fedapa, kill, wait, wait_for_round
from fleet import NAMES, client_digests, in_process, server_digest

from fedapa.core.tree import digest
from fedapa.flower.coordinate import read_agreement
from fedapa.flower.store import Store
from fedapa.flower.transport import _from_record
from fedapa.run import checkpoint, ledger

pytestmark = pytest.mark.skipif(
    os.environ.get("FEDAPA_FEDERATION") != "1", reason="takes minutes: make test-federation"
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def assert_same(federation: Federation, run: Path, absent: frozenset[tuple[int, int]] = frozenset()) -> None:
    """Server and every site's state, on the server's word and on the sites' disks, equal the run in one process."""
    agreement = read_agreement(run)
    found = checkpoint.newest(run / "checkpoints")
    here = in_process(agreement.terms, absent)
    standings = [_from_record(record) for record in found.records]
    assert digest(found.state.server) == server_digest(here)
    assert [standing.digest for standing in standings] == client_digests(here)
    for name, standing in zip(NAMES, standings, strict=True):
        store = Store(federation.folder / "kits" / name / "states")
        record = store.load(agreement.terms.run, standing.accepted, standing.digest)
        assert digest(checkpoint.from_record(record)) == standing.digest


def events(run: Path) -> list[tuple[int, int | None, str, str]]:
    with ledger.reading(run / "run.db") as db:
        return ledger.events(db)


def trained(run: Path) -> list[int]:
    with ledger.reading(run / "run.db") as db:
        return [row[0] for row in db.execute("SELECT trained FROM round ORDER BY round")]


def test_five_methods_have_the_bits_of_one_process(federation):
    process = federation.run("same", "--method", "fedapa,fedavg,fedpac,pfedhn,apple")
    assert process.wait(1500) == 0
    runs = sorted((federation.folder / "same").iterdir())
    assert len(runs) == 5
    for run in runs:
        assert_same(federation, run)
        assert events(run) == []
    shown = federation.status("same")
    assert [row["status"] for row in shown["runs"]] == ["finished"] * 5
    assert all(row["MB"] > 0 and row["after %"] > 50 and row["round"] == 5 for row in shown["runs"])


def test_killed_one_after_another_nothing_is_lost_and_nothing_counted_twice(federation):
    """kill -9 of the SuperLink, of a SuperNode, of a worker and of the coordinator, each in the middle of a round."""
    run = federation.folder / "storm" / "fedapa-seed0"
    process = federation.run("storm", "--set", "run.rounds=6")
    wait_for_round(run, 1)
    time.sleep(2)
    kill(federation.superlink())
    wait_for_round(run, 2)
    time.sleep(2)
    kill(federation.node("birch"))
    wait_for_round(run, 3)
    time.sleep(1)
    kill(federation.worker("cedar"))
    wait_for_round(run, 4)
    time.sleep(2)
    kill(process.pid)
    process.wait()
    fedapa("coordinator", "resume", "storm", cwd=federation.folder)
    assert trained(run) == [4] * 6
    assert_same(federation, run)


def test_a_node_that_hears_nothing_for_more_than_a_minute(federation):
    """As when its network is pulled: its heartbeat expires, its message comes back, and it is asked again."""
    run = federation.folder / "silence" / "fedapa-seed0"
    process = federation.run("silence", "--set", "run.rounds=4")
    wait_for_round(run, 1)
    frozen = federation.node("amber")
    os.kill(frozen, signal.SIGSTOP)
    time.sleep(75)
    os.kill(frozen, signal.SIGCONT)
    assert process.wait(900) == 0
    assert trained(run) == [4] * 4
    assert_same(federation, run)


def test_a_straggler_is_left_out_and_comes_back(federation):
    run = federation.folder / "straggler" / "fedavg-seed0"
    changes = ("--method", "fedavg", "--set", "run.rounds=4", "--set", "federation.round_timeout=45.0")
    process = federation.run("straggler", *changes)
    wait_for_round(run, 1)
    frozen = federation.worker("dune")
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait(lambda: bool(events(run)), 300)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert process.wait(900) == 0
    absent = frozenset((t, i) for t, i, kind, _ in events(run) if kind == "absent" and i is not None)
    assert absent
    assert {i for _, i in absent} == {3}
    assert "dune" in events(run)[0][3]
    assert trained(run) == [4 - sum(t == k for t, _ in absent) for k in range(4)]
    assert_same(federation, run, absent)


def test_a_site_that_joins_late_and_one_that_leaves_for_good(federation):
    """A site that is away at first is part of the run; one that is removed is not waited for, and is refused."""
    run = federation.folder / "leaving" / "fedapa-seed0"
    process = federation.run("leaving", "--set", "run.rounds=5", "--set", "federation.rejoin=5.0")
    wait_for_round(run, 1)
    fedapa("site", "leave", "kits/amber", cwd=federation.folder)
    wait(lambda: bool(events(run)), 300)
    federation.join(["amber"])
    fedapa("coordinator", "remove-site", "dune", cwd=federation.folder)
    assert process.wait(900) == 0
    absent = frozenset((t, i) for t, i, kind, _ in events(run) if kind == "absent" and i is not None)
    assert (4, 3) in absent
    assert any(i == 0 for _, i in absent)
    assert_same(federation, run, absent)
    federation.wait_online(3)
    states = {site["site"]: site["state"] for site in federation.status()["sites"]}
    assert states["dune"] == "removed"
