"""Tune every method where clients come in groups and where they do not: python experiments/tune_groups.py runs/tuned

Every method gets the same number of trials on allocations that no table uses, and is judged on train data that were
held out. What was chosen becomes experiments/groups-tuned.toml, with and without a running mean; the trials are kept as
experiments/results/tuned-STRUCTURE.csv. A killed tuning goes on where it stopped.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from fedapa.config.grid import load_scenarios
from fedapa.config.sections import Config
from fedapa.core.threads import available_cores
from fedapa.store.atomic_io import write_atomically
from fedapa.tune import tuning
from fedapa.tune.space import table
from fedapa.tune.trials import Plan, make_plan

HERE = Path(__file__).parent
GROUPS, TUNED = HERE / "groups.toml", HERE / "groups-tuned.toml"
STRUCTURES = ("planted", "uneven", "dirichlet")
ALLOCATIONS, TRIALS = [100, 101], 12
AS_IT_IS = "fedapa-exact"  # the claim is of its default
NOT_TUNED = ("exact-", "ifca-")  # other rules of ours, and numbers of clusters, which a tuning chooses
OWN = {"ifca": {}, "ifca-e": {"base": "ifca", "shared": "extractor"}}
HEAD = """\
# fedapa sweep experiments/groups-tuned.toml --out runs/groups
# Ours: the methods of groups.toml, each with the settings that `python experiments/tune_groups.py runs/tuned` chose for
# each structure: {trials} trials a method, allocations {allocations}, accuracy on held-out train data.
"""


def methods_of(config: Config) -> list[str]:
    return [name for name in config.methods if not name.startswith(NOT_TUNED)] + list(OWN)


def plan_of(config: Config) -> Plan:
    own = {**config.method, **OWN}
    tuned = config.model_copy(update={"methods": methods_of(config), "seeds": ALLOCATIONS, "method": own})
    return make_plan(tuned, {}, TRIALS, "random", 0)


def chosen(plan: Plan, rows: list[tuning.TrialRow]) -> dict[str, Any]:
    """Tables of the tuned methods, and of each with a running mean of its models."""
    config, found = plan.read(), {}
    for name, row in tuning.best(rows).items():
        own = table(config, name, row.settings)
        base = config.method.get(name, {}).get("base", name)
        found[f"{name}-tuned"] = {**own, "base": base}
        found[f"{name}-tuned-ema"] = {**own, "base": f"{base}+ema"}
    return found


def experiment(tables: dict[str, dict[str, Any]]) -> str:
    """groups.toml with the tuned methods in place of its own."""
    raw = tomllib.loads(GROUPS.read_text(encoding="utf-8"))
    names = list(dict.fromkeys(name for own in tables.values() for name in own))
    scenarios = {structure: {**raw["scenario"][structure], "method": own} for structure, own in tables.items()}
    whole = {**raw, "methods": [AS_IT_IS, *names], "method": {}, "scenario": scenarios}
    head = HEAD.format(trials=TRIALS, allocations=" and ".join(map(str, ALLOCATIONS)))
    return head + tomli_w.dumps(whole)


def main(out: Path) -> None:
    scenarios, tables = load_scenarios(str(GROUPS)), {}
    for structure in STRUCTURES:
        plan, rows = tuning.tune(plan_of(scenarios[structure]), out / structure, available_cores())
        tables[structure] = chosen(plan, rows)
        write_atomically(HERE / "results" / f"tuned-{structure}.csv", tuning.as_csv(rows).encode())
        print(structure, "tuned:", len(rows), "trials", flush=True)
    write_atomically(TUNED, experiment(tables).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
