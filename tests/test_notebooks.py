"""Notebooks run from top to bottom; no Jupyter is needed for that."""

import json
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "hospitals.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    began = time.process_time()
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "hospitals.ipynb", "exec"), names)
    assert time.process_time() - began < 60
    said = capsys.readouterr().out
    scores = [line for line in said.splitlines() if "AUC" in line]
    assert len(scores) == 9  # three hospitals, three methods
    assert all(float(line.split("AUC")[1]) > 0.8 for line in scores), said
    assert not any(cell.get("outputs") for cell in cells)  # kept without outputs: they would grow old
