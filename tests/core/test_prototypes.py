from __future__ import annotations

import pytest
import torch

from fedapa.core.prototypes import MASKED, class_counts, class_means, class_sums, nearest_logits, pull, refreshed

Z = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]])
Y = torch.tensor([2, 2, 0])


def test_sums_counts_and_means_by_hand():
    sums, counts = class_sums(Z, Y, 4), class_counts(Y, 4)
    assert sums.tolist() == [[10, 0], [0, 0], [4, 6], [0, 0]]
    assert counts.tolist() == [1, 0, 2, 0]
    assert class_means(sums, counts).tolist() == [[10, 0], [0, 0], [2, 3], [0, 0]]


def test_nearest_logits_mask_absent_classes():
    means, counts = class_means(class_sums(Z, Y, 4), class_counts(Y, 4)), class_counts(Y, 4)
    logits = nearest_logits(torch.tensor([[0.0, 0.0]]), means, counts)  # the absent classes would be nearest
    assert logits.tolist() == [[-100.0, MASKED, -13.0, MASKED]]
    assert logits.argmax(1).tolist() == [2]
    assert torch.isfinite(nearest_logits(Z, means, torch.zeros(4))).all()


def test_a_class_that_nobody_reported_keeps_its_prototype():
    old, counts = torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([5.0, 6.0, 0.0])
    new, heard = refreshed(old, counts, torch.tensor([[8.0], [0.0], [0.0]]), torch.tensor([4.0, 0.0, 0.0]))
    assert new.tolist() == [[2.0], [2.0], [0.0]]
    assert heard.tolist() == [4.0, 6.0, 0.0]


def test_pull_by_hand_and_its_gradient():
    z = torch.tensor([[1.0, 1.0], [5.0, 5.0]], requires_grad=True)
    value = pull(z, torch.tensor([0, 1]), torch.tensor([[0.0, 3.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0]))
    assert value.item() == pytest.approx((1 + 4) / 4)  # class 1 is absent: adds nothing to the mean
    value.backward()
    assert z.grad.tolist() == [[0.5, -1.0], [0.0, 0.0]]
