"""Run by hand: python tests/dashboard/measure.py. A run of 500 rounds and 100 clients, watched in a real browser.

First paint, what the page takes in the browser, and how much slower the writer gets, measured side by side: turns of
rounds with and without a viewer follow each other, so that both see the same machine.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving import Writer

from browser import open_browser
from command import started

ROUNDS, CLIENTS, TURNS, TURN = 500, 100, 8, 4
ROUND_SECONDS = 1.0  # between two writings; real rounds of 100 clients take longer


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, open_browser() as looker:
        top = Path(folder) / "runs"
        writer = Writer(top / "fedapa-seed0", CLIENTS, ROUNDS + 2 * TURNS * TURN)
        began = time.monotonic()
        writer.play(ROUNDS)
        print(f"{ROUNDS} rounds of {CLIENTS} clients written in {time.monotonic() - began:.1f} s")
        with started("watch", top, "--port", 0) as process:
            address = process.stdout.readline().split()[-1]  # type: ignore[union-attr]
            for path in ("overview", "clients?client=3", "collaboration"):
                look(looker.browser, address + path)
            slow_down(looker.browser, address, writer, process.pid)
        writer.finish()


def look(browser: object, address: str) -> None:
    tab = browser.new_page(viewport={"width": 1400, "height": 900})  # type: ignore[attr-defined]
    tab.goto(address)
    tab.locator("main[data-version]").wait_for()
    tab.locator(".chart[data-drawn]").first.wait_for()
    time.sleep(1)
    paints = tab.evaluate("performance.getEntriesByType('paint').map(e => [e.name, Math.round(e.startTime)])")
    session = tab.context.new_cdp_session(tab)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")["usedSize"] / 2**20
    print(f"{address}: {dict(paints)} ms, {heap:.0f} MiB of JavaScript, {_private():.0f} MiB private in its process")
    tab.close()


def _private() -> float:
    """Of the renderer that holds the page: the largest one."""
    found = [0.0]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (path / "cmdline").read_bytes():
                lines = (path / "smaps_rollup").read_text().splitlines()
                found.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024)
        except OSError:
            continue
    return max(found)


def slow_down(browser: object, address: str, writer: Writer, server: int) -> None:
    seconds: dict[bool, list[float]] = {True: [], False: []}
    spent = 0.0
    for turn in range(2 * TURNS):
        is_watched = turn % 2 == 0
        tab = browser.new_page() if is_watched else None  # type: ignore[attr-defined]
        if tab is not None:
            tab.goto(f"{address}overview")
            tab.locator(".chart[data-drawn]").first.wait_for()
        before = _cpu(server)
        for _ in range(TURN):
            began = time.perf_counter()
            writer.play()
            seconds[is_watched].append(time.perf_counter() - began)
            time.sleep(ROUND_SECONDS)
        if tab is not None:
            spent += _cpu(server) - before
            tab.close()
    with_viewer, alone = (statistics.median(seconds[key]) for key in (True, False))
    whole = ROUND_SECONDS + alone
    print(f"writing a round: {1000 * with_viewer:.2f} ms with a viewer, {1000 * alone:.2f} ms alone (medians)")
    print(f"that is {100 * (with_viewer - alone) / whole:+.2f} % of a round of {whole:.2f} s")
    print(f"the server took {100 * spent / (TURNS * TURN * whole):.1f} % of one core while a viewer was there")


def _cpu(process: int) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
