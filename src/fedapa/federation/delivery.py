"""The model of a run that has ended is made by itself, at the site, in a process of low priority.

The site's supervisor looks for it. Two files tell what is left to do, so a site that was killed meanwhile goes on:
``ended`` in a run's states is written before the last answers of a run are sent, and ``delivery.json`` says which
answer the model in site-model/ was made from, or why there is none.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedapa.federation.kit import ENDED, IN_USE
from fedapa.federation.processes import end_process, python, spawn
from fedapa.federation.site_settings import read_settings
from fedapa.store.atomic_io import write_json

FILE = "delivery.json"
SETTLED = 15.0  # seconds without an answer: the last aggregation may still be shown to the site, or the next run begins
PRIORITY = 10  # nice: a round that is going comes first


class Answer(NamedTuple):
    """The last answer of a run: another one later makes another model."""

    run: str
    written: int  # ns, of the file that says which state is in use


def _last(folder: Path, *, ended: bool) -> Answer | None:
    """Of the kit's runs, or of those that have ended, the one that was answered last."""
    found = [path for path in (folder / "states").glob(f"*/{IN_USE}") if not ended or (path.parent / ENDED).is_file()]
    answers = [Answer(path.parent.name, path.stat().st_mtime_ns) for path in found]
    return max(answers, key=lambda answer: answer.written, default=None)


def is_idle(folder: Path) -> bool:
    last = _last(folder, ended=False)
    return last is None or time.time() - last.written / 1e9 > SETTLED


def read_delivery(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def note_delivery(folder: Path, answer: Answer, fault: str) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    write_json(folder / FILE, {"run": answer.run, "written": answer.written, "fault": fault, "at": at})


def pending(folder: Path) -> Answer | None:
    """The answer whose model is still to be made."""
    answer, done = _last(folder, ended=True), read_delivery(folder)
    if answer is None or (done.get("run"), done.get("written")) == answer:
        return None
    return answer


def describe(folder: Path) -> str:
    """The model of the last run that has ended, in words."""
    done = read_delivery(folder)
    if (answer := pending(folder)) is not None:
        return f"of run {answer.run[:8]} to be made" + ("" if read_settings(folder).deliver else ": fedapa site export")
    if not done:
        return ""
    return f"not made of run {done['run'][:8]}: {done['fault']}" if done["fault"] else f"of run {done['run'][:8]}"


def export_command(folder: Path, run: str) -> list[str]:
    return python("fedapa.cli", "site", "export", str(folder), "--run", run)


@dataclass
class Delivery:
    """Beside a site's long-lived processes: one that runs when there is a model to make."""

    folder: Path
    log: Path
    command: Sequence[str] = ()  # in place of the export
    process: subprocess.Popen[bytes] | None = None
    answer: Answer | None = None

    def start(self) -> None:
        """Nothing runs until there is something to do."""

    def look(self) -> None:
        if self.process is None:
            self._begin()
        elif (code := self.process.poll()) is not None:
            assert self.answer is not None
            if code >= 0:  # else it was killed, and is begun again
                note_delivery(self.folder, self.answer, "" if code == 0 else self._fault())
            self.process = None

    def _begin(self) -> None:
        self.answer = pending(self.folder) if is_idle(self.folder) else None
        if self.answer is not None and read_settings(self.folder).deliver:
            command = self.command or export_command(self.folder, self.answer.run)
            self.log.unlink(missing_ok=True)
            self.process = spawn(command, self.log, self.folder, PRIORITY)

    def _fault(self) -> str:
        """The error that the export printed last."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return said[-1] if said else f"see {self.log}"

    def stop(self) -> None:
        if self.process is not None:
            end_process(self.process)
