"""The constants against independent oracles, and the corrected bound in every round of many runs of the real method."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core.tree import digest
from fedapa.data.federated import Federated
from fedapa.methods.fedapa import FedAPA
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import simulate
from fedapa.theory import PROBLEMS, Constants, Steps, bound, corrected, measure, printed
from fedapa.theory.problem import CLASSES, FEATURES, HIDDEN, SAMPLES, Problem
from fedapa.theory.trace import Round, play
from fedapa.training.settings import Training

WHOLE = Training(0.5, 0.0, SAMPLES, 5, keep_momentum=False)  # all samples in every step: nothing is left to chance


def logits(problem: Problem, model: Tensor, x: Tensor) -> Tensor:
    """Both models written out."""
    if problem.name == "logistic":
        return x @ model[:-CLASSES].view(CLASSES, FEATURES).T + model[-CLASSES:]
    weight, bias, head, last = model.split([HIDDEN * FEATURES, HIDDEN, CLASSES * HIDDEN, CLASSES])
    return torch.tanh(x @ weight.view(HIDDEN, FEATURES).T + bias) @ head.view(CLASSES, HIDDEN).T + last


def loss(problem: Problem, data: Federated, i: int, model: Tensor) -> Tensor:
    train = data.clients[i].train
    return F.cross_entropy(logits(problem, model, train.x.double()), train.y)


def ran(
    problem: Problem, method: FedAPA, seed: int = 0, rounds: int = 6, low: float = 1.0, training: Training | None = None
) -> tuple[list[Round], Steps, Constants, Federated, Any]:
    data = problem.data(4, seed)
    task = problem.task(data, rounds, training)
    found = play(method, task, data, Plan(rounds, (low, 1.0), seed=seed, evaluate_every=rounds), start=seed)
    steps = bound.steps(method, task, data, found)
    L1, L2 = problem.constants(data, float(steps.head.max()))
    c = Constants(L1, L2, 0.0, float(steps.norm.max()), task.training.lr, method.eta)
    return found, steps, c, data, task


# ---------------------------------------------------------------------------------------------------------- constants


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_no_hessian_and_no_gradient_is_larger_than_proved(problem: Problem) -> None:
    data = problem.data(2, 3)
    task = problem.task(data, 1)
    random, bends, steeps = torch.Generator().manual_seed(0), [], []
    for scale in (0.0, 0.3, 1.0, 3.0):
        model = scale * torch.randn(task.P + task.Q, generator=random, dtype=torch.float64)
        radius = float(model[task.P :].norm())
        L1, L2 = problem.constants(data, radius)
        for i in range(2):
            hessian = torch.autograd.functional.hessian(lambda m, i=i: loss(problem, data, i, m), model)
            (slope,) = torch.autograd.grad(loss(problem, data, i, model.requires_grad_()), model)
            model = model.detach()
            bends.append(float(torch.linalg.eigvalsh(hessian).abs().max()) / L1)
            steeps.append(float(slope[: task.P].norm()) / max(L2, 1e-12))
    assert max(bends) <= 1
    assert max(steeps) <= 1
    assert problem.name == "tanh" or max(bends) > 0.5  # the bound of logistic regression is no wild guess


def test_the_loss_its_gradient_and_its_noise_are_those_of_the_formula() -> None:
    for problem in PROBLEMS.values():
        data = problem.data(2, 1)
        task = problem.task(data, 1)
        models = torch.randn(3, task.P + task.Q, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found = bound.look(task, data.clients[1].train, models)
        for k, model in enumerate(models):
            leaf = model.clone().requires_grad_()
            value = loss(problem, data, 1, leaf)
            (slope,) = torch.autograd.grad(value, leaf)
            assert float(found.loss[k]) == pytest.approx(value.item())
            assert torch.allclose(found.slope[k], slope)
            each = [_one_gradient(problem, data, model, sample) for sample in range(SAMPLES)]
            noise = torch.stack(each).sub(slope).square().sum(1).mean()
            assert float(found.noise[k]) == pytest.approx(float(noise))


def _one_gradient(problem: Problem, data: Federated, model: Tensor, k: int) -> Tensor:
    leaf, train = model.clone().requires_grad_(), data.clients[1].train
    value = F.cross_entropy(logits(problem, leaf, train.x[k : k + 1].double()), train.y[k : k + 1])
    return torch.autograd.grad(value, leaf)[0]


def test_the_variance_of_a_batch_by_counting_all_batches() -> None:
    gradients = np.random.default_rng(0).normal(size=(7, 5))
    mean = gradients.mean(0)
    batches = [gradients[list(chosen)].mean(0) for chosen in combinations(range(7), 4)]
    exact = np.mean([((batch - mean) ** 2).sum() for batch in batches])
    noise = float(((gradients - mean) ** 2).sum(1).mean())
    assert bound.batch_variance(noise, 7, 4) == pytest.approx(exact)
    assert bound.batch_variance(noise, 7, 7) == 0


# --------------------------------------------------------------------------------------------------- the real rounds


def test_watching_changes_no_bit() -> None:
    problem, method, plan = PROBLEMS["tanh"], FedAPA(eta=0.1), Plan(3, (0.5, 1.0), seed=4)
    data = problem.data(4, 4)
    task = problem.task(data, 3)
    plain = simulate(method, task, data, plan, workers=1)
    assert digest(play(method, task, data, plan, start=4)[-1].new) == digest(plain.state.server)


def test_a_path_is_the_steps_that_were_taken() -> None:
    """With all samples in every step, each iterate is the one before minus lr times the gradient."""
    problem = PROBLEMS["logistic"]
    found, _, _, data, _ = ran(problem, FedAPA(eta=0.1), rounds=2, training=WHOLE)
    for now in found:
        for i, path in now.paths.items():
            assert len(path) == 6
            for one, other in zip(path[:-1].double(), path[1:].double(), strict=True):
                leaf = one.clone().requires_grad_()
                (slope,) = torch.autograd.grad(loss(problem, data, i, leaf), leaf)
                assert torch.allclose(other, one - 0.5 * slope, atol=1e-6)


VARIANTS: dict[str, tuple[FedAPA, float, Training | None]] = {
    "as in the paper": (FedAPA(), 1.0, None),
    "large steps of A": (FedAPA(eta=2.0), 1.0, None),
    "printed sign": (FedAPA(eta=0.5, sign="printed"), 1.0, None),
    "exact share": (FedAPA(eta=0.5, self_weight="share", mu=0.2), 1.0, None),
    "no self-weight": (FedAPA(eta=0.5, self_weight="off"), 1.0, None),
    "some clients idle": (FedAPA(eta=0.5), 0.5, None),
    "momentum and shuffled epochs": (FedAPA(eta=0.5), 1.0, Training(0.05, 0.9, 16, 2, drop_last=False)),
    "bare steps": (FedAPA(eta=0.01, clip=False, self_weight="off", normalise=False), 1.0, None),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_corrected_bound_holds_in_every_round(problem: Problem, variant: str) -> None:
    method, low, training = VARIANTS[variant]
    for seed in (0, 1):
        _, s, c, _, _ = ran(problem, method, seed, low=low, training=training)
        slack = bound.slack(c)
        assert (s.change <= corrected(s, c) + slack).all()
        assert (s.gap <= bound.corrected_server(s, c) + slack).all()
        assert (s.change - s.gap <= s.along + c.L1 / 2 * s.moved + slack).all()
        if method.normalise:
            assert (s.drift <= s.spread + slack).all()
            assert (corrected(s, c) <= s.along + c.L1 / 2 * s.moved + bound.coarse_server(s, c) + slack).all()
        if method.normalise and method.self_weight == "raw":
            assert (s.share <= bound.next_share(s.old_share, method.eta * s.pull, method.mu) + slack).all()
        assert (s.change > s.along).any()  # without the curvature it would not hold,
        assert method.sign == "printed" or (abs(s.gap) > 1e-4).any()  # and mixing matters here


def test_without_the_servers_term_it_would_fail() -> None:
    _, s, c, _, _ = ran(PROBLEMS["logistic"], FedAPA(eta=0.5), rounds=10)
    assert (s.change > s.along + c.L1 / 2 * s.moved).any()


def test_clients_that_sat_out() -> None:
    """Theirs is L2 times the sum over j of a_ij |theta_j moved|; their own row stands still."""
    seen = 0
    for problem in PROBLEMS.values():
        found, _, c, data, task = ran(problem, FedAPA(eta=0.5), seed=2, rounds=10, low=0.5)
        phi = dict.fromkeys(range(4), task.init(2)[1].double())
        for before, now in pairwise(found):
            phi |= {i: path[-1, task.P :].double() for i, path in before.paths.items()}
            for i in set(range(4)) - now.paths.keys():
                assert torch.equal(now.old["A"][i], now.new["A"][i])
                ends = [task.join(sent[i].double(), phi[i]) for sent in (before.sent, now.sent)]
                change = float(loss(problem, data, i, ends[1]) - loss(problem, data, i, ends[0]))
                moved = (now.new["theta"] - now.old["theta"]).double().norm(dim=1)
                assert change <= c.L2 * float(now.new["A"][i].double() @ moved) + bound.slack(c)
                seen += change != 0
    assert seen > 5


# -------------------------------------------------------------------------------------------------- what is printed


@pytest.fixture(scope="module")
def tiny_step() -> tuple[Steps, Constants]:
    """A tiny eta, as the corollary asks for, and no chance at all: sigma = 0."""
    _, s, c, _, _ = ran(PROBLEMS["logistic"], FedAPA(eta=1e-6), rounds=30, training=WHOLE)
    return s, c


def test_theorem_1_fails_where_all_its_assumptions_hold(tiny_step: tuple[Steps, Constants]) -> None:
    s, c = tiny_step
    broken = s.change > printed(s, c) + bound.slack(c)
    assert broken.any()
    assert s.round[broken].min() > 10  # it takes some rounds of doubling
    assert (s.change <= corrected(s, c) + bound.slack(c)).all()


def test_lemma_2_fails_and_the_share_ends_at_one_minus_mu(tiny_step: tuple[Steps, Constants]) -> None:
    s, c = tiny_step
    assert (s.row > bound.printed_row(s, c)).any()
    assert s.share[s.round == 29].mean() == pytest.approx(0.5, abs=0.02)
    middle = [s.share[(s.round == t) & (s.client == 0)].item() for t in (8, 9)]
    assert middle[1] / middle[0] == pytest.approx(2, rel=0.2)


def test_the_printed_sign_ascends_its_own_proxy(tiny_step: tuple[Steps, Constants]) -> None:
    s, _ = tiny_step
    assert (s.descended < s.proxy).all()
    assert (s.ascended > s.proxy).all()


def test_measuring_gives_one_row_a_round_and_calls_no_chance_a_failure() -> None:
    found = measure(PROBLEMS["logistic"], 0.01, clients=2, rounds=3, repeats=2, seed=1)
    rows, facts = found.by_round(), found.summary()
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert facts["corrected_broken"] == facts["printed_broken"] == 0
    assert facts["L1_seen"] <= facts["L1"]
    assert facts["L2_seen"] <= facts["L2"]
    assert 0 < facts["variance"] < 1
    first = [row["printed_mixing"] / rows[0]["printed_mixing"] for row in rows]
    assert first == pytest.approx([1, 2, 3])  # the printed term grows with t
