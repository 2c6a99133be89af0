"""The products over slices of Theta: equal to the plain ones, whatever the slices, and without large temporaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedapa.core import threads, weights
from fedapa.core.tree import with_rows, writable

M, P, S = 9, 103, 4
IDS = torch.tensor([6, 1, 8, 3])


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven columns a slice, so that the last one is shorter."""
    monkeypatch.setattr(weights, "WIDE", 7)


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Theta, the rows that mixed for IDS and what came back."""
    random = torch.Generator().manual_seed(seed)
    theta, rows = torch.randn(M, P, generator=random), torch.rand(S, M, generator=random)
    rows[:, ::2] = 0.0
    return theta, rows / rows.sum(1, keepdim=True), list(torch.randn(S, P, generator=random))


def test_slices_cover_every_column_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (0, 6, 7, 20):
        assert [c for part in weights.slices(5, size) for c in range(size)[part]] == list(range(size))
        assert all(part.stop - part.start == 7 for part in list(weights.slices(5, size))[:-1])
    monkeypatch.undo()
    assert [next(weights.slices(clients, 10**6)).stop for clients in (1, 20, 100, 1000)] == [16_384, 16_384, 5120, 2048]


@pytest.mark.parametrize("sparse", [False, True])
def test_mixing_in_slices_is_the_plain_product(sparse: bool) -> None:
    theta, rows, _ = drawn()
    found = weights.mix(rows, theta, sparse)
    torch.testing.assert_close(torch.stack(found), weights.aggregate(rows, theta))
    assert len({mixed.untyped_storage().data_ptr() for mixed in found}) == S  # no message keeps another one alive


def test_a_row_without_weights_mixes_nothing() -> None:
    theta, rows, _ = drawn()
    rows[1] = 0.0
    found = weights.mix(rows, theta, sparse=True)
    assert not found[1].any()
    torch.testing.assert_close(found[2], rows[2] @ theta)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("sign", ["descend", "printed"])
def test_learning_in_one_pass_is_equations_5_to_7(sparse: bool, sign: weights.Sign) -> None:
    theta, rows, new = drawn()
    wanted = weights.slopes(torch.stack(new) - weights.aggregate(rows, theta), theta, sign)
    changed = theta.clone()
    torch.testing.assert_close(weights.learn(changed, rows, IDS, new, sign, sparse), wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(changed[IDS], torch.stack(new))
    others = [j for j in range(M) if j not in IDS]
    assert torch.equal(changed[others], theta[others])


def test_inner_products_of_all_models() -> None:
    theta, _, new = drawn()
    found = weights.inner_products(new, theta)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.stack(new).double() @ theta.double().T, rtol=1e-5, atol=1e-5)


class Largest(TorchDispatchMode):
    """Watches the size of everything that is computed; views of what was there before do not count."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known, self.size = {leaf.untyped_storage().data_ptr() for leaf in known}, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        for leaf in answer if isinstance(answer, tuple | list) else [answer]:
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in self.known:
                self.size = max(self.size, leaf.numel())
        return answer


@pytest.mark.parametrize(
    "work",
    [
        lambda theta, rows, new: weights.learn(theta, rows, IDS, new),
        lambda theta, rows, new: weights.learn(theta, rows, IDS, new, sparse=True),
        lambda theta, rows, new: weights.inner_products(new, theta),
        lambda theta, rows, new: weights.mix(rows, theta),
        lambda theta, rows, new: with_rows(theta, IDS, new, donate=True),
    ],
)
def test_nothing_as_large_as_the_models_is_made(work: Callable[..., object]) -> None:
    theta, rows, new = drawn()
    with Largest(theta, *new) as seen:
        work(theta, rows, new)
    assert seen.size <= max(P, M * 7)
    assert max(P, M * 7) < S * P < M * P


def test_rows_that_share_memory_are_never_written_to() -> None:
    """A common start is one row shown M times: writing to one would write to all."""
    start = torch.zeros(3)
    found = with_rows(start.expand(4, -1), torch.tensor([1]), [torch.ones(3)], donate=True)
    assert found.sum(1).tolist() == [0, 3, 0, 0]
    assert not start.any()
    own = torch.zeros(4, 3)
    assert writable(own, True) is own
    assert writable(own, False) is not own


def test_the_largest_others_stay_by_hand() -> None:
    """Clipped to (0.5, 0.3, 1, 0.2), own 0.5; the two largest others are 1 and 0.3; then 0.5 of 1.8."""
    row = torch.tensor([[0.9, 0.3, 1.5, 0.2]])
    found = weights.project(row, torch.tensor([0]), 0.5, top_k=2)
    assert found[0].tolist() == pytest.approx([0.5 / 1.8, 0.3 / 1.8, 1 / 1.8, 0])
    share = weights.project(row, torch.tensor([0]), 0.6, "share", top_k=1)
    assert share[0].tolist() == pytest.approx([0.6, 0, 0.4, 0])
    off = weights.project(row, torch.tensor([3]), self_weight="off", top_k=1)
    assert off[0].tolist() == pytest.approx([0, 0, 1 / 1.2, 0.2 / 1.2])


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from(["raw", "share", "off"]))
@settings(max_examples=60, deadline=None)
def test_thinned_rows_are_distributions_of_at_most_k_others(seed: int, k: int, mode: weights.SelfWeight) -> None:
    random = torch.Generator().manual_seed(seed)
    A, own = 1.5 * torch.rand(M, M, generator=random) - 0.2, torch.arange(M)
    found = weights.project(A, own, 0.5, mode, top_k=k)
    assert torch.allclose(found.sum(1), torch.ones(M), atol=1e-5)
    others = found.clone().fill_diagonal_(0)
    assert int((others != 0).sum(1).max()) <= k
    if k >= M - 1:
        assert torch.equal(found, weights.project(A, own, 0.5, mode))
    else:
        dropped = torch.where(others == 0, A.clamp(0, 1), torch.zeros(())).fill_diagonal_(0).max(1).values
        kept = torch.where(others > 0, A.clamp(0, 1), torch.ones(())).fill_diagonal_(1).min(1).values
        assert (kept >= dropped).all()


@pytest.mark.parametrize("answered", [300, 299])
def test_distances_of_everybody_are_those_of_the_models(answered: int) -> None:
    """Of all together each is computed once, in blocks, and mirrored; of fewer, to all others."""
    random = torch.Generator().manual_seed(0)
    theta, new = torch.randn(300, 20, generator=random), torch.randn(answered, 20, generator=random)
    pieces, ids = [(slice(0, 15), 0), (slice(15, 20), weights.UNMEASURED)], torch.arange(answered)
    ahead = torch.cdist(new[:, :15].double(), theta[:, :15].double()).square()
    before, gaps = weights.renew(theta, ids, list(new), pieces)
    assert torch.equal(theta[:answered], new)
    torch.testing.assert_close(before[0], ahead, atol=1e-4, rtol=1e-5)
    apart = torch.cdist(new[:, :15].double(), theta[:, :15].double()).square()
    torch.testing.assert_close(gaps[0], apart, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(gaps[0][:, :answered], gaps[0][:, :answered].T, atol=1e-5, rtol=0)


def test_bits_do_not_depend_on_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices are taken by several threads and summed in their order."""
    monkeypatch.setattr(weights, "LITTLE", 0.0)
    found = []
    for cores in (1, 4):
        monkeypatch.setattr(threads, "available_cores", lambda cores=cores: cores)
        theta, rows, new = drawn()
        slope = weights.learn(theta, rows, IDS, new)
        far = weights.renew(theta, IDS, new[::-1], [(slice(0, P), 0)])
        found.append([theta, slope, *far, *weights.mix(rows, theta), weights.inner_products(new, theta)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
