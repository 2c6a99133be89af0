"""Areas under curves beside scikit-learn's, with ties, and where there is nothing to order."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from fedapa.core.ranking import auc, average_precision


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("ours", "theirs"), [(auc, roc_auc_score), (average_precision, average_precision_score)])
def test_areas_are_those_of_scikit_learn(ours, theirs, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, classes, steps = int(rng.integers(5, 60)), int(rng.integers(2, 5)), int(rng.integers(1, 12))
    y, p = rng.integers(classes, size=n), rng.integers(steps + 1, size=(n, classes)) / steps
    kinds = [classes - 1] if classes == 2 else [c for c in range(classes) if (y == c).any()]
    assert ours(y, p) == pytest.approx(np.mean([theirs(y == c, p[:, c]) for c in kinds]), abs=1e-14)


def test_by_hand() -> None:
    """Hits at 0.9 and 0.5, others at 0.5 and 0.1: of four pairs three are right and one is a tie."""
    y, p = np.array([1, 1, 0, 0]), np.array([0.9, 0.5, 0.5, 0.1])
    both = np.stack([1 - p, p], 1)
    assert auc(y, both) == 3.5 / 4
    assert average_precision(y, both) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("area", [auc, average_precision])
def test_what_is_not_finite_has_no_order(area, bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        area(np.array([0, 1]), np.array([[0.5, 0.5], [0.5, bad]]))
