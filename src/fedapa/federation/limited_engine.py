"""A training beyond a site's limits is refused, whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from fedapa.federation.messages import Refused
from fedapa.federation.site_settings import SiteLimits, too
from fedapa.training.job import Job, Trained
from fedapa.training.local import Plain


@dataclass(frozen=True)
class Limited(Plain):
    """An engine that refuses any training beyond the site's limits, since methods have rates of their own."""

    limits: SiteLimits

    def train(self, job: Job) -> Trained:
        for name, rate in job.rates.items():
            if rate > self.limits.max_lr:
                raise Refused(too("large", f"the rate of {name}", rate, self.limits.max_lr))
        return super().train(job._replace(batches=self._counted(job.batches)))

    def _counted(self, batches: Callable[[], Iterator[Tensor]]) -> Callable[[], Iterator[Tensor]]:
        def counted() -> Iterator[Tensor]:
            for step, batch in enumerate(batches()):
                if step == self.limits.max_steps:
                    raise Refused(f"a training takes more than {self.limits.max_steps} steps, the limit of this site")
                yield batch

        return counted
