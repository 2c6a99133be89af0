"""Runs that train alike, played side by side: the same bits as alone, every training once, also after a stop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedapa as fa
from command import SMALL
from fedapa.config.experiment import execute, lay_out, read_config, training_hash
from fedapa.config.load import load
from fedapa.core.tree import digest
from fedapa.errors import RunError
from fedapa.simulation import make_task
from fedapa.store import checkpoint, run_db, run_folder
from fedapa.sweep import pool
from fedapa.training import local
from fedapa.training.engines import shared_training
from fedapa.training.engines.shared_training import SharedTraining, identity
from fedapa.training.local import Pass
from fedapa.training.task import Task

METHODS = ("fedavg", "fedala", "fedphp", "fedpac", "dbe", "fedapa-exact")


def laid_out(folder: Path, *methods: str) -> list[Path]:
    folder.mkdir()
    path = folder / "small.toml"
    path.write_text(SMALL.replace("mlp", "cnn8").replace("lr = 0.1", "lr = 0.02"))
    return lay_out(load(str(path), [f"methods={list(methods)}", "run.engine=torch", "run.participation=1.0"]), folder)


def play(runs: list[Path]) -> list[tuple[Any, ...]]:
    said: list[tuple[Any, ...]] = []
    pool.play_side_by_side(tuple(runs), lambda *event: said.append(event))
    return said


def bits(run: Path) -> list[str]:
    """All of the last checkpoint, and every score of every round."""
    with run_db.reading(run / "run.db") as db:
        scores = db.execute("SELECT * FROM client_score ORDER BY 1, 2, 3, 4, 5").fetchall()
    newest = max((run / "checkpoints").iterdir())
    return [digest(checkpoint.read_tree(newest)), repr(scores)]


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the clients that were trained; a run also trains on 2 samples, to know what uploads look like."""
    counted: list[int] = []
    plain = local.train

    def train(job: local.Job) -> local.Trained:
        counted.extend([len(job.data.y)] if len(job.data.y) > 2 else [])
        return plain(job)

    monkeypatch.setattr(local, "train", train)
    return counted


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Passes over a client's train samples that a method asked for; on 2 samples as above."""
    counted: list[object] = []
    plain = local.outputs

    def outputs(wanted: local.Pass) -> Tensor:
        counted.extend([wanted.function] if wanted.function is Task.features and len(wanted.x) > 2 else [])
        return plain(wanted)

    monkeypatch.setattr(local, "outputs", outputs)
    return counted


@pytest.mark.parametrize("method", METHODS)
def test_a_running_mean_comes_without_a_training_and_changes_no_bit(
    method: str, tmp_path: Path, trainings: list[int], passes: list[object]
) -> None:
    names = (method, f"{method}+ema")
    alone = laid_out(tmp_path / "alone", *names)
    for run in alone:
        execute(run)
    separate, seen = len(trainings), len(passes)
    shared = laid_out(tmp_path / "shared", *names)
    trainings.clear()
    passes.clear()
    said = play(shared)
    assert [event[1] for event in said].count("finished") == 2
    assert [bits(run) for run in shared] == [bits(run) for run in alone]
    assert (len(trainings) * 2, len(passes) * 2) == (separate, seen)
    assert (seen > 0) == (method in ("fedpac", "fedala"))


def test_only_a_running_mean_trains_as_the_method_does(tmp_path: Path) -> None:
    runs = laid_out(tmp_path / "runs", "fedavg", "fedavg+ema", "fedavg@authors", "fedavg@authors+ema", "fedavg+top")
    one, mean, other, other_mean, top = [training_hash(read_config(run)) for run in runs]
    assert (one, other) == (mean, other_mean)
    assert len({one, other, top}) == 3


def test_runs_that_stand_at_different_rounds_meet(tmp_path: Path, trainings: list[int]) -> None:
    """One run was stopped after a round, the other has not begun."""

    class Stopped(Exception):
        pass

    def stop(_: object) -> None:
        raise Stopped

    alone = laid_out(tmp_path / "alone", "fedavg", "fedavg+ema")
    for run in alone:
        execute(run)
    runs = laid_out(tmp_path / "shared", "fedavg", "fedavg+ema")
    with pytest.raises(Stopped):
        execute(runs[0], stop)
    trainings.clear()
    play(runs)
    assert [bits(run) for run in runs] == [bits(run) for run in alone]
    assert len(trainings) == 3 * 4  # three rounds of four clients, the first by the run that had not begun


def test_a_run_that_fails_leaves_the_other_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = laid_out(tmp_path / "shared", "fedavg", "fedavg+ema")
    (runs[0] / run_folder.CONFIG).write_text("not = [toml")
    said = play(runs)
    assert {(event[0], event[1]) for event in said if event[1] in pool.ENDS} == {
        (runs[0], "failed"),
        (runs[1], "finished"),
    }


def test_a_training_that_fails_fails_in_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(job: local.Job) -> local.Trained:
        raise RunError("no")

    monkeypatch.setattr(local, "train", train)
    runs = laid_out(tmp_path / "shared", "fedavg", "fedavg+ema")
    said = play(runs)
    assert {event[0] for event in said if event[1] == "failed"} == set(runs)


def test_another_job_is_trained_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key alone is not trusted: jobs are compared."""
    monkeypatch.setattr(shared_training, "identity", lambda job: job)
    monkeypatch.setattr(local, "train", lambda job: f"trained {job}")
    shared: Any = SharedTraining(2)
    assert shared.find((0, 0, 0), "one") == ("trained one", None)
    assert shared.find((0, 0, 0), "other") == ("trained other", None)
    done, seconds = shared.find((0, 0, 0), "one")
    assert done == "trained one"
    assert seconds is not None


def test_a_pass_of_another_model_or_over_other_samples_is_another() -> None:
    """FedPAC's class sums, say: the same function of the same visit, but what it reads differs in a bit."""
    data = fa.load("digits", clients=2)
    one = Pass(Task.features, make_task(data, "mlp"), {"theta": torch.zeros(3)}, data.clients[0].train.x)
    assert identity(one) == identity(one._replace(tree={"theta": torch.zeros(3)}))
    other_zero = {"theta": torch.tensor([0.0, 0.0, -0.0])}
    assert identity(one) != identity(one._replace(tree=other_zero))
    assert identity(one) != identity(one._replace(x=data.clients[1].train.x))
    assert identity(one) != identity(one._replace(function=Task.predict))


def test_no_run_is_two_rounds_ahead() -> None:
    shared, seen = SharedTraining(2), []

    def run(me: int, rounds: int) -> None:
        for t in range(rounds):
            shared.enter(me, t)
            seen.append((t, me))
        shared.leave(me)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, (0, 1), (5, 3)))
    first = {me: [at for at, one in enumerate(seen) if one[1] == me] for me in (0, 1)}
    for t in range(2):
        assert max(first[0][t], first[1][t]) < min(first[0][t + 2], first[1][t + 2] if t + 2 < 3 else 99)
    assert len(seen) == 8
