"""A sweep on a real Ray cluster of two nodes, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from command import COMMAND, SMALL
from fedapa.store import run_db, run_folder

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'fedapa[ray]'"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),  # Ray's
]
CONFIG = SMALL.replace("rounds = 3", 'rounds = 30\nengine = "torch"')
SECONDS = 600


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


def command(out: Path, *words: str) -> subprocess.Popen[str]:
    out.parent.mkdir()
    (out.parent / "c.toml").write_text(CONFIG)
    line = [COMMAND, "sweep", str(out.parent / "c.toml"), "--seeds", "2", "--out", str(out), *words]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_node_costs_time_and_nothing_else(tmp_path: Path, cluster: Any) -> None:
    second = cluster.add_node(num_cpus=1)
    away = command(tmp_path / "away" / "out", "--on", f"ray:{cluster.address}")
    wait_for_rounds(tmp_path / "away", away)
    for process in second.live_processes():
        os.kill(process[1].pid, signal.SIGKILL)
    said = away.communicate(timeout=SECONDS)
    assert away.returncode == 0, said[1]
    here = command(tmp_path / "here" / "out")
    assert here.communicate(timeout=SECONDS)
    assert here.returncode == 0
    runs = run_folder.runs_under(tmp_path / "here" / "out")
    assert len(runs) == 6
    for run in runs:
        other = tmp_path / "away" / "out" / run.name
        assert run_db.numbers(run / "run.db") == run_db.numbers(other / "run.db")


def wait_for_rounds(top: Path, process: subprocess.Popen[str]) -> None:
    """Until two runs are under way at the same time, so that both nodes are at work."""
    end = time.monotonic() + SECONDS
    while sum(run_folder.status(run) == "running" for run in run_folder.runs_under(top / "out")) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no two runs began"
        time.sleep(0.1)
