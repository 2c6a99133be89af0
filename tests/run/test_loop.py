"""The round loop: who takes part, what is counted, who is heard, on a method with hand-computable numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from toy import CLASSES, TESTS, Toy, play, rights, toy_data

from fedapa.core.tree import Tree
from fedapa.errors import InputError, RunError
from fedapa.rounds.loop import draw
from fedapa.rounds.membership import Newcomer
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import InProcess, Reply, Request
from fedapa.simulation import make_task
from fedapa.training.local import Local
from fedapa.training.task import Task

ALL = (1.0, 1.0)
TOTALS = [sum(row) for row in TESTS]


# ------------------------------------------------------------------------------------------------- participation


@pytest.mark.parametrize(
    ("clients", "counts"), [(20, range(12, 21)), (8, range(5, 9)), (5, range(3, 6)), (3, range(2, 4)), (1, [1])]
)
def test_between_60_percent_rounded_up_and_all_clients_take_part(clients: int, counts: Sequence[int]) -> None:
    seen = {len(draw(Plan(), clients, t)) for t in range(400)}
    assert seen == set(counts)


@pytest.mark.parametrize(
    ("share", "clients", "count"), [(0.5, 5, 3), (0.6, 5, 3), (0.7, 10, 7), (0.01, 8, 1), (1, 4, 4)]
)
def test_a_fixed_share_is_rounded_up(share: float, clients: int, count: int) -> None:
    assert {len(draw(Plan(participation=(share, share)), clients, t)) for t in range(20)} == {count}


def test_the_count_is_uniform() -> None:
    counts = [len(draw(Plan(), 20, t)) for t in range(3000)]
    shares = np.bincount(counts, minlength=21)[12:] / 3000
    assert np.abs(shares - 1 / 9).max() < 0.03


def test_clients_come_in_random_order_and_once_each() -> None:
    drawn = [draw(Plan(), 20, t) for t in range(50)]
    assert all(len(set(ids)) == len(ids) for ids in drawn)
    assert sum(ids == sorted(ids) for ids in drawn) == 0
    first = np.bincount([draw(Plan(), 5, t)[0] for t in range(2000)], minlength=5) / 2000
    assert np.abs(first - 0.2).max() < 0.05


def test_the_draw_depends_on_seed_and_round_alone() -> None:
    assert draw(Plan(seed=3), 20, 7) == draw(Plan(seed=3, rounds=9, schedule="sequential"), 20, 7)
    assert draw(Plan(seed=3), 20, 7) != draw(Plan(seed=4), 20, 7)
    assert draw(Plan(seed=3), 20, 7) != draw(Plan(seed=3), 20, 8)


def test_who_left_for_good_is_not_drawn_and_the_shares_are_of_those_who_are_there() -> None:
    gone = frozenset({1, 3})
    drawn = [draw(Plan(participation=(0.5, 1.0)), 6, t, gone) for t in range(200)]
    assert {i for ids in drawn for i in ids} == {0, 2, 4, 5}
    assert {len(ids) for ids in drawn} == {2, 3, 4}
    with pytest.raises(RunError, match="every client has left"):
        draw(Plan(), 2, 0, frozenset({0, 1}))


def test_a_client_expects_the_mean_share_of_the_rounds() -> None:
    assert make_task(toy_data(), "mlp", participation=(0.6, 1.0)).participation == pytest.approx(0.8)


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"participation": (0.0, 1.0)}, {"participation": (0.9, 0.5)}, {"evaluate_every": 0}]
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Plan(**wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- schedules, accuracy


def test_parallel_clients_all_see_the_same_server() -> None:
    result = play(Toy(), toy_data(), Plan(2, ALL))
    for t, log in enumerate(result.logs):
        assert log.before is not None
        assert log.after is not None
        assert log.before[:, 0, 0].tolist() == [rights(i, t + i) for i in range(4)]
        assert log.after[:, 0, 0].tolist() == [rights(i, t + i + 1) for i in range(4)]
        assert log.before[:, 0, 1].tolist() == log.after[:, 0, 1].tolist() == TOTALS
    assert result.state.server["w"].item() == 2


def test_sequential_clients_see_what_the_ones_before_left() -> None:
    plan = Plan(1, ALL, "sequential")
    result = play(Toy(), toy_data(), plan)
    order = draw(plan, 4, 0)
    assert result.logs[0].trained == order
    assert result.logs[0].before is not None
    for place, i in enumerate(order):
        assert result.logs[0].before[i, 0, 0] == rights(i, place + i)
    assert result.state.server["w"].item() == 4


def test_sequential_idle_clients_are_shown_the_server_as_the_round_began() -> None:
    plan = Plan(2, (0.5, 0.5), "sequential")
    result = play(Toy(), toy_data(), plan)
    before = result.logs[1].before
    idle = set(range(4)) - set(draw(plan, 4, 1))
    assert before is not None
    assert [before[i, 0, 0] for i in idle] == [rights(i, 2 + i) for i in idle]


def test_the_summary_of_a_round_by_hand() -> None:
    log = play(Toy(), toy_data(), Plan(1, ALL)).logs[0]
    # Before, client i answers class i: 1/10, 0/10, 2/10, 0/1. After, class i + 1: 2/10, 0/10, 2/10, 0/1.
    summary = play(Toy(), toy_data(), Plan(1, ALL)).curve("before")[0]
    assert log.before is not None
    assert log.before[:, 0, :2].tolist() == [[1, 10], [0, 10], [2, 10], [0, 1]]
    assert summary.pooled == pytest.approx(100 * 3 / 31)
    assert summary.mean == pytest.approx(7.5)
    assert summary.std == pytest.approx(np.std([10, 0, 20, 0]))
    assert (summary.worst, summary.worst10) == (0, 0)


def test_an_idle_client_shows_what_it_would_receive_and_its_last_trained_state() -> None:
    plan = Plan(8, (0.5, 0.5))
    result = play(Toy(), toy_data(), plan)
    last = dict.fromkeys(range(4), 0)  # the start answers class 0
    for t, log in enumerate(result.logs):
        trained = draw(plan, 4, t)
        last |= {i: t + i + 1 for i in trained}
        assert log.trained == trained
        assert log.before is not None
        assert log.after is not None
        assert log.before[:, 0, 0].tolist() == [rights(i, t + i) for i in range(4)]
        assert log.after[:, 0, 0].tolist() == [rights(i, last[i]) for i in range(4)]


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_what_the_last_aggregation_would_send_is_scored_once_at_the_end(schedule: str) -> None:
    """Three rounds take the server to 3 (to 12 one by one), so that client i is shown 3 + i (12 + i)."""
    result = play(Toy(), toy_data(), Plan(3, ALL, schedule))  # type: ignore[arg-type]
    end = 3 if schedule == "parallel" else 12
    assert [log.final is None for log in result.logs] == [True, True, False]
    assert result.logs[-1].final is not None
    assert result.logs[-1].final[:, 0].tolist() == [[rights(i, end + i), TOTALS[i], 0, 0] for i in range(4)]


def test_nobody_trains_for_that_score(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Listening(InProcess):
        def exchange(self, requests: Sequence[Request]) -> Iterator[Reply]:
            asked.append([(request.client, request.train) for request in requests])
            return super().exchange(requests)

    monkeypatch.setattr("fedapa.simulation.InProcess", Listening)
    play(Toy(), toy_data(), Plan(1, ALL))
    assert asked == [[(i, True) for i in range(4)], [(i, False) for i in range(4)]]


class Remembering(Toy):
    """Notes in which order uploads are absorbed."""

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        order.append(list(ids))
        return super().absorb(task, server, ids, downs, ups)


order: list[list[int]] = []


def test_uploads_of_a_parallel_round_are_absorbed_in_ascending_order() -> None:
    order.clear()
    result = play(Remembering(), toy_data(), Plan(4, ALL))
    assert order == [[0, 1, 2, 3]] * 4
    assert any(log.trained != [0, 1, 2, 3] for log in result.logs)


class Counting(Toy):
    """Counts its visits where an optimiser keeps its momentum."""

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        local.memory = {"visits": local.memory.get("visits", torch.zeros(1)) + 1}
        return super().train(task, client, down, local)


def test_a_client_keeps_its_state_and_what_its_optimiser_remembers() -> None:
    result = play(Counting(), toy_data(), Plan(3, ALL))
    assert [record.memory["visits"].item() for record in result.records] == [3] * 4
    assert [record.state["w"].item() for record in result.records] == [3 + i for i in range(4)]


class Leaving:
    """Nobody comes; client 1 leaves after the first round."""

    def arrivals(self, round: int) -> Sequence[Newcomer]:
        return ()

    def members(self, round: int) -> Sequence[Newcomer]:
        return ()

    def admit(self, newcomer: Newcomer, round: int) -> None: ...

    def reject(self, newcomer: Newcomer) -> None: ...

    def gone(self, round: int) -> frozenset[int]:
        return frozenset({1} if round > 0 else ())


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_who_left_for_good_is_in_no_number(schedule: str) -> None:
    result = play(Toy(), toy_data(), Plan(2, ALL, schedule), membership=Leaving())  # type: ignore[arg-type]
    first, second = result.logs
    assert sorted(first.trained) == [0, 1, 2, 3]
    assert sorted(second.trained) == [0, 2, 3]
    for counts in (second.before, second.after, second.final):
        assert counts is not None
        assert counts[:, 0, 1].tolist() == [10, 0, 10, 1]
    assert [tuple(event)[:3] for event in second.events] == [(1, 1, "left")]


class Exploding(Toy):
    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        return {"w": server["w"] + 1, "bad": torch.tensor([1.0, float("inf")])}


def test_a_server_that_is_no_longer_finite_ends_the_run() -> None:
    with pytest.raises(RunError, match="the server's bad is no longer finite after round 1"):
        play(Exploding(), toy_data(), Plan(2, ALL))


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
@pytest.mark.parametrize("every", [2, 3])
def test_evaluating_less_often_changes_no_number_that_is_evaluated(schedule: str, every: int) -> None:
    """A client that trained in a round without evaluation is idle in the next: its newest state counts."""
    plan = {"rounds": 9, "participation": (0.5, 0.5), "schedule": schedule}
    often = play(Toy(), toy_data(), Plan(**plan))  # type: ignore[arg-type]
    seldom = play(Toy(), toy_data(), Plan(**plan, evaluate_every=every))  # type: ignore[arg-type]
    for t, (a, b) in enumerate(zip(often.logs, seldom.logs, strict=True)):
        if t % every == 0 or t == 8:
            np.testing.assert_array_equal(a.before, b.before)
            np.testing.assert_array_equal(a.after, b.after)
        else:
            assert b.before is None
            assert b.after is None


def test_rounds_depend_on_the_seed_and_not_on_workers() -> None:
    one, two, other = (
        play(Toy(), toy_data(8), Plan(3, seed=seed), workers=workers) for seed, workers in ((0, 1), (0, 3), (1, 1))
    )
    assert [log.trained for log in one.logs] == [log.trained for log in two.logs]
    assert [log.trained for log in one.logs] != [log.trained for log in other.logs]


# ------------------------------------------------------------------------------------------------------------ bytes


def test_bytes_are_counted_from_the_trees() -> None:
    log = play(Toy(), toy_data(), Plan(1, (0.5, 0.5))).logs[0]
    assert log.down_bytes == dict.fromkeys(log.trained, 4 + 3 * 8)  # one float32 and three int64
    assert log.up_bytes == dict.fromkeys(log.trained, 4)


# ------------------------------------------------------------------------------------------------- who is not heard


class Deaf(InProcess):
    """Client 1 never answers."""

    def exchange(self, requests: Sequence[Request]) -> Iterator[Reply]:
        yield from (reply for reply in super().exchange(requests) if reply.client != 1)


class Silent(InProcess):
    def exchange(self, requests: Sequence[Request]) -> Iterator[Reply]:
        list(super().exchange(requests))
        yield from ()


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_an_absent_client_is_noted_and_changes_nothing(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapa.simulation.InProcess", Deaf)
    result = play(Toy(), toy_data(), Plan(2, ALL, schedule))  # type: ignore[arg-type]
    for t, log in enumerate(result.logs):
        assert sorted(log.trained) == [0, 2, 3]
        assert [tuple(event)[:3] for event in log.events] == [(t, 1, "absent")]
        assert 1 not in log.up_bytes
        assert log.before is not None
        assert log.before[1, 0].tolist() == [0, 0, 0, 0]
    assert result.records[1].state["w"].item() == 0


def test_a_round_without_any_answer_leaves_the_server_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapa.simulation.InProcess", Silent)
    result = play(Toy(), toy_data(), Plan(2, ALL))
    assert result.state.server["w"].item() == 0
    assert [event.kind for event in result.logs[0].events] == ["absent"] * 4 + ["empty"]


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
@pytest.mark.parametrize(("toy", "why"), [(Toy(nan=(2,)), "NaN"), (Toy(shapeless=(2,)), "shape")])
def test_an_unsound_upload_is_refused_and_leaves_no_trace(toy: Toy, why: str, schedule: str) -> None:
    result = play(toy, toy_data(), Plan(2, ALL, schedule))  # type: ignore[arg-type]
    for log in result.logs:
        assert sorted(log.trained) == [0, 1, 3]
        assert [(event.client, event.kind) for event in log.events] == [(2, "refused")]
        assert "client 2" in log.events[0].text
        assert why in log.events[0].text
        assert 2 not in log.up_bytes
        assert 2 in log.down_bytes
    assert result.records[2].state["w"].item() == 0  # as it started
    assert result.records[1].state["w"].item() > 0


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_if_every_upload_is_refused_the_run_fails(schedule: str) -> None:
    with pytest.raises(RunError, match="every upload was refused") as caught:
        play(Toy(nan=tuple(range(4))), toy_data(), Plan(2, ALL, schedule))  # type: ignore[arg-type]
    assert caught.value.exit_code == 1
    assert "learning rate" in caught.value.hint


def test_every_class_is_somewhere_in_the_toy_data() -> None:
    assert len(TESTS[0]) == CLASSES
