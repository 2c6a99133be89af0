"""The history of the weights stays small: 4 M^2 bytes a round would fill the disk of a run with many clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_folder import ROUNDS, assert_same, fit

from fedapa.core.scores import ACCURACY
from fedapa.core.summaries import Sums
from fedapa.rounds import round_log
from fedapa.rounds.round_log import RoundLog, watched_stride
from fedapa.store import run_db

A_BYTES = 3 * 3 * 4


@pytest.fixture
def two_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_log, "WATCHED_BYTES", 2 * A_BYTES)  # a stride of ceil(5 / 2)


def kept(folder: Path) -> list[int]:
    with run_db.reading(folder / "run.db") as db:
        return run_db.weight_rounds(db)


def test_every_round_is_kept_while_it_is_cheap(tmp_path: Path) -> None:
    fit(tmp_path)
    assert kept(tmp_path) == [1, 2, 3, 4, 5]


def test_some_rounds_and_the_last_are_kept(tmp_path: Path, two_of_five: None) -> None:
    result = fit(tmp_path)
    assert kept(tmp_path) == [1, 4, 5]
    assert [log.round + 1 for log in result.logs if log.watched] == [5], "the others are in run.db, not in memory"
    assert [log.round + 1 for log in fit(None).logs if log.watched] == [1, 4, 5]


def test_a_resumed_run_keeps_the_same_ones(tmp_path: Path, two_of_five: None) -> None:
    fit(tmp_path / "whole")
    for rounds in range(1, ROUNDS):
        (tmp_path / str(rounds)).mkdir()
        stop_after(tmp_path / str(rounds), rounds)
        assert rounds in kept(tmp_path / str(rounds)), "the last is always whole"
        fit(tmp_path / str(rounds))
        assert_same(tmp_path / "whole", tmp_path / str(rounds))


def stop_after(folder: Path, rounds: int) -> None:
    def stop(log: RoundLog) -> None:
        if log.round + 1 == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(folder, progress=stop)


def test_a_thousand_clients_and_five_hundred_rounds_fit_in_a_gigabyte(tmp_path: Path) -> None:
    """Without checkpoints; measured over a few rounds, since all but the weights grows evenly."""
    clients, rounds, played = 1000, 500, 3
    ledger = run_db.Ledger(tmp_path / "run.db")
    for t in range(played):
        log = RoundLog(t, list(range(clients)), before=sums(clients), after=sums(clients))
        log.down_bytes = log.up_bytes = dict.fromkeys(range(clients), 250_000)
        log.client_seconds = dict.fromkeys(range(clients), 0.123456789)
        ledger.record(log, clients, (ACCURACY, replace(ACCURACY, name="loss")))
    ledger.close()
    per_round = (tmp_path / "run.db").stat().st_size / played
    stride = watched_stride(RoundLog(0, [], watched={"A": torch.empty(clients, clients)}), rounds)
    weights = 4 * clients**2 * (rounds // stride + 2)
    assert per_round * rounds + weights < 1e9
    assert weights <= round_log.WATCHED_BYTES + 3 * 4 * clients**2


def sums(clients: int) -> Sums:
    return np.random.default_rng(0).uniform(1, 99, (clients, 2, 4))
