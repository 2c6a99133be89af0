"""Groups by a test: found where there are some, and by chance as rarely as the level says."""

import torch
from torch import Tensor

from fedapa.core import exact_weights, group_test

M, P = 20, 300
ALL = torch.ones(M)


def gaps_of(x: Tensor) -> Tensor:
    return torch.cdist(x, x).square()


def models(groups: int, scale: float, seed: int = 0) -> Tensor:
    """Models around the centres of equal groups."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(groups, P, dtype=torch.float64, generator=random).repeat_interleave(M // groups, 0)
    return scale * centres + torch.randn(M, P, dtype=torch.float64, generator=random)


def members(gaps: Tensor, known: Tensor, level: float) -> Tensor:
    return group_test.members(group_test.measured(gaps, known), known, level)


def test_planted_groups_are_found_exactly() -> None:
    for groups in (2, 5, 10):
        found = members(gaps_of(models(groups, 1.0)), ALL, 0.01)
        label = torch.arange(groups).repeat_interleave(M // groups)
        assert torch.equal(found, label[:, None] == label)


def test_without_groups_hardly_anybody_is_parted_whatever_clients_weigh() -> None:
    alone = parted = 0
    for seed in range(60):
        random = torch.Generator().manual_seed(seed)
        much = 0.3 + 3 * torch.rand(M, 1, dtype=torch.float64, generator=random)  # clients go as far as they please
        gaps = gaps_of(models(1, 0.0, seed) * much)
        alone += int((~group_test._near(group_test.closeness(gaps), 0.05)).any(1).sum())
        parted += int((~members(gaps, ALL, 0.05)).any(1).sum())
    assert 0 < alone / (60 * M) < 0.1  # the level, to within what the medians add
    assert parted / (60 * M) < 0.05


def test_own_parts_are_right_although_some_lie() -> None:
    own = torch.linspace(1, 3, M, dtype=torch.float64)
    gaps = (own[:, None] + own).fill_diagonal_(0)
    gaps[:3], gaps[:, :3] = 1e6, 1e6
    assert torch.allclose(group_test.own_parts(gaps)[3:], own[3:], rtol=0.05)


def test_a_near_copy_takes_nobody_out_of_its_group() -> None:
    x = models(5, 1.0)
    x[19] = x[0] + 1e-3 * x[1]
    found = members(gaps_of(x), ALL, 0.01)
    assert found[0, :4].all()
    assert exact_weights.companions(gaps_of(x), 0, ALL, 3.0)[1:4].sum() == 0  # the rule `cut` loses the group


def test_one_far_model_hides_no_groups() -> None:
    x = models(5, 1.0)
    x[19] *= 1000
    found = members(gaps_of(x), ALL, 0.01)
    assert found[:16].sum(1).tolist() == [4] * 16
    assert found[19].sum() == 1


def test_one_clients_chance_parts_nobody() -> None:
    cut = torch.zeros(6, 6, dtype=torch.bool)
    cut[0, 3:] = True
    assert not group_test.parted(cut).any()
    cut[3:, 0] = True  # the others agree
    assert group_test.parted(cut).sum() == 6
    cut = torch.zeros(6, 6, dtype=torch.bool)
    cut[:5, 5] = True  # everybody but the outlier itself
    assert group_test.parted(cut)[5, :5].all()
    assert not group_test.parted(cut)[:5, :5].any()


def test_who_was_not_heard_from_belongs_to_nobody_and_few_are_all_together() -> None:
    known = ALL.clone()
    known[4:8] = 0
    found = members(gaps_of(models(5, 1.0)), known, 0.01)
    assert found[5].nonzero()[:, 0].tolist() == [5]
    assert found[0].nonzero()[:, 0].tolist() == [0, 1, 2, 3]
    known = torch.zeros(M)
    known[[0, 9, 19]] = 1
    found = members(gaps_of(models(5, 1.0)), known, 0.01)
    assert found[0].nonzero()[:, 0].tolist() == [0, 9, 19]


def test_equal_models_are_not_parted() -> None:
    assert members(torch.zeros(M, M, dtype=torch.float64), ALL, 0.05).all()


def test_separation_by_hand() -> None:
    value, size = group_test.separation(torch.tensor([[0.0, 0.0, 3.0, 3.0], [0.0, 1.0, 2.0, 9.0]], dtype=torch.float64))
    assert size.tolist() == [2, 3]
    assert value[1] == (8**2 * 3 / 4) / 2  # between: 3 * 1 / 4 * (9 - 1)^2; within: 1 + 0 + 1


def test_groups_that_one_round_does_not_show_are_seen_over_many() -> None:
    label = torch.arange(5).repeat_interleave(4)
    close, found = torch.zeros(M, M, dtype=torch.float64), []
    for t in range(10):
        now = group_test.measured(gaps_of(models(5, 0.4, seed=t)), ALL)  # other noise in every round
        close = group_test.averaged(close, torch.full((M, M), t + 1.0, dtype=torch.float64), now)
        found.append(group_test.members(close, ALL, 0.01))
    assert not torch.equal(found[0], label[:, None] == label)
    assert torch.equal(found[-1], label[:, None] == label)
