"""How often do the printed tests reject where there is nothing to find? python experiments/null_calibration.py

Makes pairs of sets of runs that differ in nothing but the seed of the training: the same method, the same allocations.
Every pair has allocations of its own, so that the tests are independent. Counts the pairs in which `fedapa compare`
would print p < 0.05, which should be about 5 in 100; and beside it the test that it printed before, a Wilcoxon test
over all clients and allocations. Digits, some minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from scipy import stats

from fedapa.analysis import comparison, result_sets, run_results, standings
from fedapa.config.experiment import execute, lay_out
from fedapa.config.load import check

AGAIN = "again"  # the second side's name for the same method
DATA = {"source": "digits", "partition": "dirichlet", "min_train": 16, "min_test": 3}


class Tested(NamedTuple):
    """The p-values of one pair."""

    gain: float | None  # printed: paired t-test over allocations, of the clients' mean gain
    pooled: float | None  # printed: the same of the pooled accuracy, which says who is behind the highest
    wilcoxon: float  # no longer printed: over all clients and allocations


def play_pair(k: int, method: str, allocations: int, rounds: int, clients: int, alpha: float) -> Tested:
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(allocations * k, allocations * (k + 1)):
            data = DATA | {"clients": clients, "alpha": alpha, "seed": seed}
            for side, label in enumerate((method, AGAIN)):
                _run(Path(folder), label, method, data, 2 * seed + side, rounds)
        return _tested(result_sets.load(Path(folder)), method)


def _run(out: Path, label: str, method: str, data: dict[str, Any], seed: int, rounds: int) -> None:
    config = check(
        {
            "methods": [label],
            "seeds": [seed],
            "data": data,
            "model": {"name": "mlp"},
            "training": {"batch": 16},
            "run": {"rounds": rounds, "workers": 1, "evaluate_every": rounds, "checkpoint_every": rounds},
            "method": {AGAIN: {"base": method}} if label == AGAIN else {},
        },
        "",
        "null_calibration.py",
    )
    for folder in lay_out(config, out):
        execute(folder)


def _tested(runs: list[run_results.RunResult], method: str) -> Tested:
    rows = {row.method: row for row in comparison.table(runs, method)}
    first, second = (np.concatenate([_clients(run) for run in runs if run.label == name]) for name in (method, AGAIN))
    behind = next((row.standing.p for row in rows.values() if row.standing.verdict != "best"), None)
    gain = rows[AGAIN].gain
    by_clients = float(stats.wilcoxon(second - first, zero_method="pratt").pvalue)
    return Tested(None if gain is None else gain.p_adjusted, behind, by_clients)


def _clients(run: run_results.RunResult) -> run_results.Floats:
    return run_results.values(run)


def _all(pairs: int, one: partial[Tested], processes: int) -> Iterator[Tested]:
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(one, range(pairs))


@click.command(help=__doc__)
@click.option("--method", default="fedapa", show_default=True)
@click.option("--pairs", default=40, show_default=True)
@click.option("--allocations", default=5, show_default=True, help="Of each side of a pair.")
@click.option("--rounds", default=10, show_default=True)
@click.option("--clients", default=10, show_default=True)
@click.option("--alpha", default=0.5, show_default=True, help="Of the Dirichlet allocations.")
@click.option("--processes", default=2, show_default=True)
def main(pairs: int, processes: int, **setting: Any) -> None:
    one = partial(play_pair, **setting)
    found = list(_all(pairs, one, processes))
    said = ", ".join(f"{name} {value}" for name, value in setting.items())
    print(f"{pairs} pairs ({said}); rejected at 5 %:")
    for name in Tested._fields:
        ps = [getattr(tested, name) for tested in found]
        print(f"  {name}: {sum(p is not None and p < standings.LEVEL for p in ps)} of {sum(p is not None for p in ps)}")


if __name__ == "__main__":
    main()
