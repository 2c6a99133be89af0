"""FedAPA-scored: which mixture a client starts from, what it scores it on, and that those samples never train."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.data.federated import Split
from fedapa.methods.fedapa_scored import STEPS, FedAPAScored
from fedapa.methods.sharing import held_out
from fedapa.training.local import Local

METHOD = FedAPAScored(holdout=0.25)
TASK = make_task()


def server() -> Tree:
    """Clients 0 and 1 have been heard from; client 0's row is (3/4, 1/4, 0)."""
    state, _ = METHOD.init(TASK, 0)
    random = torch.Generator().manual_seed(3)
    A = torch.eye(3)[None].clone()
    A[0, 0] = torch.tensor([0.75, 0.25, 0.0])
    theta = state["theta"] + 0.1 * torch.randn(3, TASK.P, generator=random)
    return {**state, "theta": theta, "A": A, "heard": torch.tensor([1.0, 1.0, 0.0])}


def visit(down: Tree, data: Split, t: int = 0) -> tuple[Tree, Tree, Tree]:
    local = Local(TASK, 0, t, 0, data)
    shown = METHOD.receive(TASK, METHOD.init(TASK, 0)[1], down, local)
    return shown, *METHOD.train(TASK, shown, down, local)


def mixture(weight: float) -> Tensor:
    theta = server()["theta"]
    return weight * theta[0] + (1 - weight) * theta[1]


def test_starts_from_its_own_row_before_any_score_and_from_the_least_loss_after() -> None:
    state = server()
    down = METHOD.send(TASK, state, 0)
    torch.testing.assert_close(visit(down, make_data()[0])[0]["theta"], mixture(0.75))
    for k, c in enumerate(STEPS.tolist()):
        state["losses"][0] = 1.0 - F.one_hot(torch.tensor(k), 5)
        shown = visit(METHOD.send(TASK, state, 0), make_data()[0])[0]
        torch.testing.assert_close(shown["theta"], mixture((1 - c) * 0.75 + c * 0.5))


def test_losses_are_those_of_the_held_out_samples_which_never_train() -> None:
    down, data = METHOD.send(TASK, server(), 0), make_data()[0]
    shown, trained, up = visit(down, data)
    learn, score = held_out(Local(TASK, 0, 0, 0, data), METHOD.holdout)
    assert (len(learn), len(score)) == (9, 3)
    assert sorted([*learn.tolist(), *score.tolist()]) == list(range(12))
    for k, c in enumerate(STEPS.tolist()):
        model = torch.cat([mixture((1 - c) * 0.75 + c * 0.5), shown["phi"]])
        expected = F.cross_entropy(net(model, data.x[score]), data.y[score])
        assert float(up["losses"][k]) == pytest.approx(float(expected), rel=1e-5)
    other = data.x.clone()
    other[score] += 3.0
    _, same, told = visit(down, Split(other, data.y))
    assert torch.equal(same["theta"], trained["theta"])
    assert not torch.allclose(told["losses"], up["losses"])
    again = held_out(Local(TASK, 0, 9, 0, data), METHOD.holdout)
    assert torch.equal(again[1], score)


def test_a_client_with_one_sample_scores_on_it() -> None:
    one = Split(torch.zeros(1, 4), torch.zeros(1).long())
    learn, score = held_out(Local(TASK, 0, 0, 0, one), METHOD.holdout)
    assert learn.tolist() == score.tolist() == [0]


def test_scores_are_averaged_over_rounds_and_the_rows_shown_follow_them() -> None:
    state = METHOD.init(TASK, 0)[0]
    ups = [{"theta": state["theta"][0] + k, "losses": torch.tensor([4.0, 3, 2, 1, 9])} for k in range(3)]
    state = METHOD.absorb(TASK, state, [0, 1, 2], [], ups)
    assert state["losses"][1].tolist() == [4, 3, 2, 1, 9]
    state = METHOD.absorb(TASK, state, [1], [], [{**ups[1], "losses": torch.tensor([2.0, 3, 0, 3, 9])}])
    assert state["losses"][1].tolist() == [3, 3, 1, 2, 9]
    seen = METHOD.watch(state)
    assert seen["dial"].tolist() == [0.75, 0.5, 0.75]
    torch.testing.assert_close(seen["A"][1], 0.5 * state["A"][0, 1] + 0.5 / 3)
    torch.testing.assert_close(seen["A"].sum(1), torch.ones(3))
