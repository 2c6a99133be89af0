"""A run's folder: config.toml, env.json, run.db, checkpoints/ and log.txt. It needs nothing from outside itself."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from fedapa.core.scores import ACCURACY, Score
from fedapa.data.federated import Federated
from fedapa.errors import InputError, RunError
from fedapa.rounds.loop import is_donated
from fedapa.rounds.round_log import RoundLog, State, watched_stride
from fedapa.rounds.tensor_storage import TensorStore
from fedapa.rounds.transport import Transport
from fedapa.store import checkpoint, provenance, run_db
from fedapa.store.atomic_io import make_folder as make_folder
from fedapa.store.atomic_io import sweep, write_json
from fedapa.store.checkpoint import Checkpoint
from fedapa.store.file_lock import flock
from fedapa.store.run_list import runs_under as runs_under
from fedapa.store.run_settings import CONFIG as CONFIG
from fedapa.store.run_settings import EXPERIMENT, SETTINGS
from fedapa.training.settings import Engine
from fedapa.version import NUMERICS

# A config and its hash grow with the keys that configs know; what counts in it, and in settings, is compared in words.
MAY_CHANGE = ("status", "config", EXPERIMENT, SETTINGS)
ClientRow = tuple[int, str, int, int, int, str]  # number, name, train, test and validation samples, labels
PACKAGES = ("fedapa", "torch", "numpy", "scipy", "scikit-learn", "safetensors")


def create(folder: Path, config: str) -> None:
    """Create the folder of a run that has not started; a folder with a config is a run."""
    make_folder(folder)
    if not (folder / CONFIG).exists():
        checkpoint.write_atomically(folder / CONFIG, config.encode())


def check_free(folder: Path, config: str) -> None:
    """Refuse a folder that holds another run; the same run is resumed."""
    if (folder / CONFIG).exists() and (folder / CONFIG).read_bytes() != config.encode():
        raise InputError(f"{folder} holds a run with another config", "choose another --out, or resume that one")


def status(folder: Path) -> str:
    """planned, running (or cut off), failed or finished."""
    if not run_db.is_begun(folder / "run.db"):
        return "planned"
    with run_db.reading(folder / "run.db") as db:
        return run_db.meta(db).get("status", "planned")


def rounds_done(folder: Path) -> int:
    """Rounds whose numbers are in run.db."""
    if not run_db.is_begun(folder / "run.db"):
        return 0
    with run_db.reading(folder / "run.db") as db:
        return run_db.totals(db).rounds


def refusals(folder: Path) -> str | None:
    """How many uploads were refused, from how many clients, and the first reason; None if none was."""
    if not run_db.is_begun(folder / "run.db"):
        return None
    with run_db.reading(folder / "run.db") as db:
        found = [(t, i, text) for t, i, kind, text in run_db.events(db) if kind == "refused"]
        visits = len(found) + run_db.totals(db).visits
    if not found:
        return None
    clients, (t, _, text) = len({i for _, i, _ in found}), found[0]
    count = f"{len(found)} of {visits} uploads, of {clients} client{'s' if clients > 1 else ''}, were refused"
    return f"{count}; first in round {t + 1}: {text} (all in {folder / 'log.txt'})"


def in_use(folder: Path) -> bool:
    """Is a process using this run? Checked by taking its lock for a moment."""
    try:
        lock(folder).close()
        return False
    except InUse:
        return True


def is_at_work(folder: Path) -> bool | None:
    """Is a process using this run? Checked without touching its lock; None if the system does not show it."""
    try:
        inode = (folder / ".lock").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except FileNotFoundError:
        return None if not Path("/proc/locks").exists() else False
    except OSError:
        return None
    return any(f":{inode} " in line for line in locks.splitlines() if "FLOCK" in line)


def kept_engine(wanted: Engine, folder: Path) -> Engine:
    """The engine of a run; ``auto`` is decided once per run, since last digits depend on the engine."""
    if wanted != "auto" or not run_db.is_begun(folder / "run.db"):
        return wanted
    with run_db.reading(folder / "run.db") as db:
        kept = run_db.meta(db).get("engine")
    return kept if kept in ("torch", "vmap", "native") else wanted  # type: ignore[return-value]


class InUse(InputError):
    """Another process uses this run."""


class RunFolder:
    """Writes a run: numbers first, then the checkpoint, so that a crash repeats a round rather than losing one."""

    def __init__(
        self,
        folder: Path,
        rounds: int,
        every: int = 1,
        tensors: TensorStore | None = None,
        scores: Sequence[Score] = (ACCURACY,),
    ) -> None:
        self.folder, self.rounds, self.every, self.tensors, self.scores = (
            folder,
            rounds,
            every,
            tensors or TensorStore(),
            scores,
        )
        self._lock = lock(folder)
        try:
            self.ledger = run_db.Ledger(folder / "run.db")
        except RunError:
            self._lock.close()
            raise
        self._writer = ThreadPoolExecutor(1)
        self._checkpoints = checkpoint.Writer(folder / "checkpoints")
        self._writing: Future[Path] | None = None
        self._transport: Transport | None = None

    def position(self) -> int:
        """The number of rounds that are done."""
        found = checkpoint.newest(self.folder / "checkpoints")
        return 0 if found is None else found.state.round

    def begin(
        self,
        transport: Transport,
        state: State,
        clients: list[ClientRow],
        meta: dict[str, str],
        session: Mapping[str, str] | None = None,
    ) -> State:
        """Describe the run, and resume from its last checkpoint if there is one.

        ``meta`` must not change between sessions of a run; ``session`` is the provenance of this session.
        """
        self._transport = transport
        self._check_same(meta)
        for place in (self.folder, self.folder / "checkpoints"):
            sweep(place)
        found = checkpoint.newest(self.folder / "checkpoints", self.tensors)
        if found is not None:
            if len(found.records) != len(clients):
                counts = f"the checkpoint has {len(found.records)} clients, the data {len(clients)}"
                raise RunError(f"{self.folder}: {counts}", "was the config changed? run again in a new folder")
            self._check_ledger(found.state.round)
            transport.restore(found.records)
            state = found.state
        self.ledger.forget_from(state.round)
        self.ledger.describe({**meta, **provenance.over_sessions(self.ledger.meta(), session or {})}, clients)
        self._note_session(state.round)
        return state

    def earlier(self) -> list[RoundLog]:
        """The rounds that were played before this session."""
        return self.ledger.logs()

    def __call__(self, log: RoundLog, state: State) -> None:
        assert self._transport is not None
        self._settle()
        first = len(state.last) - len(log.joined)
        self.ledger.describe({}, [newcomer.row(first + k) for k, newcomer in enumerate(log.joined)])
        self.ledger.record(log, len(state.last), self.scores, watched_stride(log, self.rounds))
        self._say(f"round {log.round + 1}/{self.rounds}: {len(log.trained)} clients trained")
        for event in log.events:
            self._say(f"  {event.kind}: {event.text}")
        self._checkpoints.changed([*log.trained, *range(first, len(state.last))])
        if state.round % self.every == 0 or state.round == self.rounds:
            self._save(Checkpoint(state, self._transport.records()))

    def finish(self) -> None:
        self._settle()
        self.ledger.describe({"status": "finished", "finished": _now(), "reason": ""}, [])

    def close(self) -> None:
        try:
            self._settle()
        finally:
            self._writer.shutdown()
            self.ledger.close()
            self._lock.close()

    def fail(self, reason: str) -> None:
        """Record why the run failed. On a full disk that may fail, too; then the first error is the one to report."""
        with suppress(RunError):
            self.ledger.describe({"status": "failed", "reason": reason}, [])
            self._say(f"failed: {reason}")

    def _check_same(self, meta: dict[str, str]) -> None:
        """Refuse to continue another run than the one in the folder."""
        kept = self.ledger.meta()
        begun = "start" in kept  # a run that failed before it began has only a reason
        if begun and (began := provenance.numerics(kept)) != NUMERICS:
            code = provenance.read(kept)
            raise InputError(
                f"{self.folder} was begun under numerics version {began}; this is version {NUMERICS}, of other numbers",
                f"run it again in a new folder, or finish it with fedapa {code.version}, commit {code.commit}",
            )
        if begun and (began := provenance.revision(kept)) != (now := provenance.revision(meta)):
            code = provenance.read(kept)
            raise InputError(
                f"{self.folder} was begun under revision {began} of this method's numbers; this is revision {now}",
                f"run it again in a new folder, or finish it with fedapa {code.version}, commit {code.commit}",
            )
        for key, was in kept.items():
            if key not in MAY_CHANGE and meta.get(key, was) != was:
                raise InputError(
                    f"{self.folder} holds another run: its {key} is {was}, not {meta[key]}",
                    "choose another folder, or go on with what that run was started with",
                )

    def _check_ledger(self, done: int) -> None:
        """Numbers are written before the checkpoint, so run.db has every round that a checkpoint has. One that lacks
        some lost its file or its log; going on would end in a finished run with holes."""
        if (kept := self.ledger.rounds_before(done)) != done:
            raise RunError(
                f"{self.folder}: the checkpoint is after round {done}, but run.db holds {kept} of these rounds",
                "restore run.db, and run.db-wal if there was one, from a copy; or start again: rm -r"
                f" {quote(str(self.folder / 'checkpoints'))} {quote(str(self.folder / 'run.db'))}*",
            )
        if damaged := self.ledger.damaged_rounds():
            raise RunError(
                f"{self.folder}: run.db holds other numbers of round {damaged[0] + 1} than were written",
                "restore run.db from a copy: it was edited, or the disk is failing",
            )

    def _save(self, point: Checkpoint) -> None:
        """Write while the next round trains. States are not changed in place, unless the server's is too large."""
        last = point.state.round == self.rounds
        self._writing = self._writer.submit(self._checkpoints.write, point, last)
        if is_donated(point.state.server) or last:
            self._settle()

    def _settle(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _say(self, line: str) -> None:
        try:
            with open(self.folder / "log.txt", "a", encoding="utf-8") as file:
                file.write(f"{_now()} {line}\n")
        except OSError as error:
            raise RunError(f"cannot write {self.folder / 'log.txt'}: {error.strerror}", "is the disk full?") from error

    def _note_session(self, round: int) -> None:
        write_json(self.folder / "env.json", environment())
        self._say(f"{'started' if round == 0 else f'resumed after round {round}'}: {' '.join(sys.argv)}")


def environment() -> dict[str, Any]:
    """The versions and the machine that a run's numbers come from."""
    return {
        "date": _now(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {name: provenance.package_version(name) for name in PACKAGES},
    }


def client_rows(data: Federated) -> list[ClientRow]:
    """What run.db says about every client's data."""
    rows = []
    for i, client in enumerate(data.clients):
        held = 0 if client.validation is None else len(client.validation.y)
        labels: Sequence[int] = client.train.y.bincount(minlength=data.classes).tolist() if data.classes else ()
        rows.append((i, client.name, len(client.train.y), len(client.test.y), held, ",".join(map(str, labels))))
    return rows


def lock(folder: Path) -> Any:
    """One process per run folder."""
    try:
        handle = open(folder / ".lock", "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        hint = "is the disk full or the folder read-only?"
        raise RunError(f"cannot write in {folder}: {error.strerror}", hint) from error
    try:
        flock(handle, wait=False)
    except OSError:
        handle.close()
        raise InUse(f"{folder} is in use by another process", "wait for it, or stop it first") from None
    return handle


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
