"""What a tuning is: the config, the searches, the budget; and ``tune.json``, which holds it with all trials."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedapa.config.experiment import anchored
from fedapa.config.load import check, dump
from fedapa.config.sections import Config
from fedapa.errors import InputError
from fedapa.store.atomic_io import write_json
from fedapa.tune.search import check_search
from fedapa.tune.space import Settings, Space, defaults, read_space, spaces, table

NAME = "tune.json"
VALIDATION = 0.2  # share of every train set that is held out where a config holds none out


@dataclass(frozen=True)
class Plan:
    config: str  # TOML: its methods are tuned, its seeds are the allocations, its rounds those of the tuned runs
    rounds: int  # of a trial
    validation: float  # share of every train set that trials do not train on
    trials: int  # of every method
    search: str
    seed: int
    space: dict[str, dict[str, str]]  # by method and hyper-parameter

    def read(self) -> Config:
        return check(tomllib.loads(self.config), self.config, "the config of the tuning")

    @property
    def methods(self) -> list[str]:
        return self.read().methods

    @property
    def seeds(self) -> list[int]:
        return self.read().seeds

    @property
    def runs(self) -> int:
        """Of every method."""
        return self.trials * len(self.seeds)

    def spaces(self) -> dict[str, Space]:
        return {name: read_space(self.space[name]) for name in self.read().methods}


@dataclass(frozen=True)
class Trial:
    method: str
    number: int
    settings: Settings  # none: the default

    @property
    def name(self) -> str:
        """Of its runs: variants of the method, in a folder that is called like the method."""
        return f"trial{self.number:03d}"

    def path(self, seed: int) -> str:
        """The folder of its run on one allocation, below the tuning's."""
        return f"{self.method}/{self.name}-seed{seed}"


def make_plan(
    config: Config, asked: dict[str, Any], trials: int, search: str, seed: int, rounds: int | None = None
) -> Plan:
    """Check a tuning; raises an error if it cannot be done."""
    found = spaces(config, asked)
    check_search(search, found, {name: defaults(config, name, space) for name, space in found.items()}, trials)
    held = (config.sites or config.data).validation
    space = {name: {key: str(dimension) for key, dimension in one.items()} for name, one in found.items()}
    return Plan(dump(anchored(config)), rounds or config.run.rounds, held or VALIDATION, trials, search, seed, space)


def trial_config(plan: Plan, method: str, trials: Sequence[Trial]) -> Config:
    """Some trials of a method as variants of it, with train data held out."""
    config = plan.read()
    held: dict[str, Any] = {"data": config.data.model_copy(update={"validation": plan.validation})}
    if config.sites is not None:
        held = {"sites": replace(config.sites, validation=plan.validation)}
    run = config.run.model_copy(update={"rounds": plan.rounds})
    own = {trial.name: table(config, method, trial.settings) for trial in trials}
    return config.model_copy(update={**held, "run": run, "methods": list(own), "method": own})


# ---------------------------------------------------------------------------------------------------------- tune.json


def is_tuning(folder: Path) -> bool:
    return (folder / NAME).is_file()


def save(out: Path, plan: Plan, trials: Sequence[Trial], rows: Sequence[dict[str, Any]]) -> None:
    """The plan, the settings of all trials so far, and what is known of them."""
    write_json(out / NAME, {"plan": asdict(plan), "settings": [asdict(trial) for trial in trials], "trials": rows})


def stored(out: Path) -> tuple[Plan, list[Trial]]:
    path = out / NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Plan(**found["plan"]), [Trial(**one) for one in found["settings"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}", "restore it, or tune again in a new folder") from None


def same_or_more(plan: Plan, found: Plan, out: Path) -> Plan:
    """The plan to continue with: the one in the folder, or the same with more trials."""
    for key, was in asdict(found).items():
        now = getattr(plan, key)
        if key != "trials" and now != was:
            said = f"its {key} is another" if key in ("config", "space") else f"its {key} is {was}, not {now}"
            raise InputError(f"{out} holds another tuning: {said}", "choose another --out, or `fedapa resume` it")
    if plan.trials < found.trials:
        raise InputError(f"{out} holds {found.trials} trials of every method", f"--trials {found.trials} or more")
    return replace(found, trials=plan.trials)
