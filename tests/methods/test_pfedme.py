"""pFedMe on a quadratic by hand, against plain autograd, its limits (FedAvg, FedPer), and which model is used."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import count_bytes
from fedapa.methods import pfedme
from fedapa.methods.catalogue import make
from fedapa.methods.pfedme import PFedMe
from fedapa.training.task import Batch
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def quadratic(task, params, batch, given):
    """|x|^2 / 2 plus the pull, in place of a classification."""
    value = sum(0.5 * v.square().sum() for v in params.values())
    return value + 0.5 * given["rho"] * sum((params[k] - given[f"anchor_{k}"]).square().sum() for k in params)


def test_a_quadratic_by_hand(monkeypatch) -> None:
    """lambda = 15, a = 0, w = 16: v = 15, gradient 15, and a step of 0.01 leaves w = 15.85."""
    monkeypatch.setattr(pfedme, "proximal", quadratic)
    task, data = make_task(lr=0.01, momentum=0.0, epochs=1), make_data()
    method = PFedMe(lam=15.0, inner_lr=1 / 16, inner_steps=2)
    server, state = method.init(task, 0)
    server, state = {"omega": torch.full_like(server["omega"], 16.0)}, {k: v * 0 + 16 for k, v in state.items()}
    _, trained, _, up = visit(method, task, state, server, 0, data)
    torch.testing.assert_close(trained["personal_theta"], torch.full((task.P,), 15.0))
    torch.testing.assert_close(up["omega"], torch.full((task.P + task.Q,), 15.85))


@pytest.mark.parametrize("restart", [False, True])
def test_two_mini_batches_against_plain_autograd(restart: bool) -> None:
    task, data = make_task(lr=0.05, momentum=0.9, epochs=2), make_data()
    method = PFedMe(lam=2.0, inner_lr=0.1, inner_steps=3, restart=restart)
    server, state = method.init(task, 1)
    w = v = server["omega"]
    push = torch.zeros_like(w)
    for _ in range(2):
        v = w if restart else v
        for _ in range(3):
            leaf = v.clone().requires_grad_()
            loss = F.cross_entropy(net(leaf, data[0].x), data[0].y) + 1.0 * (leaf - w).square().sum()
            v = v - 0.1 * torch.autograd.grad(loss, leaf)[0]
        push = 0.9 * push + 2.0 * (w - v)
        w = w - 0.05 * push
    shown, trained, _, up = visit(method, task, state, server, 0, data)
    torch.testing.assert_close(up["omega"], w, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(torch.cat([trained["personal_theta"], trained["personal_phi"]]), v, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(method.predict(task, trained, data[0].x), net(v, data[0].x), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(method.predict(task, shown, data[0].x), net(server["omega"], data[0].x))


def test_the_model_in_use_is_the_personal_one() -> None:
    """In four public codes it is another one."""
    task, data = make_task(), make_data()
    server, state = PFedMe().init(task, 0)
    _, trained, _, _ = visit(PFedMe(), task, state, server, 0, data)
    moved = {**trained, "personal_phi": trained["personal_phi"] + torch.arange(task.Q)}
    answers = [PFedMe().predict(task, tree, data[0].x) for tree in (trained, moved)]
    assert (answers[0] - answers[1]).abs().max() > 1
    local = PFedMe(used="local")
    torch.testing.assert_close(local.predict(task, moved, data[0].x), net(omega(trained), data[0].x))
    arrived = {"omega": server["omega"] + 1}
    assert torch.equal(visit(PFedMe(), task, trained, arrived, 0, data, 1)[0]["personal_phi"], trained["personal_phi"])


def test_the_servers_step() -> None:
    """beta = 0 keeps w (PFLlib's default), 1 is the mean, 2 goes as far again."""
    task = make_task()
    server = {"omega": torch.zeros(3)}
    ups = [{"omega": torch.tensor([1.0, 2.0, 3.0]), "n": torch.tensor([12.0])}] * 2
    ups[1] = {"omega": torch.tensor([4.0, 2.0, 0.0]), "n": torch.tensor([6.0])}
    for beta in (0.0, 1.0, 2.0):
        found = PFedMe(beta=beta).absorb(task, server, [0, 1], [], ups)["omega"]
        torch.testing.assert_close(found, beta * torch.tensor([2.0, 2.0, 2.0]))


def test_a_strong_pull_ties_the_personal_model() -> None:
    task, data = make_task(epochs=3), make_data()
    gaps = []
    for lam in (0.1, 15.0, 60.0):
        method = PFedMe(lam=lam, used="personal")
        server, state = method.init(task, 0)
        found = visit(method, task, state, server, 0, data)[1]
        gaps.append((found["personal_theta"] - found["theta"]).norm().item())
    assert gaps[0] > gaps[1] > gaps[2] > 0


@pytest.mark.parametrize("law", ["engines-agree", "sent-arrives", "limits-are-met", "bytes-are-true"])
def test_laws_with_private_heads(law: str) -> None:
    LAWS[law](Case(make("pfedme", shared="extractor")))


def test_with_private_heads_the_head_never_leaves() -> None:
    task, data, method = make_task(), make_data(), PFedMe(shared="extractor")
    server, state = method.init(task, 0)
    _, trained, down, up = visit(method, task, state, server, 0, data)
    assert count_bytes(down) == 4 * task.P == count_bytes(up) - 4
    again = method.receive(task, trained, {"theta": down["theta"] + 1}, None)
    assert torch.equal(again["phi"], trained["phi"])
    assert not torch.equal(trained["phi"], state["phi"])


def test_the_pull_is_part_of_every_inner_step() -> None:
    task, data = make_task(), make_data()
    method = PFedMe(lam=4.0, inner_lr=0.05, inner_steps=1)
    theta, phi = task.init(0)
    w = {"theta": theta, "phi": phi}
    far = {"personal_theta": theta + 1, "personal_phi": phi + 1}
    _, found = method.envelope(task, w, Batch(data[0].x, data[0].y), far)
    leaf = (torch.cat([theta, phi]) + 1).requires_grad_()
    slope = torch.autograd.grad(F.cross_entropy(net(leaf, data[0].x), data[0].y), leaf)[0]
    wanted = leaf.detach() - 0.05 * (slope + 4.0)
    torch.testing.assert_close(torch.cat(list(found.values())), wanted, atol=1e-5, rtol=1e-5)
