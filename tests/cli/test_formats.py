"""Comparisons for other programs."""

from __future__ import annotations

import csv
import io
from typing import Any

from command import Call
from fedapa.cli import formats


def row(method: str, last: float, sd: float | None = None, scenario: str = "") -> dict[str, Any]:
    found = {"after_last": last, "after_sd": sd, "gain": [1, 2, 3]}
    return {"scenario": scenario, "method": method, "evaluated": "after", **found}


def test_csv_has_every_number() -> None:
    text = formats.as_csv([row("local", 80.123456), row("fedapa", 81.0) | {"gain": None}])
    one, two = csv.DictReader(io.StringIO(text))
    assert (one["after_last"], one["clients_gain"], one["clients_lose"]) == ("80.123456", "1", "3")
    assert (two["method"], two["clients_gain"]) == ("fedapa", "")


def test_latex_by_hand() -> None:
    rows = [row("local", 80.0, 0.5, "a"), row("my_method", 81.5, None, "a"), row("local", 70.0, None, "b & c")]
    assert formats.as_latex(rows).splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"Method & a & b \& c \\",
        r"\midrule",
        r"local & 80.00 $\pm$ 0.50 & \textbf{70.00} \\",
        r"my\_method & \textbf{81.50} & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_compare_against_and_by_client(fedapa: Call, small: object) -> None:
    assert fedapa("run", small, "--out", "out").code == 0
    rows = list(csv.DictReader(io.StringIO(fedapa("compare", "out", "--clients", "--format", "csv").out)))
    assert {(r["method"], r["client"]) for r in rows} == {(m, str(i)) for m in ("fedapa", "fedavg") for i in range(4)}
    assert all(float(r["gain"]) == float(r["accuracy"]) - float(r["local"]) for r in rows)
    assert "vs fedavg" in fedapa("compare", "out", "--against", "fedavg").out
    wrong = fedapa("compare", "out", "--against", "fedavgg")
    assert wrong.code == 2
    assert "no run of 'fedavgg'" in wrong.err
