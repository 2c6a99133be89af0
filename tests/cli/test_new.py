"""Skeletons: what `fedapa new` writes works as it is written, and its own tests can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from command import Call
from fedapa.cli.new import SKELETONS


def own_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_skeleton_passes_its_own_tests(fedapa: Call, tmp_path: Path) -> None:
    for kind, name in (("method", "half-way"), ("dataset", "toys"), ("federation", "ours")):
        answer = fedapa("new", kind, name)
        assert answer.code == 0, answer.err
        assert all(Path(line).is_file() for line in answer.out.splitlines())
        assert "next: " in answer.err
        assert "python -m pytest" in answer.err
    done = own_tests(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    answer = fedapa("run", "demo", "--method", "half_way.py", "--set", "run.rounds=1")
    assert (answer.code, "half_way.py:CLASS" in answer.err) == (2, True)
    wrong = (tmp_path / "half_way.py").read_text().replace("self.step * (mean", "-self.step * (mean")
    (tmp_path / "half_way.py").write_text(wrong)  # the server walks away from the clients' mean
    assert fedapa("verify", "half_way.py").code == 1


@pytest.mark.parametrize("kind", SKELETONS)
def test_nothing_is_overwritten(fedapa: Call, tmp_path: Path, kind: str) -> None:
    assert fedapa("new", kind, "mine").code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    answer = fedapa("new", kind, "mine")
    assert answer.code == 2
    assert "exists already" in answer.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["class", "2fast", "../up", "Große", "a b", ""])
def test_names_that_cannot_be_modules(fedapa: Call, tmp_path: Path, name: str) -> None:
    answer = fedapa("new", "method", name)
    assert answer.code == 2
    assert list(tmp_path.iterdir()) == []


def test_completion_scripts(fedapa: Call) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_FEDAPA_COMPLETE" in fedapa("completion", shell).out
    assert fedapa("completion", "tcsh").code == 2
