"""Compare methods on the same allocation, then make the report of it: python examples/compare_methods.py

Twenty clients with handwritten digits, four methods; a minute. `fedapa run` and `fedapa report` do the same.
"""

from __future__ import annotations

from pathlib import Path

import fedapa as fa
from fedapa.analysis import comparison, result_sets
from fedapa.report.page import write

METHODS = ("local", "fedavg", "fedper", "fedapa")


def main(out: Path = Path("runs/compare-methods"), rounds: int = 20, clients: int = 20) -> list[str]:
    data = fa.load("digits", "dirichlet", clients, alpha=0.5, min_train=15, min_test=3)
    for method in METHODS:
        fa.fit(method, data, model="cnn8", rounds=rounds, lr=0.02, batch=16, out=out / method)
    lines = []
    for row in comparison.table(result_sets.load(out)):
        gained = "" if row.gain is None or row.method == "local" else f"{row.gain.points:+5.1f} points vs Local"
        lines.append(f"{row.method:8} before {row.before.last:5.1f}  after {row.after.last:5.1f}  {gained}".rstrip())
    write(out, out / "report.html")
    return [*lines, f"the report is in {out / 'report.html'}"]


if __name__ == "__main__":
    print("\n".join(main()))
