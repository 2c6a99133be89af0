"""Diabetes patients of scikit-learn: a number to predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedapa.data.dataset import SourceInfo

if TYPE_CHECKING:
    from fedapa.data.dataset import Examples


def diabetes() -> tuple[Examples, Examples]:
    """Progression a year later from age, sex, BMI, blood pressure and six blood values; every fourth patient tests."""
    import numpy as np
    from sklearn.datasets import load_diabetes

    found: Any = load_diabetes(return_X_y=True)  # columns are scaled to a sum of squares of 1
    x, y = (found[0] * len(found[0]) ** 0.5).astype(np.float32), found[1].astype(np.float32)
    is_test = np.arange(len(y)) % 4 == 3
    return (x[~is_test], y[~is_test]), (x[is_test], y[is_test])


DATASETS = (
    SourceInfo(
        "diabetes",
        "diabetes patients, 10 columns, a number to predict; inside scikit-learn, no download",
        train=332,
        test=110,
        class_names=(),
        shape=(10,),
        examples=diabetes,
    ),
)
