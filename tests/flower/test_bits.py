"""Five methods over TLS on loopback have the bits of one process.

In a file of its own, so that it runs beside the rest of `make test-federation`: nothing there takes longer.
"""

import pytest
from federation import REAL, Federation, assert_same, events

pytestmark = REAL


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path)
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
