"""Flower's own simulation, started by Flower's own command, has the bits of the run in one process."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from federation import REAL
from fleet import client_digests, in_process, server_digest

from fedapa.core.tree import digest
from fedapa.federation.enrolment import read_agreement
from fedapa.federation.remote_transport import _from_record
from fedapa.store import checkpoint

SCRIPT = Path(__file__).parents[2] / "examples" / "ray.sh"
pytestmark = [
    *REAL,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'fedapa[ray]'"),
]


def test_a_simulation_by_ray_has_the_same_bits(tmp_path):
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # of the fedapa under test
    done = subprocess.run([SCRIPT, tmp_path], env=env, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    found, terms = checkpoint.newest(tmp_path / "run" / "checkpoints"), read_agreement(tmp_path / "run").terms
    here = in_process(terms)
    assert digest(found.state.server) == server_digest(here)
    assert [_from_record(record).digest for record in found.records] == client_digests(here)
    left = [path for path in Path("/proc").glob("[0-9]*/environ") if f"FLWR_HOME={tmp_path}/flwr" in text_of(path)]
    assert not left


def text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
