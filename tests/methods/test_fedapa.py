"""FedAPA end to end on three clients: one round by hand, the released code step by step, the options' limits."""

from dataclasses import replace

import pytest
import torch

from fedapa.core import weights
from fedapa.core.tree import Tree
from fedapa.errors import InputError
from fedapa.methods.catalogue import make
from fedapa.methods.fedapa import FedAPA
from fedapa.training.model import build_model
from fedapa.training.task import Task
from fedapa.verify.case import Case

TASK = Task(build_model("mlp", (2,), 2), 2, torch.tensor([10, 10, 10]))
THETA = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
A = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])


def server(A: torch.Tensor = A) -> Tree:
    return {"theta": THETA, "A": A, "velocity": torch.zeros(3, 3)}


def absorb(method: FedAPA, state: Tree, ups: dict[int, list[float]]) -> Tree:
    downs = [method.send(TASK, state, i) for i in ups]
    return method.absorb(TASK, state, list(ups), downs, [{"theta": torch.tensor(up)} for up in ups.values()])


def test_one_round_by_hand() -> None:
    """Clients 0 and 1 answer. Client 0 is sent (0.75, 0.5) and returns (1.25, 0.5): Delta = (0.5, 0).

    Client 1 is sent (0.5, 0.75) and returns (0.5, 0.5): Delta = (0, -0.25). eta = 0.1.
    """
    method = FedAPA(eta=0.1)
    assert method.send(TASK, server(), 0)["theta"].tolist() == [0.75, 0.5]
    assert method.send(TASK, server(), 1)["theta"].tolist() == [0.5, 0.75]
    new = absorb(method, server(), {0: [1.25, 0.5], 1: [0.5, 0.5]})
    # row 0 moves by 0.1 (0.5, 0, 0.5) to (0.55, 0.25, 0.30); own entry 0.5; sum 1.05
    assert new["A"][0].tolist() == pytest.approx([0.5 / 1.05, 0.25 / 1.05, 0.30 / 1.05])
    # row 1 moves by 0.1 (0, -0.25, -0.25) to (0.25, 0.475, 0.225); own entry 0.5; sum 0.975
    assert new["A"][1].tolist() == pytest.approx([0.25 / 0.975, 0.5 / 0.975, 0.225 / 0.975])
    assert new["A"][2].tolist() == [0.0, 0.0, 1.0]
    assert new["theta"].tolist() == [[1.25, 0.5], [0.5, 0.5], [1.0, 1.0]]


def test_printed_sign_moves_the_other_way() -> None:
    new = absorb(FedAPA(eta=0.1, sign="printed"), server(), {0: [1.25, 0.5]})
    # (0.5, 0.25, 0.25) - 0.1 (0.5, 0, 0.5) = (0.45, 0.25, 0.20); own entry 0.5; sum 0.95
    assert new["A"][0].tolist() == pytest.approx([0.5 / 0.95, 0.25 / 0.95, 0.20 / 0.95])


def test_exact_share() -> None:
    new = absorb(FedAPA(eta=0.1, mu=0.6, self_weight="share"), server(), {0: [1.25, 0.5]})
    assert new["A"][0].tolist() == pytest.approx([0.6, 0.4 * 0.25 / 0.55, 0.4 * 0.30 / 0.55])


def released_code(ups: list[tuple[int, list[float]]], eta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The released algorithm in plain torch: one matrix under one SGD, clients one after another."""
    theta, matrix = THETA.clone(), torch.nn.Parameter(torch.eye(3))
    optimiser = torch.optim.SGD([matrix], lr=eta, momentum=0.9)
    for i, up in ups:
        with torch.no_grad():
            matrix[i, i] = 1.0
            matrix[i] /= matrix[i].sum()
        sent = matrix[i] @ theta
        optimiser.zero_grad()
        sent.backward(sent.detach() - torch.tensor(up))  # initial minus final
        optimiser.step()
        with torch.no_grad():
            matrix.clamp_(0, 1)
        theta[i] = torch.tensor(up)
    return matrix.detach(), theta


def test_reference_is_the_released_code() -> None:
    ups = [(2, [2.0, 1.5]), (0, [1.5, 0.5]), (1, [0.2, 1.4]), (0, [1.8, 0.4]), (2, [1.0, 2.5])]
    state, method = server(torch.eye(3)), FedAPA.reference(eta=0.05)
    for i, up in ups:
        state = absorb(method, state, {i: up})
    matrix, theta = released_code(ups, 0.05)
    assert torch.allclose(state["A"], matrix, atol=1e-6)
    assert torch.allclose(state["theta"], theta)
    assert not torch.allclose(matrix, torch.eye(3))  # the case is not trivial


def test_clients_that_share_a_buffer_step_one_after_another() -> None:
    """Slopes of clients 0 and 1 are (0.5, 0.5, 1) and (0, 0.2, 0.2). The second step moves row 0 again, by 0.9 of its
    first: 0.1 (1 + 0.9) (0.5, 0.5, 1); the own entries are clipped to 1."""
    new = absorb(FedAPA.reference(eta=0.1), server(torch.eye(3)), {0: [1.5, 0.5], 1: [0.0, 1.2]})
    assert new["A"][0].tolist() == pytest.approx([1.0, 0.095, 0.19])
    assert new["A"][1].tolist() == pytest.approx([0.0, 1.0, 0.02])


def test_reference_by_name_and_by_classmethod_are_the_same() -> None:
    assert make("fedapa-reference") == FedAPA.reference()
    assert FedAPA.reference().schedule == "sequential"
    assert FedAPA().schedule == "parallel"


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_without_learning_rate_it_is_local_training_bit_for_bit(schedule: str) -> None:
    mine, alone = (Case(method, schedule).run() for method in (FedAPA(eta=0.0), make("local")))  # type: ignore[arg-type]
    for a, b in zip(mine.records, alone.records, strict=True):
        assert torch.equal(a.state["theta"], b.state["theta"])
        assert torch.equal(a.state["phi"], b.state["phi"])
    assert mine.scores() == alone.scores()


def test_heads_never_leave() -> None:
    case = Case(FedAPA())
    down, up = case.exchanges[-1]
    assert [tuple(leaf.shape) for leaf in (*down.values(), *up.values())] == [(case.task.P,)] * 2


def test_sharing_the_whole_model_is_an_option() -> None:
    case = Case(FedAPA(shared="model"))
    assert case.exchanges[-1][1]["theta"].numel() == case.task.P + case.task.Q


def test_weights_of_a_round_can_be_watched() -> None:
    logs = Case(FedAPA()).usual().logs
    assert all(torch.allclose(log.watched["A"].sum(1), torch.ones(4), atol=1e-5) for log in logs)


def test_a_share_needs_normalised_rows() -> None:
    with pytest.raises(InputError, match="normalise is off"):
        FedAPA(self_weight="share", normalise=False)


def test_projection_options_reach_the_arithmetic() -> None:
    bare = replace(FedAPA(eta=1.0), clip=False, self_weight="off", normalise=False)
    new = absorb(bare, server(), {0: [4.75, 0.5]})
    expected = A[0] + weights.slopes(torch.tensor([[4.0, 0.0]]), THETA)[0]
    assert new["A"][0].tolist() == expected.tolist()
