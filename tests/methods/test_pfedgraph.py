"""pFedGraph: its program against three other solvers, its pull against plain autograd, and who is mixed when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from three_clients import SIZES, make_data, make_task, net, omega, visit

from fedapa.core import simplex
from fedapa.core.tree import clone, count_bytes
from fedapa.methods.catalogue import make
from fedapa.methods.pfedgraph import PFedGraph
from fedapa.training.model import build_model
from fedapa.training.task import Task
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def row(method, s, n):
    """a_0 of a client with these similarities to all, itself first."""
    gram = torch.eye(len(n), dtype=torch.float64)
    gram[0, :] = gram[:, 0] = torch.tensor(s, dtype=torch.float64)
    return method.rows({"gram": gram, "n": torch.tensor(n)}, torch.tensor([0]))[0]


@pytest.mark.parametrize(
    ("alpha", "s", "n", "expected"),
    [
        (0.8, (1.0, 1.0, 0.3), (5.0, 5.0, 5.0), (0.479167, 0.479167, 0.041667)),
        (0.4, (1.0, 1.0, 0.3), (5.0, 5.0, 5.0), (0.5, 0.5, 0.0)),
        (8.0, (1.0, 1.0, 0.3), (5.0, 5.0, 5.0), (0.347917, 0.347917, 0.304167)),
        (0.8, (1.0, 0.5, -0.2), (5.0, 3.0, 2.0), (0.75625, 0.24375, 0.0)),
        (0.8, (1.0, 0.91, 0.3), (5.0, 5.0, 5.0), (0.479167, 0.479167, 0.041667)),  # above 0.9 counts as 1
        (0.8, (1.0, 0.5, 0.8), (5.0, 3.0, 0.0), (0.78125, 0.21875, 0.0)),  # never heard from: not mixed
    ],
)
def test_rows_by_hand(alpha, s, n, expected):
    assert row(PFedGraph(alpha=alpha), s, n).tolist() == pytest.approx(expected, abs=1e-6)


def random_state(clients, seed):
    random = np.random.default_rng(seed)
    delta = torch.from_numpy(random.normal(size=(clients, 3)) + 0.5)
    return {"gram": delta @ delta.T, "n": torch.from_numpy(random.integers(1, 50, clients)).double()}


@pytest.mark.parametrize("seed", range(6))
def test_the_program_against_a_general_solver_and_the_active_set(seed):
    """min alpha |a - p|^2 - s'a on the simplex, as the authors hand it to cvxpy."""
    method, M = PFedGraph(alpha=[0.1, 0.8, 5.0][seed % 3]), 4 + seed
    state = random_state(M, seed)
    A, s = method.rows(state, torch.arange(M)), method._similarity(state["gram"], torch.arange(M))
    p = state["n"] / state["n"].sum()
    for i in range(M):
        found = simplex.minimise(method.alpha * torch.eye(M, dtype=torch.float64), method.alpha * p + s[i] / 2)
        assert A[i].tolist() == pytest.approx(found.tolist(), abs=1e-9)
        theirs = minimize(
            lambda a, i=i: method.alpha * ((a - p.numpy()) ** 2).sum() - s[i].numpy() @ a,
            p.numpy(),
            bounds=[(0, 1)] * M,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        assert A[i].tolist() == pytest.approx(theirs.x, abs=1e-5)
    assert torch.all(A >= 0)
    torch.testing.assert_close(A.sum(1), torch.ones(M, dtype=torch.float64))


@pytest.mark.parametrize(("alpha", "size", "edge"), [(0.8, 2, 0.2), (0.8, 4, 0.6), (0.4, 4, 0.8), (0.8, 10, 0.84)])
def test_outsiders_of_a_group_get_nothing_below_a_similarity_that_depends_on_its_size(alpha, size, edge):
    for c in (edge - 0.01, edge + 0.01):
        similar = (1.0,) * size + (c,) * (20 - size)
        outside = row(PFedGraph(alpha=alpha), similar, (7.0,) * 20)[size:]
        assert bool((outside > 0).all()) == (c > edge) == bool((outside > 0).any())


def test_the_server_measures_directions_from_the_initial_model():
    task, data = make_task(), make_data()
    method = PFedGraph()
    server, client = method.init(task, 0)
    visits = [visit(method, task, client, server, i, data) for i in (2, 0)]
    new = method.absorb(task, server, [2, 0], [v[2] for v in visits], [v[3] for v in visits])
    delta = torch.stack([visits[1][3]["omega"], visits[0][3]["omega"]]) - server["start"]
    torch.testing.assert_close(new["gram"][[0, 2]][:, [0, 2]], (delta.double() @ delta.double().T), rtol=1e-4, atol=0)
    assert new["gram"][1].tolist() == [0.0, 0.0, 0.0]
    assert new["n"].tolist() == [SIZES[0], 0.0, SIZES[2]]
    A = method.watch(new)["A"]
    cosine = float(F.cosine_similarity(delta[0], delta[1], 0))
    assert A[0].tolist() == pytest.approx(row(method, (1.0, 0.0, cosine), (12.0, 0.0, 5.0)).tolist(), abs=1e-6)
    expected = sum(float(A[0, j]) * new["omega"][j] for j in range(3))
    torch.testing.assert_close(method.send(task, new, 0)["omega"], expected)


def test_who_was_never_heard_from_has_itself_and_shares_of_samples():
    state = {"gram": torch.diag(torch.tensor([2.0, 3.0, 0.0], dtype=torch.float64)), "n": torch.tensor([6.0, 2.0, 0.0])}
    found = PFedGraph(alpha=0.8).rows(state, torch.tensor([2]))[0]
    expected = simplex.project(torch.tensor([0.75, 0.25, 0.625], dtype=torch.float64))
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-12)


@pytest.mark.parametrize("over", ["heard", "round"])
def test_whom_a_round_mixes(over):
    task, data = make_task(), make_data()
    method = PFedGraph(over=over)
    server, client = method.init(task, 0)
    for ids in ([0, 1], [1, 2]):
        visits = [visit(method, task, client, server, i, data) for i in ids]
        server = method.absorb(task, server, ids, [v[2] for v in visits], [v[3] for v in visits])
    assert server["n"].tolist() == ([12.0, 7.0, 5.0] if over == "heard" else [0.0, 7.0, 5.0])
    assert (method.watch(server)["A"][1, 0] > 0) == (over == "heard")
    assert torch.equal(server["gram"], server["gram"].T)


@pytest.mark.parametrize("shared", ["model", "extractor"])
@pytest.mark.parametrize("sign", ["toward", "released"])
def test_training_against_plain_autograd(shared, sign):
    task, data, method = make_task(lr=0.05, epochs=3), make_data(), PFedGraph(lam=3.0, sign=sign, shared=shared)
    server, client = method.init(task, 0)
    shown, trained, down, up = visit(method, task, client, server, 1, data)
    size = task.P if shared == "extractor" else task.P + task.Q
    assert torch.equal(omega(shown)[:size], down["omega"])
    assert torch.equal(up["omega"], omega(trained)[:size])
    w, v = omega(shown), 0.0
    for _ in range(3):
        leaf = w.clone().requires_grad_()
        own, target = leaf[:size], down["omega"]
        cosine = own @ target / own.norm() / target.norm()
        loss = F.cross_entropy(net(leaf, data[1].x), data[1].y) - (3.0 if sign == "toward" else -3.0) * cosine
        v = 0.9 * v + torch.autograd.grad(loss, leaf)[0]
        w = w - 0.05 * v
    torch.testing.assert_close(omega(trained), w, atol=1e-6, rtol=1e-5)


def test_the_released_sign_leads_away_from_the_mixture():
    task, data = make_task(lr=0.05, epochs=3), make_data()
    cosines = []
    for lam, sign in ((0.0, "toward"), (5.0, "toward"), (5.0, "released")):
        method = PFedGraph(lam=lam, sign=sign)
        server, client = method.init(task, 0)
        _, trained, down, _ = visit(method, task, client, server, 0, data)
        cosines.append(F.cosine_similarity(omega(trained), down["omega"], 0))
    assert cosines[2] < cosines[0] < cosines[1]


def test_a_number_of_batches_instead_of_epochs():
    task, data, method = make_task(batch=4, epochs=1), make_data(), PFedGraph(lam=0.0)
    server, client = method.init(task, 0)
    short, long = (visit(replace(method, local_steps=k), task, client, server, 0, data)[1] for k in (1, 40))
    way = [(omega(trained) - omega(client)).norm() for trained in (short, long)]
    assert way[1] > 5 * way[0]


def test_the_server_state_is_given_away_or_left_alone():
    task, data, method = make_task(), make_data(), PFedGraph()
    server, client = method.init(task, 0)
    _, _, down, up = visit(method, task, client, server, 1, data)
    new, server = method.absorb(task, server, [1], [down], [up]), clone(server)
    donated = method.absorb(replace(task, donate=True), server, [1], [down], [up])
    assert donated["omega"].data_ptr() == server["omega"].data_ptr()
    assert torch.equal(donated["omega"], new["omega"])


def test_bytes_of_both_variants():
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50))
    sizes = [count_bytes(m.send(task, m.init(task, 0)[0], 0)) for m in (PFedGraph(), PFedGraph(shared="extractor"))]
    assert sizes == [4 * 62_006, 4 * 61_156]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("settings", [{"shared": "extractor"}, {"over": "round", "sign": "released"}])
def test_laws_of_the_variants(law, settings):
    LAWS[law](Case(make("pfedgraph", **settings)))
