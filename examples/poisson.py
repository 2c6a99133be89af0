"""Counts as an objective of one's own: the model predicts the logarithm of a rate.

fedapa run config.toml --set objective.name=examples/poisson.py:Poisson
fedapa verify fedapa --objective examples/poisson.py:Poisson
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import fedapa as fa


class Poisson(fa.Objective):
    target = "number"
    scores = (
        fa.Score("deviance", better="lower", low=0.0),  # the first is the primary one
        fa.Score("MAE", better="lower", low=0.0),
    )

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.poisson_nll_loss(outputs[:, 0], y.to(outputs.dtype), reduction="none")

    def measure(self, outputs: Tensor, y: Tensor) -> dict[str, tuple[float, float]]:
        rate, y = self.predictions(outputs)[:, 0].double(), y.double()
        deviance = 2 * (torch.special.xlogy(y, y / rate) - (y - rate)).clamp(min=0)
        return {"deviance": (float(deviance.sum()), len(y)), "MAE": (float((y - rate).abs().sum()), len(y))}

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.clamp(-30, 30).exp()

    def outputs_of(self, predictions: Tensor) -> Tensor:
        return predictions.log()
