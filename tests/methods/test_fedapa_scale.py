"""Many clients: one pass in place, messages made together, thin rows, and a server's state in a mapped file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedapa.core import weights
from fedapa.core.tree import Tree, clone, digest
from fedapa.errors import RunError
from fedapa.methods.catalogue import make
from fedapa.methods.fedamp import gram
from fedapa.methods.fedapa import FedAPA
from fedapa.methods.method import Method
from fedapa.rounds import loop, messages_sent
from fedapa.rounds.messages_sent import Sent
from fedapa.rounds.round_log import RoundLog, State
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.tensor_storage import TensorStore, is_mapped
from fedapa.simulation import Result, simulate
from fedapa.store import checkpoint
from fedapa.store.checkpoint import Checkpoint
from fedapa.training.model import build_model
from fedapa.training.task import Task
from fedapa.verify.case import Case

M, P = 24, 50
TASK = Task(build_model("mlp", (2,), 2), 2, torch.arange(M, 0, -1))
IDS = [17, 3, 9]
TOGETHER = ("fedapa", "fedapa-reference", "fedamp", "fedamp-heur", "pfedgraph")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "WIDE", 16)


def server(seed: int = 0) -> Tree:
    random = torch.Generator().manual_seed(seed)
    A = weights.project(torch.rand(M, M, generator=random), torch.arange(M))
    return {"theta": torch.randn(M, P, generator=random), "A": A, "velocity": torch.zeros(M, M)}


def uploads() -> list[Tree]:
    return [{"theta": row} for row in torch.randn(3, P, generator=torch.Generator().manual_seed(5))]


@pytest.mark.parametrize("method", [FedAPA(eta=0.01), FedAPA.reference(eta=0.01), FedAPA(eta=0.01, top_k=2)])
def test_one_pass_is_the_stacked_formula(method: FedAPA) -> None:
    """What was sent, stacked; what came back, stacked; their difference against all of Theta."""
    state, ups = server(), uploads()
    downs = [method.send(TASK, state, i) for i in IDS]
    new, sent = (torch.stack([tree["theta"] for tree in trees]) for trees in (ups, downs))
    slope, A, velocity = weights.slopes(new - sent, state["theta"]), state["A"], state["velocity"]
    for group, step in method._groups(torch.tensor(IDS), slope):
        A = A.index_put((group,), method._served(A[group], group))
        A, velocity = weights.descend(A, velocity, group, step, 0.01, method.weight_momentum, method.buffer)
        A = method._stored(A, group)
    found = method.absorb(TASK, state, IDS, downs, ups)
    torch.testing.assert_close(found["A"], A)
    torch.testing.assert_close(found["velocity"], velocity, rtol=1e-4, atol=1e-5)
    assert torch.equal(found["theta"], state["theta"].index_put((torch.tensor(IDS),), new))


def test_a_state_that_is_given_away_is_changed_in_place_to_the_same_bits() -> None:
    state, ups = server(), uploads()
    kept = FedAPA().absorb(TASK, state, IDS, [], ups)
    given = clone(state)
    donated = FedAPA().absorb(replace(TASK, donate=True), given, IDS, [], ups)
    assert donated["theta"].data_ptr() == given["theta"].data_ptr()
    assert digest(donated) == digest(kept)
    assert digest(state) == digest(server())


@pytest.mark.parametrize("name", TOGETHER)
def test_messages_made_together_are_the_ones_made_alone(name: str) -> None:
    case = Case(make(name))
    state = case.usual().server
    for i, down in zip((2, 0, 3), case.method.send_many(case.task, state, [2, 0, 3]), strict=True):
        alone = case.method.send(case.task, state, i)
        assert down.keys() == alone.keys()
        torch.testing.assert_close(down, alone)


def test_thin_rows_mix_few_models_and_let_others_back_in() -> None:
    method, state = FedAPA(eta=0.05, top_k=2), server()
    assert method._sparse(TASK)
    assert not FedAPA(top_k=3)._sparse(TASK)
    for seed in range(4):
        new = list(torch.randn(M, P, generator=torch.Generator().manual_seed(seed)))
        before = state["A"]
        state = method.absorb(TASK, state, range(M), [], [{"theta": row} for row in new])
        others = state["A"].clone().fill_diagonal_(0)
        assert int((others != 0).sum(1).max()) == 2
        torch.testing.assert_close(state["A"].sum(1), torch.ones(M))
        torch.testing.assert_close(method.send(TASK, state, 7)["theta"], state["A"][7] @ state["theta"])
    assert ((before == 0) & (state["A"] > 0)).any()


@pytest.mark.parametrize("name", ["fedapa", "fedapa-reference"])
def test_as_many_others_as_there_are_is_no_limit(name: str) -> None:
    whole, same, fewer = (Case(make(name, top_k=k)).run(8) for k in (0, 3, 1))
    assert digest(whole.tree()) == digest(same.tree())
    assert digest(fewer.tree()) != digest(whole.tree())


class Counting(FedAPA):
    calls: list[list[int]] = []  # noqa: RUF012

    def send_many(self, task: Task, server: Tree, ids: object) -> list[Tree]:
        self.calls.append(list(ids))  # type: ignore[call-overload]
        return super().send_many(task, server, ids)  # type: ignore[arg-type]


def test_a_cohort_is_mailed_in_groups_largest_clients_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_sent, "SEND_TOGETHER", 2)
    monkeypatch.setattr(Counting, "calls", [])
    sent = Sent(Counting(), TASK, server(), [9, 3, 17], [5, 4])
    first = sent.to(3)
    assert Counting.calls == [[3, 9]]  # sizes fall with the index
    sent.to(9), sent.to(17), sent.to(4)
    assert Counting.calls == [[3, 9], [17], [4, 5]]
    assert sent.to(3) is first
    assert [k["theta"].data_ptr() for k in sent.only([3])] == [first["theta"].data_ptr()]
    assert sent.bytes == {3: 4 * P, 9: 4 * P, 17: 4 * P, 4: 4 * P}


def test_what_is_too_large_to_keep_is_made_again_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_sent, "KEEP_SENT", 4 * P)
    monkeypatch.setattr(Counting, "calls", [])
    sent = Sent(Counting(), TASK, server(), [9, 3, 17])
    downs = {i: sent.to(i) for i in (9, 3, 17)}
    assert torch.equal(sent.to(3)["theta"], downs[3]["theta"])
    assert Counting.calls == [[3, 9, 17], [3, 9, 17]]  # alone, its sums would round otherwise
    assert torch.equal(sent.to(17)["theta"], downs[17]["theta"])


@pytest.mark.parametrize("name", TOGETHER[:3])
def test_how_often_a_run_is_evaluated_changes_no_model(name: str) -> None:
    case = Case(make(name))
    ends = []
    for every in (1, 3):
        transport = case.transport(workers=3)
        plan = replace(case.plan(), evaluate_every=every)
        begin = loop.start(case.method, case.task, plan.seed)[0]
        end = loop.run(case.context(transport, plan), begin, lambda log, state: None)
        ends.append((digest(end.server), [digest(record.state) for record in transport.records()]))
    assert ends[0] == ends[1]


class Stop(Exception):
    pass


def play(method: Method, folder: Path | None, limit: float, stop: int = -1) -> Result:
    def progress(log: RoundLog) -> None:
        if log.round == stop:
            raise Stop

    case = Case(method)
    return simulate(
        method, case.task, case.data, Plan(4, (0.5, 1.0), seed=7), folder, progress=progress, mmap_above_mb=limit
    )


@pytest.mark.parametrize("name", ["fedapa", "fedamp", "apple", "fedpac"])
def test_a_mapped_state_gives_the_same_bits_also_when_resumed(name: str, tmp_path: Path) -> None:
    plain = play(make(name), None, 1024)
    assert not any(is_mapped(leaf) for leaf in plain.state.server.values())
    with pytest.raises(Stop):
        play(make(name), tmp_path, 0, stop=1)
    mapped = play(make(name), tmp_path, 0)
    assert is_mapped(mapped.state.server[{"fedapa": "theta", "fedamp": "omega", "apple": "cores"}.get(name, "phi")])
    assert digest(mapped.state.server) == digest(plain.state.server)
    for mine, theirs in zip(mapped.records, plain.records, strict=True):
        assert digest(mine.state) == digest(theirs.state)
    assert not list(tmp_path.glob("**/*.mapped"))


def test_only_what_is_too_large_is_mapped(tmp_path: Path) -> None:
    held = TensorStore(100, tmp_path).hold(
        {"small": torch.ones(25), "large": torch.ones(26), "same": torch.ones(1).expand(5)}
    )
    assert [is_mapped(leaf) for leaf in held.values()] == [False, True, False]
    assert all(leaf.eq(1).all() and leaf.is_contiguous() for leaf in held.values())
    again = TensorStore(100, tmp_path).hold(held)
    assert all(again[k] is held[k] for k in held)


def test_a_checkpoint_is_read_right_into_its_place(tmp_path: Path) -> None:
    state = State(1, {"theta": torch.randn(4, 30), "n": torch.ones(2)}, np.zeros((4, 4), np.int64))
    path = checkpoint.write(tmp_path, Checkpoint(state, []))
    found = checkpoint.read(path, TensorStore(100, tmp_path)).state.server
    assert [is_mapped(found[name]) for name in ("theta", "n")] == [True, False]
    assert digest(found) == digest(state.server)


def test_no_room_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot map .* No such file"):
        TensorStore(0, tmp_path / "nowhere").empty((3,), torch.float32)
    with pytest.raises(RunError, match="cannot map"):
        TensorStore(0, tmp_path).empty((2**58,), torch.float32)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["fedamp", "fedamp-heur"])
def test_fedamp_keeps_its_inner_products_up_to_date(name: str) -> None:
    case = Case(make(name))
    state = case.usual().server
    omega = state["omega"].double()
    torch.testing.assert_close(state["gram"], omega @ omega.T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gram({"omega": state["omega"]}), state["gram"], rtol=1e-5, atol=1e-5)
    one = case.method.absorb(case.task, state, [1], [], [{"omega": state["omega"][1] + 1}])
    torch.testing.assert_close(one["gram"], gram({"omega": one["omega"]}), rtol=1e-5, atol=1e-5)
    bare = case.method.send(case.task, {"omega": state["omega"]}, 1)
    torch.testing.assert_close(bare, case.method.send(case.task, state, 1), rtol=1e-4, atol=1e-5)
