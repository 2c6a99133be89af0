"""FedAPA-exact: a round by hand, every rule's memory, blocks, and the laws under every rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedapa.core import exact_weights, weights
from fedapa.core.tree import Tree, clone, count_bytes, digest
from fedapa.errors import InputError
from fedapa.methods.catalogue import make
from fedapa.methods.fedapa_exact import CANDIDATES, FedAPAExact, layers
from fedapa.training.model import build_model
from fedapa.training.task import Task
from fedapa.verify import LAWS
from fedapa.verify.case import Case

RULES = ("cut", "cut-even", "settle", "tested", "neighbour", "noise", "leave-one-out", "stability", "fixed")
VARIANTS = [
    *(FedAPAExact(rule=rule) for rule in RULES[1:]),  # type: ignore[arg-type]
    FedAPAExact(per_layer=True),
    FedAPAExact(server_ema=0.5, fine_tune=True),
]
TASK = Task(build_model("mlp", (2,), 2), 2, torch.tensor([10, 10, 10]))


class Flat:
    """A task that only says how long theta is: all that the server's side asks for."""

    def __init__(self, clients: int, size: int) -> None:
        self.clients, self.P, self.donate = clients, size, False
        self.model = type("Model", (), {"theta_trainable": size})()

    def init(self, seed: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.P), torch.zeros(1)


def absorb(method: FedAPAExact, task: Flat, server: Tree, ups: dict[int, Tensor]) -> Tree:
    return method.absorb(task, server, list(ups), [], [{"theta": up} for up in ups.values()])  # type: ignore[arg-type]


def start(method: FedAPAExact, clients: int, size: int) -> tuple[Flat, Tree]:
    task = Flat(clients, size)
    return task, method.init(task, 0)[0]  # type: ignore[arg-type]


def test_one_round_by_hand() -> None:
    """Clients 0, 1, 2 on a line at 0, 1 and 3: without a ridge client 0 mixes client 1 alone, half of it itself."""
    method = FedAPAExact(rule="fixed", measure="distance", ridge=0.0, share=0.5, row_ema=0.5)
    task, server = start(method, 3, 1)
    new = absorb(method, task, server, {0: torch.tensor([0.0]), 1: torch.tensor([1.0]), 2: torch.tensor([3.0])})
    assert new["gaps"][0].tolist() == [[0, 1, 9], [1, 0, 4], [9, 4, 0]]
    assert new["A"][0, 0].tolist() == pytest.approx([0.75, 0.25, 0], abs=1e-6)  # half of e_0, half of (1/2, 1/2, 0)
    # client 1 lies between: 1 = 2/3 of 0 and 1/3 of 3
    assert new["A"][0, 1].tolist() == pytest.approx([1 / 6, 0.75, 1 / 12], abs=1e-6)
    assert method.send(task, new, 1)["theta"].tolist() == pytest.approx([1.0], abs=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_a_newcomer_by_hand(rule: str) -> None:
    """Clients at 0, 1 and 3: the newcomer starts at 4/3, is mixed by nobody, and then at 1 has a neighbour."""
    method = FedAPAExact(rule=rule, ridge=0.0, share=0.5, row_ema=0.0)  # type: ignore[arg-type]
    task, server = start(method, 3, 1)
    old = absorb(method, task, server, {0: torch.tensor([0.0]), 1: torch.tensor([1.0]), 2: torch.tensor([3.0])})
    larger = Flat(4, 1)
    new = method.admit(larger, old)  # type: ignore[arg-type]
    assert {k: v.shape for k, v in new.items()} == {k: v.shape for k, v in method.init(larger, 0)[0].items()}  # type: ignore[arg-type]
    assert new["theta"][3].tolist() == pytest.approx([4 / 3])
    assert new["gaps"][0, 3].tolist() == pytest.approx([16 / 9, 1 / 9, 25 / 9, 0])
    assert torch.equal(new["gaps"][0], new["gaps"][0].T)
    assert new["A"][0, 3].tolist() == [0, 0, 0, 1]
    assert new["heard"].tolist() == [1, 1, 1, 0]
    later = absorb(method, larger, new, {3: torch.tensor([1.0])})
    assert later["gaps"][0, 3].tolist() == [1, 0, 4, 0]
    assert torch.equal(later["A"][0, :3], new["A"][0, :3])
    if rule in ("cut", "settle", "fixed"):  # half of it itself, and without a ridge the others' mixture is at 1 as well
        assert float(later["A"][0, 3, 3]) == pytest.approx(0.5)
        assert float(later["A"][0, 3] @ later["theta"][:, 0]) == pytest.approx(1.0, abs=1e-4)


def test_gaps_are_renewed_for_those_who_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "WIDE", 16)
    method = FedAPAExact()
    task, state = start(method, 6, 50)
    random = torch.Generator().manual_seed(4)
    for ids in ([3, 0, 5], [1, 3], [2, 4, 0], [5]):
        state = absorb(method, task, state, {i: 100 + torch.randn(50, generator=random) for i in ids})
        theta = state["theta"].double()
        torch.testing.assert_close(state["gaps"][0], (theta[:, None] - theta).square().sum(2), rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(state["A"].sum(2), torch.ones(1, 6))


def test_models_are_averaged_over_visits_by_hand() -> None:
    """Client 0 sends 0 and then 8: a quarter of the past leaves it at 6, six away from client 1 who stayed at 0."""
    method = FedAPAExact(server_ema=0.25)
    task, server = start(method, 2, 3)
    first = absorb(method, task, server, {0: torch.zeros(3), 1: torch.zeros(3)})
    new = absorb(method, task, first, {0: torch.full((3,), 8.0)})
    assert new["theta"].tolist() == [[6.0] * 3, [0.0] * 3]
    assert new["gaps"][0].tolist() == [[0, 108], [108, 0]]
    alone = absorb(method, task, server, {0: torch.full((3,), 8.0)})  # the common start is no model of the client's
    assert alone["theta"][0].tolist() == [8.0] * 3


def test_rows_of_idle_clients_stay_and_who_was_never_heard_from_is_not_mixed() -> None:
    method = FedAPAExact(rule="fixed", ridge=1.0)
    task, state = start(method, 4, 8)
    new = absorb(method, task, state, {i: torch.randn(8, generator=torch.Generator().manual_seed(i)) for i in (0, 2)})
    assert torch.equal(new["A"][0, [1, 3]], torch.eye(4)[[1, 3]])
    assert not new["A"][0, [0, 2]][:, [1, 3]].any()


def test_a_server_that_is_given_away_is_changed_in_place() -> None:
    method = FedAPAExact()
    task, state = start(method, 4, 8)
    ups = {i: torch.randn(8, generator=torch.Generator().manual_seed(i)) for i in range(4)}
    state = absorb(method, task, state, ups)
    kept, task.donate = absorb(method, task, state, {1: ups[2]}), True
    given = clone(state)
    donated = absorb(method, task, given, {1: ups[2]})
    assert donated["theta"].data_ptr() == given["theta"].data_ptr()
    assert digest(donated) == digest(kept)


def two_groups(method: FedAPAExact, malicious: bool = False) -> Tree:
    """Six clients, even and odd, send noisy copies of two models for six rounds; ``malicious`` adds one far away."""
    task, state = start(method, 6 + malicious, 2000)
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(2, 2000, generator=random)
    for _ in range(6):
        noisy = {i: centres[i % 2] + 0.2 * torch.randn(2000, generator=random) for i in range(6)}
        state = absorb(method, task, state, noisy | ({6: -20 * centres[0]} if malicious else {}))
    return method.watch(state)


def test_two_groups_are_found_and_shown() -> None:
    seen = two_groups(FedAPAExact(share=0.2, patience=0))
    assert seen["groups"].tolist() == [0, 1, 0, 1, 0, 1]
    assert not seen["A"][::2, 1::2].any()
    expected = 1 / (0.2125**2 + 2 * 0.39375**2)  # the self share is 0.2, and 1/64 of the rest is still the first row
    assert seen["collaborators"].tolist() == pytest.approx([expected] * 6, abs=0.05)


def test_one_client_far_away_hides_no_group() -> None:
    seen = two_groups(FedAPAExact(share=0.2, patience=0), malicious=True)
    assert seen["groups"].tolist() == [0, 1, 0, 1, 0, 1, 6]
    assert not seen["A"][:6, 6].any()
    assert not seen["A"][:6:2, 1:6:2].any()


def test_the_price_that_the_nearest_neighbour_sets_averages_a_group() -> None:
    seen = two_groups(FedAPAExact(rule="neighbour", ridge=0.0))
    assert seen["groups"].tolist() == [0, 1, 0, 1, 0, 1]
    assert seen["collaborators"].tolist() == pytest.approx([3.0] * 6, abs=0.1)


def test_nobody_is_cut_off_where_distances_do_not_jump() -> None:
    method, evenly = FedAPAExact(row_ema=0.0, patience=0), FedAPAExact(rule="fixed", row_ema=0.0)
    task, state = start(method, 5, 2)
    near = {i: torch.tensor([float(i), 0.0]) for i in range(5)}  # from client 0: 1, 4, 9, 16, no jump beyond 4
    mild = FedAPAExact(row_ema=0.0, patience=0, jump_ratio=4.5)
    assert torch.equal(absorb(mild, task, state, near)["A"], absorb(evenly, task, state, near)["A"])
    assert not torch.equal(absorb(method, task, state, near)["A"], absorb(evenly, task, state, near)["A"])
    far = {**near, 4: torch.tensor([1000.0, 0.0])}
    assert not absorb(mild, task, state, far)["A"][0, :4, 4].any()


def test_who_settles_mixes_all_others_evenly_by_hand() -> None:
    """Clients at 0, 1, 1.5 and 8: squared distances from client 3 are 42, 49, 64, from 0 they jump: 1, 2.25, 64."""
    method = FedAPAExact(rule="settle", row_ema=0.0, patience=1)
    task, state = start(method, 4, 1)
    ups = {i: torch.tensor([x]) for i, x in enumerate((0.0, 1.0, 1.5, 8.0))}
    first = absorb(method, task, state, ups)
    as_cut = absorb(replace(method, rule="cut"), task, state, ups)
    assert torch.equal(first["A"], as_cut["A"])  # heard from once: the solve and its ridge
    assert first["A"][0, 3, 2] > first["A"][0, 3, 0]
    A = absorb(method, task, first, ups)["A"][0]
    torch.testing.assert_close(A[3], torch.tensor([0.8 / 3, 0.8 / 3, 0.8 / 3, 0.2]))
    near = replace(method, rule="fixed")  # the same program over client 0 and those before the jump
    three = absorb(near, *start(near, 4, 1), {i: ups[i] for i in range(3)})["A"][0]
    torch.testing.assert_close(A[0], three[0])
    assert not A[0, 3]


def test_nobody_is_cut_off_before_a_client_was_heard_often_enough() -> None:
    method = FedAPAExact(row_ema=0.0, patience=2)
    task, state = start(method, 4, 1)
    ups = {0: torch.tensor([0.0]), 1: torch.tensor([1.0]), 2: torch.tensor([1.2]), 3: torch.tensor([90.0])}
    for _ in range(2):
        state = absorb(method, task, state, ups)
        assert bool(state["A"][0, 0, 3])
    state = absorb(method, task, state, {0: ups[0]})
    assert not state["A"][0, 0, 3]
    assert bool(state["A"][0, 1, 3])  # heard from twice only
    assert state["heard"].tolist() == [3, 2, 2, 2]


def test_the_measure_reaches_the_arithmetic() -> None:
    method = FedAPAExact(rule="fixed", measure="direction", ridge=0.1, share=0.0, row_ema=0.0)
    task, state = start(method, 4, 9)
    ups = {i: torch.randn(9, generator=torch.Generator().manual_seed(i)) * (i + 1) for i in range(4)}
    new = absorb(method, task, state, ups)
    for i in range(4):
        known = new["heard"] > 0
        row = exact_weights.of_others(exact_weights.directions(new["gaps"][0], known), i, known, 0.1)
        torch.testing.assert_close(new["A"][0, i], row.float())


def test_noise_is_the_squared_way_between_two_uploads() -> None:
    method = FedAPAExact(rule="noise")
    task, state = start(method, 2, 4)
    state = absorb(method, task, state, {0: torch.tensor([2.0, 0, 0, 0]), 1: torch.tensor([0, 1.0, 0, 0])})
    assert state["noise"].tolist() == [[4.0, 1.0]]
    state = absorb(method, task, state, {0: torch.tensor([2.0, 0, 0, 4.0])})
    assert state["noise"].tolist() == [[(4.0 + 16.0) / 2, 1.0]]


def test_leave_one_out_scores_last_rounds_mixtures_on_the_next_upload() -> None:
    method = FedAPAExact(rule="leave-one-out", measure="distance")
    task, state = start(method, 3, 1)
    state = absorb(method, task, state, {0: torch.tensor([0.0]), 1: torch.tensor([1.0]), 2: torch.tensor([3.0])})
    assert not state["errors"].any()
    new = absorb(method, task, state, {0: torch.tensor([0.4])})
    known, gaps = state["heard"] > 0, state["gaps"][0]
    theta = torch.tensor([0.0, 1.0, 3.0]).double()
    for k, (ridge, share) in enumerate(CANDIDATES):
        row = exact_weights.shared(exact_weights.of_others(gaps, 0, known, ridge), 0, share)
        assert float(new["errors"][0, 0, k]) == pytest.approx((0.4 - float(row @ theta)) ** 2 / 5 / 2, abs=1e-6)
    assert not new["errors"][0, 1:].any()


def test_stability_raises_the_ridge_of_a_row_that_jumps() -> None:
    method = FedAPAExact(rule="stability", measure="distance")
    task, state = start(method, 3, 2)
    points = {0: torch.tensor([0.0, 0]), 1: torch.tensor([1.0, 0]), 2: torch.tensor([0, 5.0])}
    state = absorb(method, task, state, points)
    before = float(state["ridges"][0, 0])
    calm = absorb(method, task, state, {0: points[0]})
    jumping = absorb(method, task, state, {0: torch.tensor([0, 5.0])})
    assert float(calm["ridges"][0, 0]) == pytest.approx(before / 1.5)
    assert float(jumping["ridges"][0, 0]) == pytest.approx(before * 1.5)


def test_blocks_are_the_same_rule_layer_by_layer() -> None:
    method = FedAPAExact(per_layer=True)
    state = method.init(TASK, 0)[0]
    random = torch.Generator().manual_seed(2)
    ups = [{"theta": state["theta"][0] + torch.randn(TASK.P, generator=random)} for _ in range(3)]
    new = method.absorb(TASK, state, [0, 1, 2], [], ups)
    assert len(new["A"]) == len({block for _, block in layers(TASK)}) == 2
    theta = torch.stack([up["theta"] for up in ups])
    sent = method.send(TASK, new, 1)["theta"]
    for piece, block in layers(TASK):
        torch.testing.assert_close(sent[piece], new["A"][block, 1] @ theta[:, piece])
    own = torch.cat([theta[:, piece] for piece, block in layers(TASK) if block == 1], 1).double()
    torch.testing.assert_close(new["gaps"][1], (own[:, None] - own).square().sum(2), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(new["A"][0], new["A"][1])


def test_statistics_of_batch_norm_are_mixed_but_not_measured() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    task = Task(build_model(model, (2,), 2, "3"), 2, torch.tensor([9, 9]))
    stop = task.model.theta_trainable
    assert stop < task.P
    for method in (FedAPAExact(), FedAPAExact(per_layer=True)):
        state, _ = method.init(task, 0)
        up = state["theta"][0].clone()
        up[stop:] += 5.0
        new = method.absorb(task, state, [0, 1], [], [{"theta": up}, {"theta": up + 1}])
        assert float(new["gaps"].sum(0)[0, 1]) == pytest.approx(stop, rel=1e-5)
        assert torch.equal(new["theta"][0], up)
        assert float(method.send(task, new, 0)["theta"][stop]) > float(up[stop])


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("method", VARIANTS, ids=str)
def test_laws_under_every_rule(method: FedAPAExact, law: str) -> None:
    LAWS[law](Case(method))


def test_messages_are_fedapas() -> None:
    mine, theirs = (Case(make(name)).exchanges[-1] for name in ("fedapa-exact", "fedapa"))
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        assert count_bytes(one) == count_bytes(other)


def test_messages_made_together_are_the_ones_made_alone() -> None:
    for method in (FedAPAExact(), FedAPAExact(per_layer=True)):
        case = Case(method)
        state = case.usual().server
        for i, down in zip((2, 0, 3), method.send_many(case.task, state, [2, 0, 3]), strict=True):
            torch.testing.assert_close(down, method.send(case.task, state, i))


def test_a_row_is_the_minimiser_of_the_proxy_with_models_held_still() -> None:
    """No other row of the simplex is better, seen from the models instead of the gaps."""
    method = FedAPAExact(rule="fixed", measure="distance", ridge=0.0, share=0.0, row_ema=0.0)
    case = Case(method)
    server, _, ups = case.visits()
    new = method.absorb(case.task, server, [0, 1, 2], [], ups)
    theta = new["theta"].double()
    for i in range(3):
        best = float((theta[i] - new["A"][0, i].double() @ theta).square().sum())
        others = [j for j in range(4) if j != i and new["heard"][j]]
        tried = np.random.default_rng(i).dirichlet(np.full(len(others), 0.5), 300)
        mixed = torch.from_numpy(tried) @ theta[others]
        assert float((theta[i] - mixed).square().sum(1).min()) >= best - 1e-6


@pytest.mark.parametrize(("old", "new"), [("clear", "jump_ratio"), ("keep", "row_ema"), ("steady", "fedapa-exact+ema")])
def test_old_names_say_what_they_are_called_now(old: str, new: str) -> None:
    with pytest.raises(InputError, match=f"no hyper-parameter '{old}' any more") as error:
        make("fedapa-exact", **{old: 0.5})
    assert new in error.value.hint


def test_known_groups_are_mixed_evenly_by_hand() -> None:
    method = FedAPAExact(rule="given", sizes="2,1,1", row_ema=0.0)
    case = Case(method)
    server, downs, ups = case.visits()  # of clients 0, 1 and 2
    A = method.absorb(case.task, server, [0, 1, 2], downs, ups)["A"][0]
    assert A[0].tolist() == A[1].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert A[2].tolist() == [0.0, 0.0, 1.0, 0.0]
    with pytest.raises(InputError, match=r"sizes = '2,1' are not those of groups of 4 clients"):
        replace(method, sizes="2,1").absorb(case.task, server, [0, 1, 2], downs, ups)
    with pytest.raises(InputError, match="sizes = '' are not sizes of groups"):
        FedAPAExact(rule="given")
    with pytest.raises(InputError, match="sizes = '4,0' are not sizes"):
        FedAPAExact(sizes="4,0")


def test_a_group_that_was_found_is_mixed_evenly_with_cut_even() -> None:
    known = {0: 0.0, 1: 0.1, 2: 0.3, 3: 9.0}
    gaps = torch.tensor([[(a - b) ** 2 for b in known.values()] for a in known.values()], dtype=torch.float64)
    new = {"gaps": gaps[None], "heard": torch.full((4,), 6.0)}
    method = FedAPAExact(rule="cut-even", jump_ratio=20.0)
    assert method._row(new, new, 0, 0, gaps[0]).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    plain = FedAPAExact(jump_ratio=20.0)
    early = {**new, "heard": torch.full((4,), 5.0)}  # not more than patience
    torch.testing.assert_close(method._row(early, early, 0, 0, gaps[0]), plain._row(early, early, 0, 0, gaps[0]))
