"""A Slurm queue, through submitit: a run is a job of one core. The sweep's folder must be on a shared file system."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapa.errors import InputError
from fedapa.store.run_folder import rounds_done
from fedapa.sweep import parcel
from fedapa.sweep.dispatch import Lost
from fedapa.sweep.parcel import Item, Parcel
from fedapa.sweep.pool import Event

MOST = 64  # jobs in the queue at a time
LOOK = 2.0  # seconds between two looks at a job


class SlurmPlace:
    """One job at a time."""

    def __init__(self, executor: Any, number: int, look: float = LOOK) -> None:
        self.name, self._executor, self._look = f"slurm job {number}", executor, look
        self._job: Any = None

    def play(self, sent: Parcel) -> Iterator[Item]:
        path = Path(sent.path)
        self._job = self._executor.submit(play_all, sent)
        try:
            yield from self._watch(path)
            yield from self._result()
        finally:
            self._job = None

    def _watch(self, path: Path) -> Iterator[Event]:
        known = -1
        while not self._job.done():
            if self._job.state in ("RUNNING", "COMPLETED") and (now := rounds_done(path)) > known:
                yield Event(path, "round", now) if known >= 0 else Event(path, "started")
                known = now
            time.sleep(self._look)

    def _result(self) -> list[Item]:
        try:
            found: list[Item] = self._job.result()
            return found
        except Exception as error:  # submitit raises what the job raised, and errors of its own
            raise Lost(str(error).strip().rpartition("\n")[2]) from error

    def stop(self) -> None:
        if self._job is not None:
            self._job.cancel()


def play_all(sent: Parcel) -> list[Item]:
    """At the node: the end of the run, and its folder if that is not shared."""
    return [item for item in parcel.play(sent) if isinstance(item, bytes) or item.what not in ("started", "round")]


def places(folder: Path, settings: Mapping[str, str], jobs: int | None, runs: int) -> Sequence[SlurmPlace]:
    """``settings`` are submitit's parameters; its own logs go to ``folder``."""
    submitit = _import()
    given = {key: int(value) if value.isdigit() else value for key, value in settings.items()}
    cluster = given.pop("cluster", "slurm")
    try:
        executor = submitit.AutoExecutor(folder=str(folder), cluster=cluster)
        executor.update_parameters(name="fedapa", cpus_per_task=1, **given)
    except (RuntimeError, NameError, ValueError, TypeError) as error:
        raise InputError(f"cannot use Slurm: {error}", "is sbatch here? settings are submitit's parameters") from None
    return [SlurmPlace(executor, number) for number in range(1, 1 + min(jobs or MOST, runs))]


def _import() -> Any:
    try:
        import submitit
    except ImportError:
        raise InputError("submitit is not installed", "pip install 'fedapa[slurm]'") from None
    return submitit
