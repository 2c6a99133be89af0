"""Visits that the laws share: the same bits as visits that are made, each made once, and none taken for another."""

import pytest
import torch

from fedapa.core.tree import digest
from fedapa.methods.catalogue import make
from fedapa.rounds.transport import InProcess, Reply, Request
from fedapa.training.settings import Training
from fedapa.verify.case import ROUNDS, Case, Outcome, Remembering, Tampering

FRESH = 7.125e-3  # settings that no other test has, so that nothing is known when a test begins


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Round and client of every visit that is made."""
    seen: list[tuple[int, int]] = []
    plain = InProcess._visit_one

    def watched(self: InProcess, request: Request, engine: object) -> object:
        seen.append((request.round, request.client))
        return plain(self, request, engine)  # type: ignore[arg-type]

    monkeypatch.setattr(InProcess, "_visit_one", watched)
    return seen


def bits(outcome: Outcome) -> str:
    return digest(outcome.tree())


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_known_visits_have_the_bits_of_new_ones(schedule, made: list[tuple[int, int]]) -> None:
    case = Case(make("fedala", eta=0.5 + FRESH), schedule)
    fresh = case.run()
    every = sorted(made)
    made.clear()
    first = case.after(ROUNDS)
    assert sorted(made) == every
    made.clear()
    again, part = case.after(ROUNDS), Case(case.method, schedule).after(2)
    assert {t for t, _ in made} <= {2}  # what the last aggregation of the shorter run sends
    assert bits(fresh) == bits(first) == bits(again)
    assert fresh.scores() == first.scores() == again.scores()
    assert bits(part) == bits(case.run(2))


def test_what_differs_is_visited(made: list[tuple[int, int]]) -> None:
    """Another server state, another client state, another round: the rest of a run is played."""

    class Shifted(Tampering):
        def tamper(self, replies: list[Reply]) -> list[Reply]:
            return [r if r.up is None else r._replace(up={k: v + 1.0 for k, v in r.up.items()}) for r in replies]

    case = Case(make("fedper"), training=Training(0.05 + FRESH, batch=8, epochs=1))
    case.after(ROUNDS)
    made.clear()
    case.run(transport=Shifted.on(case))
    assert {t for t, _ in made} == {1, 2, 3, 4}  # the first round is that of the usual run


def test_rounds_that_look_alike_are_not_the_same() -> None:
    """Where nobody's upload is accepted every round sends the same, and draws other batches."""

    class Deaf(Remembering):
        def commit(self, clients) -> None:
            super().commit([])

    case = Case(make("local"))
    transport = Deaf.on(case)
    first, second = (transport._play([Request(t, 0, dict, True, False)])[0][0].state for t in (0, 1))
    assert digest(first) != digest(second)


def test_nobody_changes_what_is_known() -> None:
    case = Case(make("fedavg"))
    transport = Remembering.on(case)
    request = Request(0, 0, lambda: case.method.send(case.task, case.method.init(case.task, 7)[0], 0), True, False)
    ((record, reply),) = transport._play([request])
    kept = digest(record.state), digest(reply.up or {})
    for leaf in (*record.state.values(), *(reply.up or {}).values()):
        leaf.add_(1) if leaf.is_floating_point() else leaf.add_(torch.ones_like(leaf))
    ((record, reply),) = transport._play([request])
    assert (digest(record.state), digest(reply.up or {})) == kept
