"""Who is late, who goes and who comes, over TLS with real processes: one site, all of them, the coordinator itself.

They take minutes, and run in `make test-federation`.
"""

import os
import signal
import sqlite3
from contextlib import closing

import pytest
from federation import REAL, Federation, absences, assert_same, events, fedapa, kill, trained, wait, wait_for_round
from fleet import NAMES

from fedapa.federation.enrolment import read_agreement
from fedapa.transports.flower.control import Control

pytestmark = REAL


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_a_straggler_is_left_out_and_comes_back(federation):
    run = federation.folder / "straggler" / "fedavg-seed0"
    changes = ("--method", "fedavg", "--set", "run.rounds=4", "--set", "federation.round_timeout=15.0")
    process = federation.run("straggler", *changes)
    wait_for_round(run, 1)
    frozen = federation.worker("dune")
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait(lambda: bool(events(run)))
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert process.wait(900) == 0
    absent = absences(run)
    assert absent
    assert {i for _, i in absent} == {3}
    assert "dune" in events(run)[0][3]
    assert trained(run) == [4 - sum(t == k for t, _ in absent) for k in range(4)]
    assert_same(federation, run, absent)


def test_sites_come_and_go_while_a_run_is_going(federation):
    """One is away for a while, one is enrolled in the middle of the run and joins it, one is removed for good."""
    run = federation.folder / "leaving" / "fedapa-seed0"
    sets = ("run.rounds=16", "data.clients=5", "federation.rejoin=5.0")
    process = federation.run("leaving", *(word for change in sets for word in ("--set", change)))
    wait_for_round(run, 1)
    fedapa("coordinator", "add-site", "elm", cwd=federation.folder)
    federation.join(["elm"])
    fedapa("site", "leave", "kits/amber", cwd=federation.folder)
    wait(lambda: any(kind == "absent" for _, _, kind, _ in events(run)))
    federation.join(["amber"])
    fedapa("coordinator", "remove-site", "dune", cwd=federation.folder)
    assert process.wait(900) == 0
    agreement, told = read_agreement(run), {(i, kind) for _, i, kind, _ in events(run)}
    assert agreement.terms.names == [*NAMES, "elm"]
    assert 0 < agreement.since[4] < 16
    assert 0 < agreement.until[3] < 16
    assert {(4, "joined"), (3, "left"), (0, "absent")} <= told
    absent = absences(run)
    assert not [t for t, i in absent if i == 3 and t >= agreement.until[3]]  # nobody waits for it any more
    assert_same(federation, run, absent)
    federation.wait_online(4)
    states = {site["site"]: site["state"] for site in federation.status()["sites"]}
    assert (states["dune"], states["elm"]) == ("removed", "online")


def test_what_a_killed_coordinator_left_in_the_superlink_is_dropped(federation):
    """Its run ends when its heartbeat has expired; the next run that starts has the rest deleted."""
    database = federation.coordinator.database

    def left() -> int:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
            tables = ("message_ins", "message_res", "objects")
            return sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)

    run = federation.folder / "killed" / "fedavg-seed0"
    sets = ("run.rounds=50", "data.clients=5", "federation.min_sites=2")  # whoever is there by now
    process = federation.run("killed", "--method", "fedavg", *(word for change in sets for word in ("--set", change)))
    wait_for_round(run, 1)
    wait(lambda: left() > 0, pause=0.05)
    kill(process.pid)
    process.wait()
    control = Control(federation.coordinator)
    try:
        wait(lambda: control.drop_ended_runs() or left() == 0)
    finally:
        control.close()
