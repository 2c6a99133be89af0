"""Expected time of a run: measured if a run of its kind is finished, otherwise estimated from its size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedapa.config.load import settings_of, training_of
from fedapa.config.sections import Config, DataConfig
from fedapa.data.sources import source
from fedapa.errors import InputError
from fedapa.methods.catalogue import make

SECONDS_PER_PIXEL = 2.6e-8  # of training, forward and back, a guess for a small convolutional network


class Kind(NamedTuple):
    """Runs of one kind take the same time."""

    scenario: str
    method: str


def guess(config: Config, method: str) -> float:
    """Seconds on one core."""
    base, settings = settings_of(config, method)
    share = sum(config.run.participation) / 2
    work = config.run.rounds * training_of(config, method).epochs * share * _pixels(config.data)
    return make(base, **settings).relative_cost * work * SECONDS_PER_PIXEL


def expected(guesses: Mapping[str, tuple[Kind, float]], known: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of every run in ``guesses``, given the finished runs of a sweep."""
    measured: dict[Kind, list[float]] = {}
    for run in known:
        if run["seconds"] is not None:
            measured.setdefault(Kind(run["scenario"], run["method"]), []).append(run["seconds"])
    typical = {kind: statistics.median(seconds) for kind, seconds in measured.items()}
    ratios = [typical[kind] / seconds for kind, seconds in guesses.values() if kind in typical and seconds > 0]
    scale = statistics.median(ratios) if ratios else 1.0
    return {path: typical.get(kind, scale * seconds) for path, (kind, seconds) in guesses.items()}


def _pixels(data: DataConfig) -> float:
    """Of all training images that are used."""
    try:
        info = source(data.source)
    except InputError:
        return 1e6
    subset = data.subset or 1.0
    share = subset if subset <= 1 else min(subset / info.train, 1.0)
    return float(info.train * math.prod(info.shape)) * share * (data.train_share or 1.0)
