"""Cox regression with a ridge penalty: the plain model of a site alone where times until an event are predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedapa.training.objective import Survival

Floats = npt.NDArray[np.float64]


class CoxRegression:
    """fit and predict as in scikit-learn, which has none: maximises the partial likelihood less alpha / 2 |b|²."""

    def __init__(self, alpha: float) -> None:
        self.alpha, self.coefficients = alpha, np.zeros(0)

    def fit(self, x: Floats, y: npt.NDArray[Any]) -> CoxRegression:
        from scipy.optimize import minimize

        inputs, times, objective = torch.from_numpy(x).double(), torch.from_numpy(y).double(), Survival()

        def value(b: Floats) -> tuple[float, Floats]:
            slope = torch.from_numpy(b).requires_grad_()
            found = objective.losses((inputs @ slope)[:, None], times).sum() + self.alpha / 2 * slope.square().sum()
            (grad,) = torch.autograd.grad(found, slope)
            return found.item(), grad.numpy()

        self.coefficients = minimize(value, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x
        return self

    def predict(self, x: Floats) -> Floats:
        """Logs of relative risks."""
        return np.asarray(x @ self.coefficients, dtype=np.float64)
