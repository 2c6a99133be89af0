"""All suites by name, and the report that they make together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from fedapa.bench import (
    end_to_end,
    exact_step,
    flat,
    numerics,
    own_loops,
    scale,
    server_step,
    start,
    training,
    vmap_rounds,
)
from fedapa.bench.fixtures import How
from fedapa.bench.side_by_side import Row
from fedapa.errors import InputError
from fedapa.store.provenance import processor_name
from fedapa.store.run_folder import environment
from fedapa.training.engines.native import available

SUITES: dict[str, Callable[[How], list[Row]]] = {
    "train": training.training,
    "methods": training.methods,
    "recipes": training.recipes,
    "vmap": vmap_rounds.vmap,
    "evaluate": training.evaluation,
    "workers": end_to_end.workers,
    "run": end_to_end.run,
    "overhead": end_to_end.overhead,
    "loops": own_loops.own_loops,
    "server": server_step.server_pass,
    "exact": exact_step.exact,
    "clients": scale.many_clients,
    "flat": flat.flat,
    "start": start.start,
    "numerics": numerics.numerics,
}


def chosen(only: Sequence[str]) -> list[str]:
    if unknown := [name for name in only if name not in SUITES]:
        raise InputError(f"there is no benchmark called {unknown[0]!r}", f"choose from {', '.join(SUITES)}")
    return [name for name in SUITES if name in only or not only]


def report(names: Sequence[str], how: How, progress: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """Facts of the machine, then every row of every suite."""
    facts, rows = machine(), []
    for name in names:
        progress(name)
        rows += [row.as_dict() for row in SUITES[name](how)]
    if how.quick:  # tiny sizes show that it works, not how fast it is
        rows = [{**row, "holds": None} for row in rows]
    return {"machine": facts, "quick": how.quick, "rows": rows}


def machine() -> dict[str, Any]:
    """What the numbers come from; the load tells whether anything else was running."""
    found = environment()
    keep = ("date", "python", "machine", "cores", "packages")
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {
        **{key: found[key] for key in keep},
        "processor": processor_name(),
        "native": available()[1],
        "load before": load,
    }
