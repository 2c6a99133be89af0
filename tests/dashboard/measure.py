"""What watching 500 rounds of 100 clients costs. By hand: python tests/dashboard/measure.py [paint] [server] [all]

paint   how soon pages are there, and what they take in the browser
server  how much slower a real training run on all cores gets while two viewers are connected that ask for what the
        pages ask for and draw nothing: what the server and its readers of run.db cost
all     the same with two pages open in Chromium on this machine: drawing takes the same cores

Training is Fashion-MNIST (FEDAPA_DATA) with LeNet-5, every client in every round, so that rounds are alike. Stretches
with and without viewers follow each other; each with viewers is compared with the two around it, and so is every other
one without, which says how much the machine varies by itself. Clock: all that happens to a round, also by other
programs; cores: its own processor time; writing: the transaction in run.db.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving import Writer

from browser import FLAGS, open_browser
from command import started

ROUNDS, CLIENTS = 500, 100
STRETCH = 4  # rounds
SECONDS = 150  # of stretches with and without viewers
RUN = "fedapa-seed0"
CONFIG = f"""methods = ["fedapa"]
[data]
source = "fmnist"
partition = "iid"
clients = {CLIENTS}
[model]
name = "lenet5"
[training]
lr = 0.01
batch = 64
epochs = 1
[run]
rounds = 100000
participation = 1.0
"""


@contextmanager
def watched(top: Path) -> Iterator[tuple[str, int]]:
    """The address of `fedapa watch` on a folder, and its process."""
    with started("watch", top, "--port", 0) as process:
        yield process.stdout.readline().split()[-1], process.pid  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------------ paint


def paint(folder: Path) -> None:
    writer = Writer(folder / RUN, CLIENTS, ROUNDS)
    writer.play(ROUNDS)
    with watched(folder) as (address, _):
        for path in ("overview", "clients?client=3", "collaboration"):
            for _ in range(2):
                print(f"{path}: {look(address + path)}", flush=True)
    writer.finish()


FACTS = """() => ({
  paint: Math.round(performance.getEntriesByName('first-contentful-paint')[0]?.startTime),
  marks: performance.getEntriesByType('mark').map(m => [m.name, Math.round(m.startTime)]),
})"""


def look(address: str) -> str:
    """In a browser that nobody listens to until all is drawn: a debugger slows down what it looks at."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as profile, sync_playwright() as driver:
        words = ["--headless", f"--user-data-dir={profile}", "--remote-debugging-port=0", "--window-size=1400,900"]
        browser = subprocess.Popen(["chromium", *FLAGS, *words, address], stderr=subprocess.PIPE, text=True)
        try:
            port = (
                next(line for line in browser.stderr or [] if "DevTools listening" in line).split(":")[2].split("/")[0]
            )
            time.sleep(8)
            tab = driver.chromium.connect_over_cdp(f"http://127.0.0.1:{port}").contexts[0].pages[0]
            found = tab.evaluate(FACTS)
            session = tab.context.new_cdp_session(tab)
            session.send("HeapProfiler.collectGarbage")
            heap = session.send("Runtime.getHeapUsage")["usedSize"] / 2**20
            memory = f"{heap:.0f} MiB of JavaScript, {_private(browser.pid):.0f} MiB private in its process"
        finally:
            browser.terminate()
            browser.communicate()
    marks = {"filled": [t for name, t in found["marks"] if name == "filled"]}
    marks["drawn"] = [t for name, t in found["marks"] if name == "drawn"]
    return f"first paint {found['paint']} ms, filled {marks['filled']} ms, charts drawn {marks['drawn']} ms; {memory}"


def _private(browser: int) -> float:
    """Of the renderer that holds the page: the largest one."""
    found = [0.0]
    for process in _family(browser):
        try:
            if b"--type=renderer" in Path(f"/proc/{process}/cmdline").read_bytes():
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                found.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024)
        except OSError:
            continue
    return max(found)


# --------------------------------------------------------------------------------------------------------- training


def train(folder: Path) -> None:
    """A real run, as `fedapa run` does it, whose ledger has many rounds before the first; tells how rounds end."""
    from fedapa.config.experiment import execute, lay_out
    from fedapa.config.load import load
    from fedapa.store.run_db import Ledger

    real, before = Ledger.record, []

    def record(self: Ledger, log: Any, clients: int) -> None:
        if not before:
            before.extend(range(ROUNDS))
            for t in before:
                real(self, replace(log, round=t), clients)
        began = time.monotonic()
        real(self, replace(log, round=log.round + ROUNDS), clients)
        print(time.monotonic(), time.process_time(), time.monotonic() - began, flush=True)

    Ledger.record = record  # type: ignore[method-assign]
    (folder / "config.toml").write_text(CONFIG)
    (run,) = lay_out(load(str(folder / "config.toml"), []), folder / "runs")
    execute(run)


class Round(NamedTuple):
    """Seconds per round: of the clock, of all cores, and of writing run.db."""

    clock: float
    cores: float
    writing: float


class Training:
    """The training process, and when its rounds ended: by the clock, by its processor time; how long writing took."""

    def __init__(self, folder: Path) -> None:
        self.ends: list[Round] = []
        self.process = subprocess.Popen([sys.executable, __file__, "train", folder], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, daemon=True).start()
        while len(self.ends) < 3:
            assert self.process.poll() is None
            time.sleep(0.2)

    def _listen(self) -> None:
        for line in self.process.stdout or []:
            self.ends.append(Round(*map(float, line.split())))

    def stretch(self) -> Round:
        """The mean of the next whole rounds."""
        began = len(self.ends)
        while len(self.ends) <= began + STRETCH:
            time.sleep(0.02)
        ends = self.ends[began : began + STRETCH + 1]
        clock, cores = ((ends[-1][k] - ends[0][k]) / STRETCH for k in (0, 1))
        return Round(clock, cores, statistics.mean(one.writing for one in ends[1:]))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def slow_down(folder: Path, open_viewers: Callable[[str, ExitStack], list[int]]) -> None:
    """Stretches without and with viewers in turn; ``open_viewers`` gives the processes that belong to them."""
    training = Training(folder)
    alone, beside, spent, watching = [], [], dict.fromkeys(("server", "viewers"), 0.0), 0.0
    try:
        with watched(folder / "runs") as (address, server):
            time.sleep(2)
            alone.append(training.stretch())
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                with ExitStack() as stack:
                    viewers = open_viewers(address, stack)
                    before, began = (_cpu([server]), _cpu(viewers)), time.monotonic()
                    beside.append(training.stretch())
                    watching += time.monotonic() - began
                    spent["server"] += _cpu([server]) - before[0]
                    spent["viewers"] += _cpu(viewers) - before[1]
                alone.append(training.stretch())
    finally:
        training.stop()
    print(f"{len(beside)} stretches of {STRETCH} rounds with two viewers, each between two without")
    for name in Round._fields:
        without, together = ([getattr(one, name) for one in group] for group in (alone, beside))
        print(
            f"{name}: {statistics.mean(without):.4f} s per round without viewers, {statistics.mean(together):.4f} with"
        )
        print(f"  with them {_change(together, [(a + b) / 2 for a, b in pairwise(without)])}")
        around = [(a + b) / 2 for a, b in zip(without, without[2:], strict=False)]
        print(f"  the same for every other stretch without {_change(without[1:-1:2], around[::2])}")
    for name, seconds in spent.items():
        print(f"{name}: {100 * seconds / watching:.1f} % of one core")


def _change(values: Sequence[float], bases: Sequence[float]) -> str:
    percent = [100 * (value / base - 1) for value, base in zip(values, bases, strict=True)]
    error = statistics.stdev(percent) / len(percent) ** 0.5
    return f"{statistics.mean(percent):+.2f} % ± {error:.2f}, median {statistics.median(percent):+.2f} %"


def plain_viewers(address: str, stack: ExitStack) -> list[int]:
    """One looks at the overview, one at the weights, as the pages do."""
    for page in ("overview", "collaboration"):
        viewer = PlainViewer(address.split("/")[2], page)
        stack.callback(viewer.stop)
    time.sleep(1)
    return []


class PlainViewer(threading.Thread):
    def __init__(self, host: str, page: str) -> None:
        super().__init__(daemon=True)
        self.host, self.page, self.like, self.is_over = host, page, "", False
        self.start()

    def run(self) -> None:
        stream = http.client.HTTPConnection(self.host)
        stream.request("GET", "/api/stream")
        answer = stream.getresponse()
        while not self.is_over:
            if answer.readline().startswith(b"data:"):
                self._fill()
        stream.close()

    def _fill(self) -> None:
        self._get("overview")
        if self.page == "collaboration":
            self.like = json.loads(self._get(f"weights?run={RUN}&like={self.like}"))["like"]
            self._get(f"course?run={RUN}")

    def _get(self, what: str) -> bytes:
        asking = http.client.HTTPConnection(self.host)
        asking.request("GET", f"/api/{what}")
        return asking.getresponse().read()

    def stop(self) -> None:
        """Rounds end every second: it hears of it."""
        self.is_over = True
        self.join(20)


@contextmanager
def real_viewers() -> Iterator[Callable[[str, ExitStack], list[int]]]:
    with open_browser() as looker:

        def open_pages(address: str, stack: ExitStack) -> list[int]:
            for path in ("overview", f"collaboration?run={RUN}"):
                context = looker.browser.new_context(viewport={"width": 1400, "height": 900})
                stack.callback(context.close)
                tab = context.new_page()
                tab.goto(address + path)
                tab.locator(".chart[data-drawn]").first.wait_for()
            time.sleep(1)
            return _family(os.getpid(), b"chromium")

        yield open_pages


# ------------------------------------------------------------------------------------------------------------- /proc


def _family(top: int, word: bytes = b"") -> list[int]:
    """A process and all below it whose command has this word."""
    parents, found = {}, {top}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int(_stat(int(path.name))[1])
        except OSError:
            continue
    for _ in range(10):
        found |= {child for child, parent in parents.items() if parent in found}
    commands = {child: Path(f"/proc/{child}/cmdline") for child in found & parents.keys()}
    return [child for child, path in commands.items() if path.exists() and word in path.read_bytes()]


def _stat(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _cpu(processes: list[int]) -> float:
    """Seconds of processor time."""
    fields = [_stat(process) for process in processes if Path(f"/proc/{process}").exists()]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    words = sys.argv[1:] or ["paint", "server", "all"]
    if words[0] == "train":
        return train(Path(words[1]))
    for word in words:
        print(f"-- {word}", flush=True)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            if word == "paint":
                paint(Path(folder))
            elif word == "server":
                slow_down(Path(folder), plain_viewers)
            else:
                with real_viewers() as open_pages:
                    slow_down(Path(folder), open_pages)
    return None


if __name__ == "__main__":
    main()
