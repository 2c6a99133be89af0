"""Many viewers of one large run: how long an answer of `fedapa watch` takes.

python tests/dashboard/load.py --clients 1000 --rounds 500 --viewers 50 --seconds 30 --live

Every viewer asks for the overview, the table of clients, one client, the events and the course, again and again, with a
pause of a second like the pages. With ``--live`` a round is written every second meanwhile. Exits with 1 if the median
is above ``--most``.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import RUN, watched
from serving import Writer


class Viewer(threading.Thread):
    """Asks like the pages do; ``seconds`` has how long each answer took."""

    def __init__(self, address: str, number: int, until: float) -> None:
        super().__init__(daemon=True)
        self.host, self.number, self.until = address.split("/")[2], number, until
        self.seconds: dict[str, list[float]] = {}
        self.failures: list[str] = []

    def run(self) -> None:
        line = http.client.HTTPConnection(self.host, timeout=120)
        words = {
            "overview": "",
            "clients": f"run={RUN}",
            "client": f"run={RUN}&client={self.number}",
            "events": f"run={RUN}",
            "course": f"run={RUN}",
        }
        while time.monotonic() < self.until:
            for name, query in words.items():
                began = time.monotonic()
                line.request("GET", f"/api/{name}?{query}")
                answer = line.getresponse()
                text = answer.read()
                self.seconds.setdefault(name, []).append(time.monotonic() - began)
                if answer.status != 200 or b'"trouble"' in text:
                    self.failures.append(f"{name}: {answer.status} {text[:200]!r}")
            time.sleep(1.0)


def write_on(writer: Writer, until: float) -> None:
    while time.monotonic() < until:
        writer.play()
        time.sleep(1.0)


def told(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    middle, late = statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))]
    return f"{name:9} {len(seconds):6} answers, median {middle:.3f} s, 95 % {late:.3f} s, most {ordered[-1]:.3f} s"


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--clients", type=int, default=1000)
    asked.add_argument("--rounds", type=int, default=500)
    asked.add_argument("--viewers", type=int, default=50)
    asked.add_argument("--seconds", type=float, default=30.0)
    asked.add_argument("--most", type=float, default=1.0, help="largest median that is good enough, in seconds")
    asked.add_argument("--live", action="store_true", help="write a round every second meanwhile")
    wanted = asked.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        writer = Writer(Path(folder) / RUN, wanted.clients, wanted.rounds)
        writer.weights = writer.weights[:0]  # a matrix of a thousand clients is neither kept nor drawn
        began = time.monotonic()
        writer.play(wanted.rounds)
        size = sum(path.stat().st_size for path in (Path(folder) / RUN).iterdir()) / 1e6
        spent = time.monotonic() - began
        print(f"{wanted.clients} clients, {wanted.rounds} rounds, {size:.0f} MB, {spent:.0f} s to write", flush=True)
        with watched(Path(folder)) as (address, _):
            until = time.monotonic() + wanted.seconds
            viewers = [Viewer(address, k, until) for k in range(wanted.viewers)]
            for viewer in viewers:
                viewer.start()
            if wanted.live:
                write_on(writer, until)
            for viewer in viewers:
                viewer.join()
        writer.finish()
    found: dict[str, list[float]] = {}
    for viewer in viewers:
        for name, seconds in viewer.seconds.items():
            found.setdefault(name, []).extend(seconds)
    for name, seconds in found.items():
        print(told(name, seconds))
    everything = [value for seconds in found.values() for value in seconds]
    failures = [text for viewer in viewers for text in viewer.failures]
    print(told("all", everything), *failures[:3], sep="\n")
    return int(bool(failures) or statistics.median(everything) > wanted.most)


if __name__ == "__main__":
    sys.exit(main())
