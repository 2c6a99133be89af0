"""Real processes over TLS on loopback: the same bits as in one process, whoever is killed when.

They take minutes, and run in `make test-federation`.
"""

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from federation import REAL, Federation, assert_same, events, fedapa, kill, trained, wait, wait_for_round
from fleet import in_process

from fedapa.federation.enrolment import read_agreement
from fedapa.federation.releases import COUNTED
from fedapa.store import checkpoint
from fedapa.transports.flower.control import Control

METHOD = "fedapa+noised"
pytestmark = REAL


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start()
        yield made
    finally:
        made.close()


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
    assert all(row["MB"] > 0 and row["after"] > 50 and row["round"] == 5 for row in shown["runs"])


def test_killed_one_after_another_nothing_is_lost_and_nothing_counted_twice(federation):
    """kill -9 of the SuperLink, of one site's SuperNode and another one's worker, and of the coordinator, each in the
    middle of a round."""
    run = federation.folder / "storm" / "fedapa-seed0"
    process = federation.run("storm", "--set", "run.rounds=5")
    wait_for_round(run, 1)
    time.sleep(2)
    kill(federation.superlink())
    wait_for_round(run, 2)
    time.sleep(1)
    kill(federation.worker("cedar"))
    time.sleep(1)
    kill(federation.node("birch"))
    wait_for_round(run, 3)
    time.sleep(2)
    kill(process.pid)
    process.wait()
    fedapa("coordinator", "resume", "storm", cwd=federation.folder)
    assert trained(run) == [4] * 5
    assert_same(federation, run)


def test_a_curious_coordinator_of_noised_uploads_learns_nothing_about_the_noise(federation):
    """Over the real SuperLink, with a site's worker and the coordinator killed on the way.

    The coordinator plays the first round itself, by the same code, seed and even rows, with the noise and without.
    """
    words = ("--method", METHOD, "--set", f"method.{METHOD}.noise=0.05", "--set", "run.rounds=3")
    run = federation.folder / "noised" / f"{METHOD}-seed0"
    process = federation.run("noised", *words)
    wait_for_round(run, 1)
    kill(federation.worker("amber"))
    wait_for_round(run, 2)
    kill(process.pid)
    process.wait()
    fedapa("coordinator", "resume", "noised", cwd=federation.folder)
    assert trained(run) == [4] * 3
    terms = read_agreement(run).terms
    silent = replace(terms, config=terms.config.replace("noise = 0.05", "noise = 0.0"))
    assert silent.config != terms.config
    last = checkpoint.newest(run / "checkpoints").state.server["theta"]
    guess, clean = (first_uploads(each) for each in (terms, silent))
    for i, name in enumerate(terms.names):
        place = federation.folder / "kits" / name / "states" / terms.run
        assert len(set(json.loads((place / COUNTED).read_text())["requests"])) == 3
        assert len(json.loads((place / COUNTED).read_text())["requests"]) == 3  # nothing was noised twice
        (first,), (third,) = (list(place.glob(f"upload-{t:06d}-*")) for t in (1, 3))
        assert torch.equal(checkpoint.read_tree(third)["up/theta"], last[i])  # what was kept is what was sent
        noise = (checkpoint.read_tree(first)["up/theta"] - clean[i]).numpy()
        assert noise.std() == pytest.approx(0.05, rel=0.1)
        predicted = (guess[i] - clean[i]).numpy()
        assert predicted.std() == pytest.approx(0.05, rel=0.1)
        assert abs(np.corrcoef(noise, predicted)[0, 1]) < 5 / len(noise) ** 0.5


def test_what_a_killed_coordinator_left_in_the_superlink_is_dropped(federation):
    """Its run ends when its heartbeat has expired; the next run that starts has the rest deleted."""
    database = federation.coordinator.database

    def left() -> int:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
            tables = ("message_ins", "message_res", "objects")
            return sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)

    run = federation.folder / "killed" / "fedavg-seed0"
    process = federation.run("killed", "--method", "fedavg", "--set", "run.rounds=50")
    wait_for_round(run, 1)
    wait(lambda: left() > 0, 60, 0.05)
    kill(process.pid)
    process.wait()
    control = Control(federation.coordinator)
    try:
        wait(lambda: control.drop_ended_runs() or left() == 0, 90, 1.0)
    finally:
        control.close()


def first_uploads(terms):
    """theta [sites, P] that the server would have after the first round, if sites drew as a simulation does."""
    found = in_process(replace(terms, config=terms.config.replace("rounds = 3", "rounds = 1")))
    return found.state.server["theta"]
