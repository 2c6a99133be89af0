"""Where the numbers of a run go beside its folder, round by round: TensorBoard, MLflow, Weights & Biases, or own code.

A sink is three functions. The libraries are imported when a sink starts, and are extras of fedapa.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedapa.core.scores import LOSS, Score
from fedapa.core.summaries import TEST, VALIDATION, Sums, summarise
from fedapa.errors import InputError, did_you_mean
from fedapa.plugins import is_own, load_object
from fedapa.rounds.round_log import RoundLog


@dataclass(frozen=True)
class Started:
    """What a sink is told about a run before its first round."""

    name: str  # METHOD-seedN
    folder: Path | None  # None: the run is not kept
    settings: Mapping[str, Any]  # by their names in a config: training.lr, ...


class Sink(Protocol):
    def start(self, run: Started) -> None:
        """Called once, also where a run is resumed."""

    def round(self, done: int, values: Mapping[str, float]) -> None:
        """The numbers of a round: ``test/accuracy/after``, ``train/loss``, ...; ``done`` counts rounds from 1."""

    def end(self, status: str) -> None:
        """finished, or failed."""


class TensorBoard:
    """Event files in the run's folder, which `tensorboard --logdir runs` shows."""

    def start(self, run: Started) -> None:
        if run.folder is None:
            raise InputError("TensorBoard needs a folder to write to", "fit(..., out=FOLDER, log='tensorboard')")
        _library("tensorboard", "tensorboard")
        self._writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(run.folder / "tensorboard"))
        self._writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in run.settings.items()))

    def round(self, done: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, done)
        self._writer.flush()

    def end(self, status: str) -> None:
        self._writer.close()


class MLflow:
    """One MLflow run, at MLFLOW_TRACKING_URI or in ./mlruns."""

    def start(self, run: Started) -> None:
        self._mlflow = _library("mlflow", "mlflow")
        self._mlflow.start_run(run_name=run.name)
        self._mlflow.log_params({key: str(value)[:250] for key, value in run.settings.items()})

    def round(self, done: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=done)

    def end(self, status: str) -> None:
        self._mlflow.end_run("FINISHED" if status == "finished" else "FAILED")


class WandB:
    """One run of the project "fedapa", or of WANDB_PROJECT."""

    def start(self, run: Started) -> None:
        import os

        wandb = _library("wandb", "wandb")
        where = None if run.folder is None else str(run.folder)
        project = os.environ.get("WANDB_PROJECT", "fedapa")
        self._run = wandb.init(project=project, name=run.name, config=dict(run.settings), dir=where)

    def round(self, done: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=done)

    def end(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)


SINKS: dict[str, Callable[[], Sink]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def make_sink(name: str) -> Sink:
    """By name, or the user's own class as ``file.py:Class``."""
    if name in SINKS:
        return SINKS[name]()
    if not is_own(name):
        hint = did_you_mean(name, SINKS, f"choose one of {', '.join(SINKS)}, or file.py:Class")
        raise InputError(f"there is no log called {name!r}", hint)
    made = load_object(name, "log")
    if not isinstance(made, type):
        raise InputError(f"log {name!r} is no class", "see fedapa.Sink: start, round, end")
    found: Sink = made()
    if missing := [word for word in ("start", "round", "end") if not callable(getattr(found, word, None))]:
        raise InputError(f"log {name!r} has no function {missing[0]}", "see fedapa.Sink: start, round, end")
    return found


def _library(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{module} is not installed", f"pip install 'fedapa[{extra}]'") from None


@contextmanager
def logging(
    names: Sequence[str], run: Started, scores: Sequence[Score], progress: Callable[[RoundLog], None] | None
) -> Iterator[Callable[[RoundLog], None] | None]:
    """What a run calls after every round so that all these sinks, and ``progress``, hear of it."""
    sinks = [make_sink(name) for name in names]
    if not sinks:
        yield progress
        return
    for sink in sinks:
        sink.start(run)

    def after_round(log: RoundLog) -> None:
        found = values(log, scores)
        for sink in sinks:
            sink.round(log.round + 1, found)
        if progress is not None:
            progress(log)

    status = "failed"
    try:
        yield after_round
        status = "finished"
    finally:
        for sink in sinks:
            sink.end(status)


def values(log: RoundLog, scores: Sequence[Score]) -> dict[str, float]:
    """The numbers of a round by name: every score, pooled over all clients' samples, the train loss, bytes, seconds."""
    found: dict[str, float] = {}
    for phase, sums in (("before", log.before), ("after", log.after)):
        if sums is not None:
            found |= dict(_pooled(phase, sums, scores))
    if log.train_loss:
        total, count = np.array(list(log.train_loss.values()), np.float64).sum(0)
        found["train/loss"] = LOSS.value(total, count)
    found["clients/trained"] = float(len(log.trained))
    found |= {"bytes/down": float(sum(log.down_bytes.values())), "bytes/up": float(sum(log.up_bytes.values()))}
    return found | {f"seconds/{what}": spent for what, spent in log.seconds.items()}


def _pooled(phase: str, sums: Sums, scores: Sequence[Score]) -> Iterator[tuple[str, float]]:
    for data, columns in (("test", TEST), ("validation", VALIDATION)):
        for k, score in enumerate(scores):
            sum_, count = sums[:, k, columns].T
            if count.any():
                yield f"{data}/{score.name}/{phase}", summarise(score, sum_, count).pooled


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found
