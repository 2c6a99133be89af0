"""fedapa theory, as one would type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import Call

QUICK = ("theory", "--rounds", "3", "--clients", "2", "--repeats", "1")


def test_table_and_files(fedapa: Call, tmp_path: Path) -> None:
    answer = fedapa(*QUICK, "--out", "kept")
    assert answer.code == 0
    assert "corrected bound: fails in 0 of 6 visits" in answer.out
    assert answer.out.count("L1 ") == 2  # one block per step size
    kept = {path.suffix: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    assert kept.keys() == {".svg", ".pdf", ".png", ".json"}
    assert b"<svg" in kept[".svg"]
    assert kept[".pdf"].startswith(b"%PDF")
    assert kept[".png"].startswith(b"\x89PNG")


def test_json_has_every_round(fedapa: Call) -> None:
    (found,) = json.loads(fedapa(*QUICK, "--problem", "tanh", "--eta", "0.1", "--format", "json").out)
    assert found["problem"] == "tanh"
    assert found["eta"] == 0.1
    assert [row["round"] for row in found["by_round"]] == [1, 2, 3]
    assert all(row["change"] <= row["corrected"] for row in found["by_round"])


def test_weights_that_never_move_can_be_drawn_too(fedapa: Call, tmp_path: Path) -> None:
    assert fedapa(*QUICK, "--eta", "0", "--out", "still").code == 0
    assert (tmp_path / "still" / "theory.svg").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--eta -1", "-1"),
        ("--rounds 0", "0"),
        ("--problem cubic", "cubic"),
        ("--clients 1", "1"),
        ("--out file", "file"),
    ],
)
def test_mistakes(fedapa: Call, tmp_path: Path, words: str, what: str) -> None:
    (tmp_path / "file").write_text("")
    answer = fedapa("theory", *words.split())
    assert answer.code == 2
    assert what in answer.err.splitlines()[0]
    assert "hint:" in answer.err


def test_a_broken_bound_is_a_failure(fedapa: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapa.theory.bound.corrected", lambda s, c: s.change - 1)
    answer = fedapa(*QUICK)
    assert answer.code == 1
    assert "the corrected bound fails in 12 visits" in answer.err
