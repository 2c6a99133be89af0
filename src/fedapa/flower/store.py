"""A site's own states on its own disk: one file per run and round, named by content, written before anything is sent.

The coordinator says which one it last accepted. That one is loaded, or the visit fails: another would train a round
twice, or lose one.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from fedapa.core.tree import digest
from fedapa.errors import RunError
from fedapa.run.checkpoint import from_record, read_tree, sweep, to_record, write_tree
from fedapa.run.transport import Record

NAME = re.compile(r"round-(\d{6})-([0-9a-f]{16})\.safetensors")
RUN = re.compile(r"[0-9a-f]{8,64}")


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, run: str, rounds: int, record: Record) -> str:
        """Keep the state after so many rounds; answers its digest once it is safely on the disk."""
        tree = from_record(record)
        found = digest(tree)
        place = self._place(run)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write {place}: {error.strerror}", "is the disk full or read-only?") from error
        write_tree(_path(place, rounds, found), tree)
        return found

    def load(self, run: str, rounds: int, wanted: str) -> Record:
        """Exactly that state; an error where it is missing or damaged."""
        path = _path(self._place(run), rounds, wanted)
        if not path.is_file():
            raise RunError(f"the state after round {rounds} ({wanted[:16]}) is not on this disk")
        tree = read_tree(path)
        if digest(tree) != wanted:
            raise RunError(f"{path.name} is not the state that was accepted")
        return to_record(tree)

    def prune(self, run: str, keep_from: int) -> None:
        """Drop the states that are older than any that can be asked for, and leftovers of a killed process."""
        place = self._place(run)
        if place.is_dir():
            sweep(place)
        for path, rounds in self._states(place):
            if rounds < keep_from:
                with suppress(OSError):
                    path.unlink()

    def rounds(self, run: str) -> list[int]:
        """Rounds of which there is a state."""
        return sorted(rounds for _, rounds in self._states(self._place(run)))

    def _states(self, place: Path) -> list[tuple[Path, int]]:
        found = [(path, NAME.fullmatch(path.name)) for path in place.glob("round-*")]
        return [(path, int(match.group(1))) for path, match in found if match]

    def _place(self, run: str) -> Path:
        if not RUN.fullmatch(run):  # it becomes a folder's name
            raise RunError(f"{run[:40]!r} does not name a run")
        return self.folder / run


def _path(place: Path, rounds: int, found: str) -> Path:
    return place / f"round-{rounds:06d}-{found[:16]}.safetensors"
