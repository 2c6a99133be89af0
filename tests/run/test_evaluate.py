"""The five numbers of a round, by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from toy import CLASSES, Toy, play, rights, toy_data

import fedapa as fa
from fedapa.core.scores import ACCURACY, RMSE
from fedapa.core.summaries import Summary
from fedapa.core.summaries import summarise as summarise_score
from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Split
from fedapa.errors import RunError
from fedapa.methods.fedavg import FedAvg
from fedapa.rounds.evaluation import measure
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import make_task
from fedapa.training.engines.native import available
from fedapa.training.local import Local
from fedapa.training.settings import Engine
from fedapa.training.task import Task


def summarise(correct: np.ndarray, total: np.ndarray) -> Summary:
    return summarise_score(ACCURACY, correct, total)


def test_an_error_is_worst_where_it_is_largest() -> None:
    """Squared errors 4, 90 and 16 of 1, 10 and 4 samples: RMSE 2, 3 and 2, all together (110/15)^0.5."""
    found = summarise_score(RMSE, [4, 90, 16], [1, 10, 4])
    assert (found.worst, found.worst10, found.pooled) == (3, 3, pytest.approx((110 / 15) ** 0.5))


def test_five_numbers_of_three_clients() -> None:
    found = summarise(np.array([9, 1, 10]), np.array([10, 2, 40]))  # 90 %, 50 %, 25 %
    assert found.pooled == pytest.approx(100 * 20 / 52)
    assert found.mean == pytest.approx(55)
    assert found.std == pytest.approx(math.sqrt((35**2 + 5**2 + 30**2) / 3))
    assert found.worst == 25
    assert found.worst10 == 25


@pytest.mark.parametrize(("clients", "tenth"), [(9, 1), (19, 1), (20, 2), (50, 5)])
def test_worst_tenth_is_the_mean_of_the_worst_clients(clients: int, tenth: int) -> None:
    correct = np.arange(clients)[::-1]
    found = summarise(correct, np.full(clients, 100))
    assert found.worst10 == pytest.approx(np.arange(tenth).mean())


def test_clients_without_test_samples_count_in_no_mean() -> None:
    assert summarise(np.array([5, 0]), np.array([10, 0])) == summarise(np.array([5]), np.array([10]))


def test_no_test_samples_at_all() -> None:
    assert math.isnan(summarise(np.array([0]), np.array([0])).pooled)


def test_a_model_is_scored_on_test_and_validation_data_apart() -> None:
    """The model answers 2: right twice of three on test data, once of four on validation data, never on train data."""
    train, test, validation = ([0, 1], [2, 2, 3], [0, 1, 2, 3])
    splits = [Split(torch.zeros(len(y), 3), torch.tensor(y)) for y in (train, test, validation)]
    task, state = make_task(toy_data(), "mlp"), {"w": torch.tensor([2.0])}
    data = ClientData("a", *splits)
    assert measure(Toy(), task, state, data)[0].tolist() == [2, 3, 1, 4]
    assert measure(Toy(), task, state, ClientData("a", *splits[:2]))[0].tolist() == [2, 3, 0, 0]


@dataclass(frozen=True)
class Counting(Toy):
    """Notes every model that is scored; its clients keep what they learned if told so."""

    scored: tuple[list[float], ...] = ()
    keeps: bool = False

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return client if self.keeps else super().receive(task, client, down, local)

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        self.scored[0].append(client["w"].item())
        return super().predict(task, client, x)


def test_a_model_that_did_not_change_is_not_scored_again() -> None:
    """Two clients alone: the start, then the model after each of three rounds, of which the next begins with it."""
    method = Counting(scored=([],), keeps=True)
    result = play(method, toy_data(2), Plan(3, (1.0, 1.0)), workers=1)
    assert sorted(method.scored[0]) == [0, 0, 1, 1, 2, 2, 3, 3]
    for t, log in enumerate(result.logs):
        assert log.before is not None
        assert log.after is not None
        assert log.before[:, 0, 0].tolist() == [rights(i, t) for i in range(2)]
        assert log.after[:, 0, 0].tolist() == [rights(i, t + 1) for i in range(2)]


def test_a_model_that_changed_is_scored_in_every_round() -> None:
    """The same client, the same round's numbers: what arrives is i more than the server's number, which grows."""
    method = Counting(scored=([],))
    play(method, toy_data(2), Plan(3, (1.0, 1.0)), workers=1)
    arrived = [t + i for t in range(4) for i in range(2)]
    assert set(method.scored[0]) == {*arrived, 4}


def test_an_idle_client_is_not_scored_again() -> None:
    method = Counting(scored=([],), keeps=True)
    play(method, toy_data(4), Plan(6, (0.5, 0.5)), workers=1)
    assert len(method.scored[0]) == 4 + 6 * 2  # every start, and whoever trained


# ------------------------------------------------------------------------------------------- models that answer NaN


@dataclass(frozen=True)
class Broken(Toy):
    """A model of this number answers NaN; its number is finite."""

    number: int = -1

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        right = super().predict(task, client, x)
        return torch.full((len(x), CLASSES), math.nan) if int(client["w"].item()) == self.number else right


class Retreating(Broken):
    def absorb(self, task: Task, server: Tree, ids: object, downs: object, ups: object) -> Tree:
        return {"w": server["w"] - 3}


def test_a_client_whose_trained_model_answers_nan_is_refused() -> None:
    """Client i is sent i in round 1, so that client 3 alone has 4 after training; the server then sends less."""
    result = play(Retreating(number=4), toy_data(), Plan(1, (1.0, 1.0)))
    (event,) = result.logs[0].events
    assert (event.client, event.kind) == (3, "refused")
    assert "its training diverged, the network computed NaN" in event.text
    assert sorted(result.logs[0].trained) == [0, 1, 2]


def test_a_model_that_arrives_and_answers_nan_ends_the_run() -> None:
    with pytest.raises(RunError, match=r"round 1: the model that arrived at client 2 is broken, .*NaN") as caught:
        play(Broken(number=2), toy_data(), Plan(1, (1.0, 1.0)))
    assert caught.value.hint


class Huge(FedAvg):
    """Finite weights so large that logits are Inf - Inf."""

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        server, client = super().init(task, seed)
        return {"omega": server["omega"] * 1e25}, client


@pytest.mark.parametrize("engine", ["torch", "vmap", "native"])
def test_no_engine_counts_nan_as_an_answer(engine: Engine) -> None:
    if engine == "native" and not available()[0]:
        pytest.skip("the native engine is not built here")
    x, y = np.random.default_rng(0).normal(size=(20, 1, 16, 16)).astype(np.float32), np.arange(20) % 2
    data = fa.from_arrays([(x, y, x, y)] * 2)
    with pytest.raises(RunError, match=r"the model that arrived at client . is broken, the network computed NaN"):
        fa.fit(Huge(), data, "lenet5", rounds=1, engine=engine)
