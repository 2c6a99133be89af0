"""Progress where there is no terminal: a line on standard error now and then, with the time left."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, Task, TaskID

FIRST, EVERY = 3.0, 10.0  # seconds until the first line, and between two


class ProgressLines(Progress):
    """Counts as a bar does and draws nothing. The first task is the whole, the others are its parts."""

    def __init__(self) -> None:
        super().__init__(console=Console(stderr=True), disable=True)
        self._began = time.monotonic()
        self._next = self._began + FIRST

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._say(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._say(task_id)

    def _say(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if now < self._next or task_id not in self.task_ids:
            return
        self._next = now + EVERY
        click.echo(line(self.tasks[0], self._tasks[task_id], now - self._began), err=True)


def line(whole: Task, part: Task, elapsed: float) -> str:
    """What is done of the part and of the whole, and how long the rest will take at this pace."""
    parts = [_counted(part)] if part is whole else [_counted(part), _counted(whole)]
    left = whole.time_remaining
    parts += [f"{timedelta(seconds=round(left))} left"] if left is not None else []
    return f"[{timedelta(seconds=round(elapsed))}] {'; '.join(parts)}"


def _counted(task: Task) -> str:
    of = "" if task.total is None else f"/{task.total:g}"
    note = f", {task.fields['note']}" if task.fields.get("note") else ""
    return f"{task.description} {task.completed:g}{of}{note}"
