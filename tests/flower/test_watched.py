"""A federation watched in a real browser: who is online, who was refused, what was moved, who went.

It takes two minutes, and runs in `make test-federation`.
"""

import os
import signal
import time

import pytest
from federation import REAL, Federation, wait_for_round
from fleet import NAMES

from browser import OVERFLOW, PHONE, WIDE
from command import started

pytest.importorskip("starlette", reason="the dashboard is not installed: pip install 'fedapa[dashboard]'")
pytestmark = REAL
HONEST, MALICIOUS = NAMES[:3], NAMES[3]
# Python reads this when it starts: the worker of that site sends a million times what it learned.
TAMPERING = """import sys
if "fedapa.transports.flower.worker" in sys.orig_argv:
    from fedapa.transports.flower import client_app
    pack = client_app.pack
    client_app.pack = lambda tree: pack({k: v * 1e6 if v.is_floating_point() else v for k, v in tree.items()})
"""


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path)
    (tmp_path / "tampering").mkdir()
    (tmp_path / "tampering" / "sitecustomize.py").write_text(TAMPERING)
    (tmp_path / "runs").mkdir()
    try:
        yield made
    finally:
        made.close()


def test_sites_come_attack_and_go(federation, browser):
    folder = federation.folder
    superlink = federation.spawn("coordinator", "start")
    with (
        started("watch", folder / "runs", "--coordinator", folder / "coordinator", "--port", 0) as watching,
        browser.look(watching.stdout.readline().split()[-1]) as tab,
    ):
        tab.locator("tbody", has_text=MALICIOUS).wait_for(timeout=60_000)  # enrolled, and not there yet
        federation.join(HONEST)
        first = federation.started[-len(HONEST)]
        path = os.pathsep.join([str(folder / "tampering"), os.environ.get("PYTHONPATH", "")])
        federation.spawn("site", "join", f"kits/{MALICIOUS}", PYTHONPATH=path)
        federation.wait_online(4)
        tab.locator("tbody tr", has_text="online").nth(3).wait_for(timeout=60_000)
        assert [cells(tab, name)[2:5] for name in NAMES] == [["0", "0", "0.0 KiB"]] * 4

        patience = ["--set", "federation.rejoin=5", "--set", "federation.quarantine_after=100"]
        federation.run("runs", "--set", "run.rounds=500", *patience)
        wait_for_round(folder / "runs" / "fedapa-seed0", 2)
        tab.locator("tbody tr", has_text=MALICIOUS).locator(".alarm").wait_for(timeout=60_000)
        assert int(cells(tab, MALICIOUS)[2]) >= 1
        for name in HONEST:
            assert cells(tab, name)[2] == "0"
            assert cells(tab, name)[4].endswith(("KiB", "MiB"))
            assert cells(tab, name)[4] != "0.0 KiB"

        first.send_signal(signal.SIGTERM)
        tab.locator("tbody tr", has_text=NAMES[0]).locator(".cut-off", has_text="offline").wait_for(timeout=180_000)
        assert cells(tab, NAMES[1])[1].endswith("online")
        wait_for_round(folder / "runs" / "fedapa-seed0", 6)
        for width in (WIDE, PHONE):
            tab.set_viewport_size({"width": width, "height": 900})
            time.sleep(0.5)
            assert tab.evaluate(OVERFLOW) <= 0
        assert int(cells(tab, NAMES[0])[3]) >= 1  # rounds absent

        tab.goto(f"{tab.url.rsplit('/', 1)[0]}/events?kind=refused")
        tab.locator("tbody", has_text=f"client {MALICIOUS} refused: theta has norm").wait_for()
        assert set(tab.locator(".kind").all_inner_texts()) == {"refused"}
        tab.keyboard.press("1")
        superlink.send_signal(signal.SIGTERM)
        tab.locator(".trouble", has_text="The SuperLink does not answer").wait_for(timeout=60_000)
        assert cells(tab, NAMES[1])[1].endswith("unknown")
        assert browser.faults == []


def cells(tab, site):
    """Site, state, refusals, rounds absent, moved, since."""
    return [text.replace("\n", " ") for text in tab.locator("tr", has_text=site).locator("th, td").all_inner_texts()]
