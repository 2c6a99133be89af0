"""Comparisons for other programs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from command import Call
from fedapa.analysis.method_rows import Attacked, Gain, MethodRow, PhaseSpread, Standing
from fedapa.cli import comparison_formats
from fedapa.core.scores import ACCURACY
from made_runs import make_run


def phase(last: float, sd: float | None) -> PhaseSpread:
    return PhaseSpread(last, last, last, sd, None, None, None, None)


def row(method: str, last: float, sd: float | None = None, scenario: str = "", **more: Any) -> MethodRow:
    """Before local training 10 points less, and twice the spread."""
    before, after = phase(last - 10, None if sd is None else 2 * sd), phase(last, sd)
    gain = Gain((1, 2, 3), 0.5, None, None, None, 5, 1)
    about = {"seeds": 1, "allocations": 1, "rounds_done": 5, "rounds_planned": 5, "round": 5, "unfinished": 0}
    about |= {"evaluated": "after", "score": ACCURACY, "numerics": "1", "before": before, "after": after}
    about |= {"worst_client": 0.0, "worst_tenth": 0.0, "gain": gain, "gain_note": "", "attacked": None, "kib": 1.0}
    about |= {"groups_found": None}
    about |= {"seconds": 1.0, "epsilon": None, "scores": {"p": last}, "overlap": 0.0, "standing": Standing("behind")}
    return MethodRow(scenario=scenario, method=method, **(about | more))


# What other programs read. A name that changes here breaks them: the dashboard's pages, notebooks, spreadsheets.
NAMES = re.findall(
    r"\w+",
    """scenario method seeds allocations rounds round unfinished evaluated score numerics
    before_last before_tail before_best before_sd before_low before_high before_selected before_held
    after_last after_tail after_best after_sd after_low after_high after_selected after_held
    worst_client worst_tenth
    gain gain_points gain_low gain_high gain_p_unadjusted gain_round gain_allocations gain_note
    attackers honest attack_points attacker_weight groups_found kib seconds epsilon scores overlap
    train_loss test_loss gain_p_adjusted standing behind behind_p""",
)


@pytest.mark.parametrize("more", [{}, {"gain": None}, {"attacked": Attacked(2, 70.0, -3.0, None)}])
def test_rows_have_the_same_names_in_json_whatever_is_known(more: dict[str, Any]) -> None:
    found = row("x", 80.0, **more).as_dict()
    assert list(found) == NAMES
    assert json.loads(json.dumps(found)) == found
    assert (found["gain"], found["gain_allocations"]) == ((None, 0) if "gain" in more else ([1, 2, 3], 1))
    assert (found["attackers"], found["attack_points"]) == ((2, -3.0) if "attacked" in more else (0, None))
    assert (found["rounds"], found["standing"], found["score"]["name"]) == ("5/5", "behind", "accuracy")


def test_csv_has_every_number() -> None:
    rows = [row("local", 80.123456), row("fedapa", 81.0, gain=None)]
    text = comparison_formats.as_csv([comparison_formats.flat(one) for one in rows])
    one, two = csv.DictReader(io.StringIO(text))
    assert (one["after_last"], one["clients_gain"], one["clients_lose"]) == ("80.123456", "1", "3")
    assert (two["method"], two["clients_gain"]) == ("fedapa", "")
    assert "scores" not in one


def test_latex_by_hand() -> None:
    """The star is on what a method is evaluated by, bold on the highest of these: 85.00 is neither."""
    rows = [
        row("local", 80.0, 0.5, "a"),
        row("my_method", 85.0, None, "a", evaluated="before", standing=Standing("best")),
        row("local", 70.0, None, "b & c", rounds_done=3, round=3),
    ]
    assert comparison_formats.as_latex(rows).splitlines()[1:] == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{a} & \multicolumn{2}{c}{b \& c} \\",
        r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}",
        r"Method & before & after & before & after \\",
        r"\midrule",
        r"local & 70.00 $\pm$ 1.00 & 80.00$^*$ $\pm$ 0.50 & 60.00 (round 3) & 70.00$^*$ (round 3) \\",
        r"my\_method & \textbf{75.00}$^*$ & 85.00 & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_run_at_3_of_4_rounds_is_not_set_against_the_fourth_round_of_another(fedapa: Call, tmp_path: Path) -> None:
    """A thousand clients, the same in both runs; in round 4 thirty of them get one more right."""
    rounds = [[5] * 1000, [6] * 1000, [7] * 1000, [8] * 30 + [7] * 970]
    make_run(tmp_path / "out" / "local-seed0", "local", rounds)
    make_run(tmp_path / "out" / "fedapa-seed0", "fedapa", rounds[:3], status="running", rounds=4)
    found = json.loads(fedapa("compare", "out", "--format", "json").out)["methods"][1]
    assert (found["method"], found["gain"], found["gain_points"], found["gain_round"]) == ("fedapa", [0, 1000, 0], 0, 3)
    shown = fedapa("compare", "out").out
    assert "0/1000/0" in shown
    assert "+0.00 at round 3" in shown
    assert "p <" not in shown
    assert "Not compared (at round 3): all others" in shown


def test_one_allocation_says_why_it_has_no_test(fedapa: Call, tmp_path: Path) -> None:
    for label, right in (("local", 5), ("fedapa", 6)):
        make_run(tmp_path / "out" / label, label, [[right] * 20])
    shown = fedapa("compare", "out").out
    assert "20/0/0" in shown
    assert "0/20/0" not in shown  # Local beside Local
    assert re.search(r"local .*│ – +│ – +│", shown)
    assert "vs local, no interval and no p: 1 allocation, 3 are needed." in shown
    assert "Highest: fedapa with 60.00 %. Not tested: 1 allocation, 3 are needed." in shown
    assert "(p " not in shown


def test_compare_against_and_by_client(fedapa: Call, small: object) -> None:
    assert fedapa("run", small, "--out", "out").code == 0
    rows = list(csv.DictReader(io.StringIO(fedapa("compare", "out", "--clients", "--format", "csv").out)))
    assert {(r["method"], r["client"]) for r in rows} == {(m, str(i)) for m in ("fedapa", "fedavg") for i in range(4)}
    assert all(float(r["gain"]) == pytest.approx(float(r["accuracy"]) - float(r["local"])) for r in rows)
    assert "vs fedavg" in fedapa("compare", "out", "--against", "fedavg").out
    wrong = fedapa("compare", "out", "--against", "fedavgg")
    assert wrong.code == 2
    assert "no run of 'fedavgg'" in wrong.err


@pytest.mark.parametrize("form", ["table", "csv", "latex"])
def test_what_somebody_elses_run_says_does_not_command_the_terminal(form: str, tmp_path: Path, fedapa: Call) -> None:
    spoken = "\x1b]0;owned\x07\x1b[2Jfine"
    for label in ("local", spoken):
        make_run(tmp_path / label[-4:], label, [[5, 6]], names=[spoken, "b"])
    for words in (("compare", tmp_path), ("compare", tmp_path, "--clients", "--against", "local")):
        if form == "latex" and "--clients" in words:
            continue
        answer = fedapa(*words, "--format", form)
        assert (answer.code, "fine" in answer.out) == (0, True)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", answer.out + answer.err)
