"""Clients that did not train are not written again, and no damage or crash costs more than rounds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from test_folder import Crash, assert_same, tiny

import fedapa as fa
from fedapa.core.tree import equal
from fedapa.rounds.round_log import RoundLog, State
from fedapa.rounds.transport import Record
from fedapa.store import atomic_io, checkpoint
from fedapa.store.checkpoint import Checkpoint, Writer, newest

CLIENTS = 8


@pytest.fixture
def small_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LEAST", 0)


class Run:
    """A run of which one client trains in every round: ``record`` holds the round of its last training."""

    def __init__(self, folder: Path) -> None:
        self.writer, self.folder = Writer(folder), folder
        self.records = [self.record(i, 0) for i in range(CLIENTS)]
        self.told: dict[int, list[Record]] = {}

    def record(self, i: int, round: int) -> Record:
        return Record({"theta": torch.full((500,), float(i))}, {"main/theta": torch.full((3,), float(round))})

    def play(self, rounds: range, whole: bool = False) -> None:
        for t in rounds:
            i = t % CLIENTS
            self.records[i] = self.record(i, t)
            self.writer.changed([i])
            self.told[t] = list(self.records)
            self.writer.write(self.point(t), whole)

    def point(self, t: int) -> Checkpoint:
        return Checkpoint(State(t, {"A": torch.eye(3) * t}, np.full((CLIENTS, 1, 4), float(t))), list(self.records))

    def files(self) -> dict[int, int]:
        """Size of every checkpoint by its round."""
        return {int(path.stem[-6:]): path.stat().st_size for path in sorted(self.folder.iterdir())}


def assert_told(found: Checkpoint | None, run: Run) -> int:
    """The checkpoint is what the run wrote after its round; returns the round."""
    assert found is not None
    t = found.state.round
    assert equal(found.state.server, {"A": torch.eye(3) * t})
    assert float(found.state.last[0, 0, 0]) == t
    for mine, theirs in zip(found.records, run.told[t], strict=True):
        assert equal(mine.state, theirs.state)
        assert equal(mine.memory, theirs.memory)
    return t


def test_every_checkpoint_is_read_as_it_was_written(tmp_path: Path, small_is_worth_it: None) -> None:
    run = Run(tmp_path)
    for t in range(1, 20):
        run.play(range(t, t + 1))
        assert assert_told(newest(tmp_path), run) == t


def test_idle_clients_are_not_written_again(tmp_path: Path, small_is_worth_it: None) -> None:
    run = Run(tmp_path)
    run.play(range(1, 4))
    sizes = run.files()
    assert sizes[1] > 8 * 2000
    assert sizes[2] < sizes[1] / 3
    assert sizes[3] < sizes[1] / 2


def test_what_stays_on_disk_is_bounded(tmp_path: Path, small_is_worth_it: None) -> None:
    run = Run(tmp_path)
    for t in range(1, 40):
        run.play(range(t, t + 1))
        whole = max(run.files().values())
        assert sum(run.files().values()) <= (2 + 2 * (1 - checkpoint.WORTH) + 0.2) * whole
        assert len(run.files()) <= 4


def test_small_states_and_the_last_round_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.play(range(1, 4))
    assert min(run.files().values()) > 8 * 2000, "less than a megabyte is not worth a base"
    monkeypatch.setattr(checkpoint, "LEAST", 0)
    run.play(range(4, 5))
    run.play(range(5, 6), whole=True)
    assert run.files()[4] < run.files()[5] / 2


@pytest.mark.parametrize("rounds", [3, 7, 12])
def test_any_one_damaged_or_lost_file_costs_rounds_only(tmp_path: Path, small_is_worth_it: None, rounds: int) -> None:
    run = Run(tmp_path / "run")
    run.play(range(1, rounds + 1))
    names = sorted((tmp_path / "run").iterdir())
    if rounds > 6:
        assert len([path for path in names if checkpoint._base_of(path) is None]) == 2
    for kind in ("flipped", "lost"):
        for path in names:
            other = tmp_path / f"{kind} {path.stem}"
            shutil.copytree(tmp_path / "run", other)
            if kind == "lost":
                (other / path.name).unlink()
            else:
                content = bytearray((other / path.name).read_bytes())
                content[-5] ^= 1
                (other / path.name).write_bytes(content)
            if rounds == 3 and path == names[0]:
                continue  # the first of all checkpoints is the base of both others: there is no other yet
            found = assert_told(newest(other), run)
            assert found == rounds or path == names[-1] or checkpoint._base_of(path) is None


def test_a_base_of_another_run_is_refused(tmp_path: Path, small_is_worth_it: None) -> None:
    run, other = Run(tmp_path / "a"), Run(tmp_path / "b")
    run.play(range(1, 4))
    other.records[5] = other.record(5, 99)
    other.play(range(1, 4))
    shutil.copy(tmp_path / "b" / "round-000001.safetensors", tmp_path / "a")
    with pytest.raises(fa.RunError, match="builds on another"):
        checkpoint.read(tmp_path / "a" / "round-000003.safetensors")


def fit(out: Path, **changes: object) -> None:
    wanted = {"lr": 0.1, "batch": 4, "epochs": 1, "rounds": 6, "participation": (0.3, 0.3)} | changes
    fa.fit("fedper", tiny(), "mlp", out=out, **wanted)  # type: ignore[arg-type]


def crash_at(real: Callable[..., object], at: int) -> Callable[..., object]:
    """The same, until it is called for the so many-th checkpoint."""
    calls: list[int] = []

    def crash(*given: object, **options: object) -> object:
        if "checkpoints" in str(given[0]):
            calls.append(1)
            if len(calls) == at:
                raise Crash
        return real(*given, **options)

    return crash


def test_a_crash_at_every_file_that_is_replaced_or_deleted(
    tmp_path: Path, small_is_worth_it: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed, every number and the last checkpoint are those of a run without a crash."""
    monkeypatch.setattr(checkpoint, "WORTH", 0.05)
    bases, write = list[object](), checkpoint._write
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write", lambda *given: bases.append(given[2:]) or write(*given))
        fit(tmp_path / "whole")
    assert 0 < bases.count(()) < 6, "some checkpoints are whole, some are not"
    for owner, name, last in ((atomic_io.os, "replace", 6), (Path, "unlink", 3)):
        for at in range(1, last + 1):
            out = tmp_path / f"{name} {at}"
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, crash_at(getattr(owner, name), at))
                with pytest.raises(Crash):
                    fit(out)
            fit(out)
            assert_same(tmp_path / "whole", out)


def test_a_log_of_a_resumed_run_keeps_no_weights_of_earlier_rounds(tmp_path: Path) -> None:
    def stop(log: RoundLog) -> None:
        if log.round == 2:
            raise KeyboardInterrupt

    settings = {"lr": 0.1, "batch": 4, "epochs": 1, "rounds": 5}
    with pytest.raises(KeyboardInterrupt):
        fa.fit("fedapa", tiny(), "mlp", out=tmp_path, progress=stop, **settings)  # type: ignore[arg-type]
    result = fa.fit("fedapa", tiny(), "mlp", out=tmp_path, **settings)  # type: ignore[arg-type]
    assert [log.round + 1 for log in result.logs if log.watched] == [5]
