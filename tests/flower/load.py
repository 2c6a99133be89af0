"""Many light sites that ask for work through the reverse proxy, for minutes: nobody may be dropped.

python tests/flower/load.py --sites 100 --minutes 10
python tests/flower/load.py --train 20 --rounds 5

Every site is the network half of a SuperNode (Flower's own connection, with our heartbeats) in a thread; none trains.
The SuperLink and nginx are the real ones. Every few seconds the SuperLink is asked who is offline. Exits with 1 if
anybody ever was, once all had arrived. With --train, real sites on this machine train a few rounds instead; each must
take part in every round, with the bits of one process.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from federation import Federation, assert_same, trained, wait
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_connection import http_request_response

from fedapa.federation import processes
from fedapa.federation.registry import Coordinator
from fedapa.transports.flower import supernode
from fedapa.transports.flower.control import Control

POLL = 3.0  # seconds, as a real site asks
EVERY = 5.0  # seconds between two looks at who is online


class Light(threading.Thread):
    """One site without a worker. ``seconds`` has how long each poll took."""

    def __init__(self, kit: Path, ca: Path, address: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.kit, self.ca, self.address, self.stop = kit, ca, address, stop
        self.seconds: list[float] = []
        self.failures: Counter[str] = Counter()

    def run(self) -> None:
        key = load_ssh_private_key((self.kit / "site.key").read_bytes(), None)
        while not self.stop.is_set():  # a supervisor starts it again, as at a real site
            try:
                self._serve((key, key.public_key()))
            except (Exception, SystemExit) as error:
                self.failures[f"{type(error).__name__}: {error}"[:150]] += 1
                self.stop.wait(1.0)

    def _serve(self, keys: tuple) -> None:
        with http_request_response(self.address, False, str(self.ca), keys) as (_, receive, *_rest):
            while not self.stop.wait(POLL):
                began = time.monotonic()
                receive()
                self.seconds.append(time.monotonic() - began)


def offline(control: Control) -> list[str]:
    return [node.name for node in control.nodes() if node.status != "online"]


def processor_seconds(pid: int) -> float:
    """Of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def sites(folder: Path, names: list[str], minutes: float) -> None:
    """In a process of its own: a part of the sites, until the time is over."""
    supernode.mend()
    fleet_http_connection.os = SimpleNamespace(kill=lambda *_: None, getpid=lambda: 0)  # a refused one ends alone
    coordinator, stop = Coordinator(folder / "coordinator"), threading.Event()
    found = [Light(folder / "kits" / name, coordinator.ca, coordinator.fleet_address, stop) for name in names]
    for site in found:
        site.start()
    with suppress(KeyboardInterrupt):
        time.sleep(60 * minutes)
    stop.set()
    for site in found:
        site.join(40)
    polls = sorted(value for site in found for value in site.seconds)
    failures = sum((site.failures for site in found), Counter())
    late = polls[int(0.99 * (len(polls) - 1))]
    told = f"median {statistics.median(polls):.3f} s, 99 % {late:.3f} s, most {polls[-1]:.3f} s"
    print(f"{len(names)} sites: {len(polls)} polls, {told}; errors: {dict(failures) or 'none'}", flush=True)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--sites", type=int, default=100)
    asked.add_argument("--minutes", type=float, default=10.0)
    asked.add_argument("--train", type=int, default=0, help="so many real sites that train, instead of light ones")
    asked.add_argument("--rounds", type=int, default=5, help="that real sites train")
    asked.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    wanted = asked.parse_args()
    if wanted.part:
        sites(Path(wanted.part[0]), wanted.part[1:], wanted.minutes)
        return 0
    if wanted.train:
        train(wanted.train, wanted.rounds)
        return 0
    names = [f"site-{k:03}" for k in range(wanted.sites)]
    with tempfile.TemporaryDirectory(prefix="fedapa-load-", ignore_cleanup_errors=True) as place:
        # Fast tests ask often; here sites ask and say that they are there as often as real ones do.
        federation = Federation(Path(place), processes.free_port(), names, pace={})
        parts = []
        try:
            federation.spawn("coordinator", "start")
            wait(lambda: all(site.node for site in federation.coordinator.members()))
            arriving = (60 + 2 * wanted.sites) / 60  # minutes at most
            for half in (names[::2], names[1::2]):
                words = [sys.executable, __file__, "--minutes", str(wanted.minutes + arriving), "--part", place, *half]
                parts.append(subprocess.Popen(words))
            control = Control(federation.coordinator)
            wait(lambda: not offline(control), 60 * arriving - EVERY, 1.0)
            dropped, looks = watch(control, 60 * wanted.minutes, federation.superlink())
            print(f"{wanted.sites} sites, {looks} looks, dropped: {dict(dropped) or 'nobody'}")
        finally:
            for part in parts:
                part.send_signal(signal.SIGINT)
            for part in parts:
                part.wait(120)
            federation.close()
    return int(bool(dropped))


def train(sites: int, rounds: int) -> None:
    """Real sites, each with its SuperNode and its worker."""
    names = [f"site-{k:03}" for k in range(sites)]
    with tempfile.TemporaryDirectory(prefix="fedapa-load-", ignore_cleanup_errors=True) as place:
        federation, begin = Federation(Path(place), processes.free_port(), names), time.monotonic()
        try:
            federation.start(names)
            arrived = time.monotonic()
            print(f"{sites} sites online after {arrived - begin:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
            settings = {"data.clients": sites, "data.min_train": 20, "run.rounds": rounds}
            settings["federation.min_sites"] = sites
            words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
            assert federation.run("train", *words, "--set", "federation.round_timeout=1800.0").wait() == 0
            memory = [proportional(pid) for name in names for pid in (federation.node(name), federation.worker(name))]
            run = Path(place) / "train" / "fedapa-seed0"
            assert trained(run) == [sites] * rounds, trained(run)
            assert_same(federation, run)
        finally:
            federation.close()
    print(f"{rounds} rounds of {sites} sites in {time.monotonic() - arrived:.0f} s, nobody missing, the same bits")
    print(f"{sum(memory):.0f} MB for all, {sum(memory) / sites:.0f} MB for a site (shared pages divided)")


def proportional(pid: int) -> float:
    """MB of a process; pages that several share are divided among them."""
    (line,) = [line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024


def watch(control: Control, seconds: float, superlink: int) -> tuple[Counter[str], int]:
    """Who was offline, in how many looks."""
    dropped, looks, begin, spent = Counter[str](), 0, time.monotonic(), processor_seconds(superlink)
    told = 0.0
    while (now := time.monotonic() - begin) < seconds:
        try:
            away = offline(control)
        except httpx.TransportError:  # it is busy
            time.sleep(EVERY)
            continue
        dropped.update(away)
        looks += 1
        if away or now >= told:
            busy = (processor_seconds(superlink) - spent) / max(now, 1.0)
            waiting = os.getloadavg()[0]
            print(f"{now:6.0f} s: {len(away)} offline, SuperLink {busy:.0%} of a core, load {waiting:.1f}", flush=True)
            told = now + 60
        time.sleep(EVERY)
    control.close()
    return dropped, looks


if __name__ == "__main__":
    sys.exit(main())
