"""Which settings to try next. A search knows a method's space and its trials so far, but no runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from fedapa.errors import InputError
from fedapa.tune.space import Choices, Dimension, Settings, Space, drawn, rounded, size, stream

ATTEMPTS = 1000  # draws for settings that were not tried before
BATCH = 5  # Optuna's trials of a method that run side by side: a fixed number, so that cores do not change a choice
STARTUP = 10  # of them at random, before Optuna's sampler learns from scores


class Scored(NamedTuple):
    """Settings that were tried, and their score where the trial is finished; those of trial 0 are the defaults."""

    settings: Settings
    score: float | None


def check_search(search: str, spaces: dict[str, Space], defaults: dict[str, Settings], trials: int) -> None:
    """Raise now what would stop the search later."""
    if search == "optuna" and find_spec("optuna") is None:
        hint = "pip install 'fedapa[tune]'; or --search random, which needs nothing more"
        raise InputError("--search optuna needs Optuna, which is not installed", hint)
    for name, space in spaces.items():
        most = size(space) + (not _is_within(space, defaults[name]))
        if trials > most:
            hint = f"--trials {most:g}, or a wider space"
            raise InputError(f"{name} has {most:g} settings to try, its default among them, not {trials}", hint)


def propose(search: str, name: str, space: Space, seed: int, tried: Sequence[Scored], trials: int) -> list[Settings]:
    """The settings of a method's next trials; none if all exist."""
    if search == "random":
        return _random(name, space, seed, [one.settings for one in tried], trials)
    return _optuna(name, space, seed, tried, min(BATCH, trials - len(tried)))


def _random(name: str, space: Space, seed: int, tried: Sequence[Settings], trials: int) -> list[Settings]:
    """All trials that are missing, each from the stream of its number."""
    found = list(tried)
    for number in range(len(tried), trials):
        draws = (drawn(space, name, seed, number, attempt) for attempt in range(ATTEMPTS))
        found.append(next((new for new in draws if new not in found), drawn(space, name, seed, number)))
    return found[len(tried) :]


def _optuna(name: str, space: Space, seed: int, tried: Sequence[Scored], count: int) -> list[Settings]:
    """What Optuna's sampler suggests given the scores so far. The study is rebuilt from the stored trials every time,
    so a killed tuning loses nothing."""
    import optuna

    if count <= 0:
        return []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=stream(seed, name, len(tried)) % 2**32, n_startup_trials=STARTUP)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {key: _distribution(dimension) for key, dimension in space.items()}
    for settings, score in tried:
        if score is not None and _is_within(space, settings):  # a default may lie outside of what is searched
            study.add_trial(optuna.trial.create_trial(params=settings, distributions=distributions, value=score))
    asked = [study.ask(distributions).params for _ in range(count)]
    return [{key: rounded(params[key], space[key]) for key in space} for params in asked]


def _distribution(dimension: Dimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.values)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _is_within(space: Space, settings: Settings) -> bool:
    return all(
        settings[key] in dimension.values
        if isinstance(dimension, Choices)
        else dimension.low <= settings[key] <= dimension.high
        for key, dimension in space.items()
    )
