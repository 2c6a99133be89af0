"""A site's states on its own disk: one file per run and round, named by content, written before anything is sent.

The coordinator says which one it last accepted. That one is loaded, or the visit fails: another would train a round
twice, or lose one.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from fedapa.core.tree import digest
from fedapa.errors import FedapaError
from fedapa.federation.messages import Disclosed
from fedapa.rounds.transport import Record
from fedapa.store.atomic_io import make_folder
from fedapa.store.checkpoint import from_record, read_tree, sweep, to_record, write_atomically, write_tree

NAME = re.compile(r"round-(\d{6})-([0-9a-f]{16})\.safetensors")
UPLOAD = "upload-{:06d}-{}.safetensors"  # rounds, and the request that it answers (releases.py)
KEPT = re.compile(r"upload-(\d{6})-([0-9a-f]{16})\.safetensors")
RUN = re.compile(r"[0-9a-f]{8,64}")
SECRET = "secret"


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, run: str, rounds: int, record: Record) -> str:
        """Save the state after ``rounds`` rounds; returns its digest once it is on disk."""
        tree = from_record(record)
        found = digest(tree)
        place = self.place(run)
        try:
            write_tree(path := _path(make_folder(place), rounds, found), tree)
        except FedapaError as error:
            raise Disclosed(f"cannot write its state: {reason_of(error)}", "is the disk full or read-only?") from error
        _keep_two(place, rounds, path)
        return found

    def load(self, run: str, rounds: int, wanted: str) -> Record:
        """Load exactly that state; an error if it is missing or damaged."""
        path = _path(self.place(run), rounds, wanted)
        if not path.is_file():
            raise Disclosed(f"the state after round {rounds} ({wanted[:16]}) is not on this disk")
        try:
            tree = read_tree(path)
        except FedapaError as error:
            raise Disclosed(error.message.replace(str(path), path.name)) from error
        if digest(tree) != wanted:
            raise Disclosed(f"{path.name} is not the state that was accepted")
        return to_record(tree)

    def prune(self, run: str, keep_from: int, in_use: int) -> None:
        """Delete states and uploads that can no longer be requested, and leftovers of a killed process. The state of
        the model in use stays, whoever asks."""
        place = self.place(run)
        if place.is_dir():
            sweep(place)
        for name, first in ((NAME, min(keep_from, in_use)), (KEPT, keep_from)):
            for path, rounds in _numbered(place, name):
                if rounds < first:
                    with suppress(OSError):
                        path.unlink()

    def rounds(self, run: str) -> list[int]:
        """The rounds with a saved state."""
        return sorted(rounds for _, rounds in _numbered(self.place(run), NAME))

    def old_runs(self, days: float) -> list[Path]:
        """Folders of runs unused for so many days; never the newest, whose models may be in use."""
        ages = {path: max((file.stat().st_mtime for file in path.iterdir()), default=0.0) for path in self.runs()}
        newest = max(ages, key=lambda path: ages[path], default=None)
        return sorted(path for path, at in ages.items() if path != newest and time.time() - at > days * 86_400)

    def runs(self) -> list[Path]:
        """The folders of all runs."""
        return [path for path in self.folder.glob("*") if path.is_dir() and RUN.fullmatch(path.name)]

    def keyed(self, text: str) -> str:
        """A hash keyed by this site's secret, so that nobody else can check a guess."""
        return hmac.new(self._secret(), text.encode(), "sha256").hexdigest()[:16]

    def _secret(self) -> bytes:
        path = self.folder / SECRET
        if not path.is_file():
            write_atomically(make_folder(self.folder) / SECRET, secrets.token_bytes(32))
            path.chmod(0o600)
        return path.read_bytes()

    def place(self, run: str) -> Path:
        """The folder of one run."""
        if not RUN.fullmatch(run):  # it becomes a folder's name
            raise Disclosed(f"{run[:40]!r} does not name a run")
        return self.folder / run


def reason_of(error: FedapaError) -> str:
    """Why a write failed, without the path."""
    cause = error.__cause__
    return str(cause.strerror) if isinstance(cause, OSError) else "it failed"


def _keep_two(place: Path, rounds: int, new: Path) -> None:
    """Of the states after a round, the new one and the one before it, which may be the accepted one. A request with
    another model makes another state, and ``keep_from`` is the coordinator's."""
    others = [path for path, after in _numbered(place, NAME) if after == rounds and path != new]
    for path in sorted(others, key=lambda path: path.stat().st_mtime_ns)[:-1]:
        with suppress(OSError):
            path.unlink()


def _numbered(place: Path, name: re.Pattern[str]) -> list[tuple[Path, int]]:
    found = [(path, name.fullmatch(path.name)) for path in place.glob("*-*")]
    return [(path, int(match.group(1))) for path, match in found if match]


def _path(place: Path, rounds: int, found: str) -> Path:
    return place / f"round-{rounds:06d}-{found[:16]}.safetensors"
