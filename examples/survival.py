"""Times until an event, some of them censored, as an objective of one's own: Cox's partial likelihood and concordance.

The label is the time with a sign: 12.5 is an event after 12.5 days, -12.5 nobody has seen one until then.

fedapa silo run site.toml --set objective.name=examples/survival.py:Cox --set training.batch=256

The loss of a row compares it with the rows of its batch that are still at risk, so batches should be large. Outputs are
logarithms of hazards, relative to other rows of the same site.
"""

import torch
from torch import Tensor

import fedapa as fa


class Cox(fa.Objective):
    target = "number"
    scores = (
        fa.Score("concordance", low=0.0, high=1.0, per_sample=False),  # of the pairs whose order is known
        fa.Score("partial likelihood", better="lower", low=0.0),
    )

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        hazard, time = outputs[:, 0], y.abs()
        at_risk = time[None, :] >= time[:, None]
        whole = torch.where(at_risk, hazard[None, :], hazard.new_tensor(-1e9)).logsumexp(1)
        return torch.where(y > 0, whole - hazard, torch.zeros_like(hazard))

    def measure(self, outputs: Tensor, y: Tensor) -> dict[str, tuple[float, float]]:
        hazard, time = outputs[:, 0].double(), y.double().abs()
        known = (y > 0)[:, None] & (time[:, None] < time[None, :])  # i had the event while j had none
        right = (hazard[:, None] > hazard[None, :]).double() + 0.5 * (hazard[:, None] == hazard[None, :]).double()
        loss = self.losses(outputs.double(), y.double()).clamp(min=0)
        return {
            "concordance": (float(right[known].sum()), float(known.sum())),
            "partial likelihood": (float(loss.sum()), len(y)),
        }
