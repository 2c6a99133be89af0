"""A method that fits some models only says so where a run is planned and where it starts, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import Call
from hospitals import write_hospitals

SAID = "the model has no BatchNorm layer that could stay with a client: this is FedAvg"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_hospitals(tmp_path)


def test_plan_and_run_say_that_fedbn_needs_batch_norm(fedapa: Call, config: Path) -> None:
    words = ("--method", "fedavg,fedbn", "--seeds", "1")
    planned = fedapa("plan", config, *words, "--no-timing")
    assert planned.err.count("warning:") == planned.err.count(f"warning: fedbn: {SAID}") == 1
    as_json = json.loads(fedapa("plan", config, *words, "--no-timing", "--format", "json").out)
    assert as_json["warnings"] == [f"fedbn: {SAID}"]
    assert "privacy" not in as_json
    started = fedapa("run", config, *words, "--out", "out")
    assert started.code == 0
    assert started.err.count("warning:") == started.err.count(f"warning: fedbn: {SAID}") == 1
    assert "warnings" not in json.loads(
        fedapa("plan", config, "--method", "fedavg", "--no-timing", "--format", "json").out
    )
