"""Rows of many clients together: the optimum of the solver for one row, by its bound and by the conditions of the
optimum; the same bits whatever the number of cores."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedapa.core import exact_rows, exact_weights, simplex, simplex_rows, threads
from fedapa.core.exact_rows import Rows
from fedapa.core.simplex_rows import Programs
from fedapa.methods.fedapa_exact import FedAPAExact
from fedapa.methods.fedpac import combination

M = 150
KINDS = ("alike", "groups", "mixture", "copies")


def gaps_of(kind: str, seed: int = 0) -> Tensor:
    """Squared distances of models of one kind: scattered, in groups, between groups, or some of them equal."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    theta, centres, group = normal(M, 60), 4 * normal(5, 60), torch.arange(M) % 5
    if kind == "groups":
        theta = centres[group] + 0.5 * theta
    if kind == "mixture":
        share = torch.rand(M, 5, generator=random, dtype=torch.float64) ** 3
        theta = share / share.sum(1, keepdim=True) @ centres + 0.2 * theta
    if kind == "copies":
        theta[: M // 3] = theta[0]
    return (theta[:, None] - theta).square().sum(2)


def rows_of(gaps: Tensor, known: Tensor, jump: float = math.inf, top_k: int = 0, start: Tensor | None = None) -> Tensor:
    start = torch.zeros(M, M) if start is None else start
    wanted = Rows(torch.arange(M), 0.5, torch.full((M,), jump, dtype=torch.float64), top_k, start)
    return torch.cat([found.weights for found in exact_rows.of_others(exact_rows.cloud(gaps, known), wanted)])


@pytest.mark.parametrize(("kind", "top_k"), [*((kind, 0) for kind in KINDS), ("alike", 20), ("mixture", 20)])
def test_rows_are_those_that_are_solved_one_by_one(kind: str, top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplex_rows.simplex, "minimise", refuse)  # no row needs the solver for one
    gaps, known = gaps_of(kind), torch.rand(M, generator=torch.Generator().manual_seed(1)) < 0.95
    found = rows_of(gaps, known, 3.0, top_k)
    monkeypatch.undo()
    for i in range(0, M, 25):
        mixed = exact_weights.closest(gaps, i, known, top_k) if top_k else known
        mixed = exact_weights.companions(gaps, i, mixed, 3.0)
        torch.testing.assert_close(found[i], exact_weights.of_others(gaps, i, mixed, 0.5), atol=1e-8, rtol=0)


def refuse(*_: object) -> Tensor:
    raise AssertionError("a row was left to the solver for one row")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_meet_the_conditions_of_the_optimum(kind: str) -> None:
    gaps, known = gaps_of(kind), torch.ones(M, dtype=torch.bool)
    found = rows_of(gaps, known)
    assert found.min() >= 0
    assert found.diagonal().abs().max() == 0
    torch.testing.assert_close(found.sum(1), torch.ones(M, dtype=torch.float64))
    for i in range(0, M, 10):
        K = exact_weights.around(gaps, i)
        unit = 0.5 * gaps[i].sum() / (M - 1)
        slope = K @ found[i] + unit * found[i]
        level = slope @ found[i]
        others = torch.arange(M) != i
        assert (slope - level)[others].min() >= -2e-8 * gaps.max()
        assert ((slope - level) * found[i]).abs().max() <= 2e-8 * gaps.max()


def test_a_start_changes_no_more_than_the_bound_allows() -> None:
    known = torch.ones(M, dtype=torch.bool)
    cold, before = rows_of(gaps_of("mixture"), known), rows_of(gaps_of("mixture", 1), known)
    torch.testing.assert_close(rows_of(gaps_of("mixture"), known, start=before), cold, atol=1e-8, rtol=0)


def test_rows_do_not_pass_before_they_are_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass is not enough for any row: all are then solved alone, and right all the same."""
    monkeypatch.setattr(simplex_rows, "PASSES", 1)
    asked = []
    minimise = simplex.minimise
    monkeypatch.setattr(simplex_rows.simplex, "minimise", lambda *given: asked.append(1) or minimise(*given))
    gaps, known = gaps_of("alike")[:40, :40], torch.ones(40, dtype=torch.bool)
    around = exact_rows.cloud(gaps, known)
    wanted = Rows(torch.arange(40), 0.5, torch.full((40,), math.inf, dtype=torch.float64), 0, torch.zeros(40, 40))
    (found,) = exact_rows.of_others(around, wanted)
    assert len(asked) == 40
    torch.testing.assert_close(found.weights[3], exact_weights.of_others(gaps, 3, known, 0.5), atol=1e-8, rtol=0)


def test_bits_do_not_depend_on_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps, known = gaps_of("groups"), torch.ones(M, dtype=torch.bool)
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(threads, "available_cores", lambda cores=cores: cores)
        found.append(rows_of(gaps, known))
    assert torch.equal(*found)


def test_models_that_are_all_equal_are_mixed_evenly() -> None:
    found = rows_of(torch.zeros(M, M, dtype=torch.float64), torch.ones(M, dtype=torch.bool))
    torch.testing.assert_close(found[0, 1:], torch.full((M - 1,), 1 / (M - 1), dtype=torch.float64))


def test_two_clients_by_hand() -> None:
    """C = 0: the minimiser of ridge |a|^2 - 2 c'a is the projection of c / ridge."""
    c = torch.tensor([[0.3, 0.1, 0.0], [1.0, 0.0, 5.0]], dtype=torch.float64)
    allowed = torch.tensor([[True, True, True], [True, True, False]])
    programs = Programs(torch.zeros(3, 3).double(), c, torch.ones(2).double(), allowed, torch.zeros(2, 3))
    expected = torch.tensor([[0.3 + 0.2, 0.1 + 0.2, 0.2], [1.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(simplex_rows.minimise(programs), expected)


def test_fedpac_combines_many_heads_as_it_combines_few(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(2)
    h, V = torch.randn(M, 40, generator=random), 0.5 + torch.rand(M, generator=random)
    together = combination(h, V)
    monkeypatch.setattr(exact_rows, "MANY", M)
    torch.testing.assert_close(together, combination(h, V), atol=1e-6, rtol=0)


@pytest.mark.parametrize("rule", ["cut", "cut-even", "settle", "fixed"])
@pytest.mark.parametrize("top_k", [0, 12])
def test_every_rule_gives_the_rows_that_it_gives_one_by_one(rule: str, top_k: int) -> None:
    N = 40
    gaps = gaps_of("groups")[:N, :N].clone()
    heard = torch.where(torch.arange(N) % 3 == 0, 2.0, 9.0)  # some are still mixed broadly
    heard[7] = 0.0
    method = FedAPAExact(rule=rule, top_k=top_k)  # type: ignore[arg-type]
    state = {"gaps": gaps[None], "heard": heard, "A": torch.eye(N)[None].clone()}
    own = torch.arange(0, N, 2)
    method._write_rows(state, 0, own)
    for i in own.tolist():
        row = 0.5 * torch.eye(N)[i] + 0.5 * method._row({}, state, 0, i, gaps[i]).float()
        torch.testing.assert_close(state["A"][0, i], row, atol=1e-7, rtol=0)
