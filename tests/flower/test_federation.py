"""Real processes over TLS on loopback: the same bits as in one process, whoever is killed when.

They take minutes, and run in `make test-federation`.
"""

import os
import time

import pytest
from federation import Federation, assert_same, events, fedapa, kill, trained, wait_for_round

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
