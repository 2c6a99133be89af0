"""Many rounds of a real federation with a random kill every few of them; at the end, the bits of one process.

python tests/flower/soak.py --rounds 200 --minutes 60 --seed 0 --out soak.json
"""

import argparse
import json
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from federation import Federation, absences, assert_same, kill, trained, wait
from fleet import NAMES

from fedapa.federation import processes
from fedapa.federation.site_store import Store
from fedapa.store import checkpoint, run_db
from fedapa.store.run_db import is_begun
from fedapa.store.run_folder import rounds_done, status
from fedapa.transports.flower import server_supervisor

KINDS = ("superlink", "coordinator", "node", "worker")
STUCK = 900.0  # seconds without another round
VERSIONS = checkpoint.KEEP + 3  # states of one run that a site may keep: of checkpoints, of one being written, of now
LARGER = 1.5  # times the memory or disk of the beginning that count as growing without bound
ASKED = re.compile(r", ROUND (\d+)\]\n[^\n]*Receiving: train message")


@dataclass
class Kill:
    kind: str
    site: str
    round: int  # that was under way, from 1
    at: float
    recovered: float | None = None  # seconds to the end of the first round after this one with everybody in it


@dataclass
class Size:
    """What the federation takes of the machine."""

    round: int
    rss: dict[str, float] = field(default_factory=dict)  # MB of the largest of each kind
    database: float = 0.0  # MB
    states: float = 0.0  # MB, of all sites
    versions: int = 0  # most that a site keeps
    checkpoints: int = 0


@dataclass
class Storm:
    federation: Federation
    rounds: int
    every: int
    minutes: float
    timeout: float
    chance: random.Random
    kills: list[Kill] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    ends: dict[int, float] = field(default_factory=dict)  # when a round was seen to be over, from 1
    resumes: int = 0

    @property
    def run(self) -> Path:
        return self.federation.folder / "soak" / "fedapa-seed0"

    def play(self) -> None:
        patience = (f"federation.round_timeout={self.timeout}", f"federation.rejoin={self.timeout / 2}")
        words = [word for change in (f"run.rounds={self.rounds}", *patience) for word in ("--set", change)]
        self.process = self.federation.run("soak", *words)
        wait(lambda: self.process.poll() is not None or is_begun(self.run / "run.db"))
        assert self.process.poll() is None, f"it does not begin: see {self.federation.folder}/run.log"
        begin = moved = time.monotonic()
        seen = 0
        while not (self.process.poll() is not None and status(self.run) == "finished"):
            time.sleep(0.3)
            if self.process.poll() is not None and status(self.run) != "finished":
                self.process = self.federation.spawn("coordinator", "resume", "soak")
                self.resumes += 1
            now, done = time.monotonic(), rounds_done(self.run)
            if done == seen:
                assert now - moved < STUCK, f"round {done + 1} does not end"
                continue
            self.ends |= dict.fromkeys(range(seen + 1, done + 1), now)
            if done // 10 > seen // 10 or not self.sizes:
                self.sizes.append(self.measure(done))
                print(f"{now - begin:6.0f} s  {self.sizes[-1]}", flush=True)
            if (
                now - begin < 60 * self.minutes
                and done < self.rounds
                and self.chance.random() < (done - seen) / self.every
            ):
                self.strike(done + 1)
            seen, moved = done, now
        self.ends |= dict.fromkeys(range(seen + 1, self.rounds + 1), time.monotonic())  # while somebody was killed
        self.sizes.append(self.measure(self.rounds))

    def strike(self, number: int) -> None:
        """Somebody, somewhere in the round that just began."""
        kind, site = self.chance.choice(KINDS), self.chance.choice(NAMES)
        time.sleep(4 * self.chance.random())
        try:
            pid = self.pid(kind, site)
        except (AssertionError, ValueError):
            return  # it is down already
        kill(pid)
        self.kills.append(Kill(kind, site if kind in ("node", "worker") else "", number, time.monotonic()))
        print(f"          round {number}: kill -9 {kind} {self.kills[-1].site}", flush=True)

    def pid(self, kind: str, site: str) -> int:
        if kind == "coordinator":
            assert self.process.poll() is None
            return self.process.pid
        return self.federation.superlink() if kind == "superlink" else getattr(self.federation, kind)(site)

    def measure(self, number: int) -> Size:
        size, home = Size(number), self.federation.folder
        for kind in KINDS:
            found = [mb for site in NAMES if (mb := self.resident(kind, site)) is not None]
            if found:
                size.rss[kind] = max(found)
        size.database = sum(path.stat().st_size for path in (home / "coordinator").glob("superlink.db*")) / 1e6
        states = list(home.glob("kits/*/states/*/round-*"))
        size.states = sum(path.stat().st_size for path in states if path.exists()) / 1e6
        size.versions = max(Counter(path.parent for path in states).values(), default=0)
        size.checkpoints = len(list((self.run / "checkpoints").glob("round-*")))
        return size

    def resident(self, kind: str, site: str) -> float | None:
        try:
            told = Path(f"/proc/{self.pid(kind, site)}/status").read_text()
        except (AssertionError, ValueError, OSError):
            return None
        found = re.search(r"VmRSS:\s+(\d+) kB", told)
        return int(found.group(1)) / 1024 if found else None

    def recoveries(self) -> None:
        full = [t for t, count in enumerate(trained(self.run), 1) if count == len(NAMES)]
        for entry in self.kills:
            later = [self.ends[t] for t in full if t > entry.round]
            entry.recovered = min(later) - entry.at if later else None

    def repeated(self) -> int:
        """Requests that a site was sent more than once."""
        count = 0
        for name in NAMES:
            told = (self.federation.folder / "kits" / name / "log" / "node.log").read_text(errors="replace")
            count += sum(times - 1 for times in Counter(ASKED.findall(told)).values())
        return count

    def seconds(self) -> list[float]:
        with run_db.reading(self.run / "run.db") as db:
            return [row[0] for row in db.execute("SELECT seconds FROM round ORDER BY round")]


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--rounds", type=int, default=200)
    asked.add_argument("--every", type=int, default=6, help="rounds between two kills, on average")
    asked.add_argument("--minutes", type=float, default=45.0, help="no kills after that")
    # Short enough that a site whose node was killed sometimes misses a round, and sometimes is back in time.
    asked.add_argument("--timeout", type=float, default=45.0, help="seconds that a site has for its answer")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--out", type=Path, help="a JSON file for the figures")
    wanted = asked.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedapa-soak-"))
    print(f"seed {wanted.seed}, in {folder}", flush=True)
    federation = Federation(folder, processes.free_port() if server_supervisor.find_nginx() else 0)
    storm = Storm(federation, wanted.rounds, wanted.every, wanted.minutes, wanted.timeout, random.Random(wanted.seed))
    begin = time.monotonic()
    try:
        federation.start()
        storm.play()
        storm.recoveries()
        figures = summary(storm) | {"seed": wanted.seed, "seconds": time.monotonic() - begin}
        print(json.dumps(figures, indent=2))
        if wanted.out:
            wanted.out.write_text(json.dumps(figures | {"all": details(storm)}, indent=2))
        check(storm)
    finally:
        federation.close()
    shutil.rmtree(folder)  # kept for a look where something was wrong
    print("the same bits as in one process")


def summary(storm: Storm) -> dict[str, object]:
    seconds, uploads = storm.seconds(), trained(storm.run)
    by_kind = {
        kind: {"kills": len(found), "recovered after": spread([k.recovered for k in found if k.recovered is not None])}
        for kind in KINDS
        if (found := [entry for entry in storm.kills if entry.kind == kind])
    }
    hit = {entry.round for entry in storm.kills}
    return {
        "rounds": len(uploads),
        "kills": by_kind,
        "resumes": storm.resumes,
        "requests repeated": storm.repeated(),
        "site-rounds missed": len(absences(storm.run)),
        "uploads": sum(uploads),
        "seconds of a quiet round": spread([s for t, s in enumerate(seconds, 1) if t not in hit]),
        "seconds of a round with a kill": spread([s for t, s in enumerate(seconds, 1) if t in hit]),
        "at first": asdict(storm.sizes[0]),
        "at last": asdict(storm.sizes[-1]),
    }


def details(storm: Storm) -> dict[str, object]:
    return {"kills": [asdict(entry) for entry in storm.kills], "sizes": [asdict(size) for size in storm.sizes]}


def spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": statistics.median(values), "smallest": min(values), "largest": max(values)}


def check(storm: Storm) -> None:
    """The bits of one process with the same absences, every upload counted once, and no growth without bound."""
    absent, run = absences(storm.run), storm.run
    assert len(trained(run)) == storm.rounds
    assert trained(run) == [len(NAMES) - sum(t == k for t, _ in absent) for k in range(storm.rounds)]
    assert_same(storm.federation, run, absent)
    assert all(entry.recovered is not None for entry in storm.kills if entry.round < storm.rounds - 10)
    for name in NAMES:
        store = Store(storm.federation.folder / "kits" / name / "states")
        runs = [place.name for place in store.folder.iterdir() if place.is_dir()]  # beside them lies the site's secret
        assert runs
        assert all(len(store.rounds(run)) <= VERSIONS for run in runs)
    early, late = storm.sizes[1:4], storm.sizes[-3:]
    for kind in KINDS:
        before, after = ([size.rss[kind] for size in part if kind in size.rss] for part in (early, late))
        if before and after:  # it may have been down at every look
            assert max(after) <= LARGER * max(before), f"{kind}: {before} MB at first, {after} MB at last"


if __name__ == "__main__":
    main()
