"""The same runs as a table that moves, for a terminal without a browser."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedapa.analysis.run_reader import Run, title_of
from fedapa.dashboard.board import FRESH, Board, Entry, Snapshot

ORDER = ("running", "failed", "unreadable", "cut off", "planned", "finished")
STYLES = {"running": "bold cyan", "failed": "bold red", "unreadable": "bold red", "cut off": "bold yellow"}
ROOM = 8  # lines of the terminal that are not for runs


def watch(folder: Path, console: Console | None = None) -> None:
    """Until everything is finished or Ctrl-C; in a pipe, the present state once."""
    console, board = console or Console(), Board(folder)
    if not console.is_terminal:
        console.print(picture(board, board.look(), None))
        return
    with Live(console=console, screen=False, auto_refresh=False) as live:
        while True:
            now = board.look()
            live.update(picture(board, now, console.height - ROOM), refresh=True)
            if now.entries and not any(entry.state in ("running", "planned") for entry in now.entries.values()):
                return
            time.sleep(FRESH)


def picture(board: Board, now: Snapshot, most: int | None) -> RenderableType:
    """The runs that matter most now; ``most`` lines of them, all where it is None."""
    entries = sorted(now.entries.values(), key=lambda entry: ORDER.index(entry.state))
    shown = entries if most is None else entries[: max(most, 3)]
    table = Table(header_style="bold", expand=False)
    for heading in ("run", "state"):
        table.add_column(heading, overflow="fold")
    for heading in ("rounds", "", "left", "before", "after"):
        table.add_column(heading, justify="right")
    for entry in shown:
        table.add_row(*_cells(entry))
    finished = sum(entry.state == "finished" for entry in entries)
    left = board.seconds_left(now)
    head = f"{board.folder}: {finished} of {len(entries)} runs finished"
    head += f", about {duration(left)} left" if left is not None else ""
    rest = len(entries) - len(shown)
    return Group(Text(head), table, Text(f"and {rest} more" if rest else "", style="dim"), _best(now))


def _cells(entry: Entry) -> list[RenderableType]:
    found = entry.found.result if isinstance(entry.found, Run) else None
    state = Text(entry.state, style=STYLES.get(entry.state, ""))
    if entry.reason:
        state.append(f": {entry.reason[:60]}", style="dim")
    return [
        Text(entry.name),
        state,
        f"{entry.done}/{entry.rounds or '?'}",
        ProgressBar(total=entry.rounds or 1, completed=entry.done, width=12),
        duration(entry.seconds_left) if entry.state == "running" else "",
        found.score.text(found.before.last) if found else "",
        found.score.text(found.after.last) if found else "",
    ]


def _best(now: Snapshot) -> Text:
    """Of every scenario the three best methods, by the model that each is evaluated by."""
    lines = []
    for scenario in now.scenarios:
        score = scenario.score
        ranked = sorted(scenario.rows, key=lambda row: -score.sign * row.headline.last)[:3]
        words = [f"{title_of(row.method)} {score.text(row.headline.last)}" for row in ranked]
        lines.append(f"{scenario.title}: {', '.join(words)}")
    return Text("\n".join(lines), style="dim")


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
