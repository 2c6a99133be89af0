"""Runs with noised uploads, as a user sees them: epsilon and its limits everywhere, warnings before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import Call
from fedapa.methods.privacy import NOT_COVERED
from hospitals import write_hospitals

EPSILON = "epsilon 8.39 at delta 1e-05 over 3 rounds"
LOUD = ("fedapa+noised: one upload carries noise of norm", "fedapa+noised: in 3 rounds uploads of 2 clients can move")
WORDS = ("--method", "local,fedapa+noised", "--seeds", "1")


def tells(text: str, simulated: bool = True) -> bool:
    """Epsilon, all that it does not cover, and whether it is a simulation."""
    assert all(part in text for part in NOT_COVERED)
    assert ("protects nobody" in text) == simulated
    return EPSILON in text


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_hospitals(tmp_path)


def test_plan_tells_and_warns(fedapa: Call, config: Path) -> None:
    found = fedapa("plan", config, *WORDS, "--no-timing")
    assert tells(found.out)
    assert "8.39 (simulated)" in found.out
    assert all(f"warning: {line}" in found.err for line in LOUD)
    as_json = json.loads(fedapa("plan", config, *WORDS, "--no-timing", "--format", "json").out)
    assert tells("".join(as_json["privacy"]))
    assert [row["epsilon"] for row in as_json["methods"]] == [None, "8.39 (simulated)"]
    assert len(as_json["warnings"]) == 2
    plain = fedapa("plan", config, "--method", "fedapa", "--no-timing")
    assert "epsilon" not in plain.out + plain.err


def test_dry_run_tells_and_lists_the_noise(fedapa: Call, config: Path, tmp_path: Path) -> None:
    found = fedapa("site", "dry-run", config, "--site", "north", "--method", "fedapa+noised")
    assert tells(found.out, simulated=False)  # what a real site would be promised
    assert "warning: fedapa+noised: one upload carries noise of norm" in found.err
    noise = json.loads((tmp_path / "wire.json").read_text())["noise"]
    assert (noise["epsilon"], noise["noise"], noise["rounds"]) == (8.3854189, 1.0, 3)
    assert noise["not covered"] == list(NOT_COVERED)
    assert (
        "noise"
        not in json.loads(
            fedapa("site", "dry-run", config, "--site", "north", "--format", "json").out.replace("\n", "")
        )["wire"]
    )


def test_silo_run_compare_report_and_card_tell(fedapa: Call, config: Path, tmp_path: Path) -> None:
    words = ("--deliver", "fedapa+noised", "--deliver-anyway", "--out", "out")
    ran = fedapa("silo", "run", config, *WORDS, *words)
    assert ran.code == 0, ran.err
    assert tells(ran.out)
    assert all(f"warning: {line}" in ran.err for line in LOUD)
    compared = fedapa("compare", "out")
    assert tells(compared.out)
    assert "8.39 (simulated)" in compared.out
    as_json = json.loads(fedapa("compare", "out", "--format", "json").out)
    assert tells("".join(as_json["privacy"]))
    assert "8.39 (simulated)" in fedapa("compare", "out", "--format", "csv").out
    (tmp_path / "results.json").write_text(json.dumps(as_json))
    assert tells(fedapa("compare", "results.json").out)  # a file of results tells it, too
    assert tells((tmp_path / "out" / "sites" / "north" / "site-model" / "MODEL_CARD.md").read_text())
    assert fedapa("report", "out", "--out", "report.html").code == 0
    page = (tmp_path / "report.html").read_text().replace("&#39;", "'")
    assert tells(page)


@pytest.mark.parametrize("verb", ["run", "silo run"])
def test_refused_uploads_are_told_at_the_end(verb: str, fedapa: Call, config: Path) -> None:
    """One of two clients sends a billion times its update, which is more than honest training gives."""
    attack = ("--set", "attack.kind=scaled", "--set", "attack.clients=[1]", "--set", "attack.factor=1e9")
    words = (*verb.split(), config, "--method", "fedavg", "--seeds", "1")
    ran = fedapa(*words, *attack, "--out", "attack")
    assert "warning: fedavg-seed0: 3 of 6 uploads, of 1 client, were refused; first in round 1: client south" in ran.err
    assert "attack/fedavg-seed0/log.txt" in ran.err
    assert "refused" not in fedapa(*words, "--out", "fine").err
