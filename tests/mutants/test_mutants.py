"""The list of mutants fits the source, covers what it should, and its runner tells who survives."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from mutate import ROOT, Mutant, find_fault, read

LIST = Path(__file__).with_name("mutants.toml")
MUTANTS = read(LIST)
METHODS = sorted(path.name for path in (ROOT / "src/fedapa/methods").glob("*.py"))
SHARED = ("__init__.py", "attack.py", "method.py", "papers.py", "catalogue.py", "recipes.py")  # hold no method


def test_every_entry_fits_the_source() -> None:
    assert {str(mutant): fault for mutant in MUTANTS if (fault := find_fault(mutant, ROOT))} == {}


def test_no_change_is_listed_twice_and_every_one_says_why() -> None:
    assert len({mutant[:3] for mutant in MUTANTS}) == len({mutant.why for mutant in MUTANTS}) == len(MUTANTS) >= 100
    assert all(mutant.why and mutant.tests for mutant in MUTANTS)


def test_every_method_and_every_part_is_covered() -> None:
    count = Counter(mutant.file.removeprefix("fedapa/") for mutant in MUTANTS)
    assert {name: n for name in METHODS if name not in SHARED and (n := count[f"methods/{name}"]) < 3} == {}
    assert sum(n for file, n in count.items() if file.startswith("core/")) >= 15
    assert sum(n for file, n in count.items() if file.startswith("data/partitions/")) >= 13
    rest = ["streams", "methods/catalogue", "methods/recipes", "training/local", "training/task"]
    rest += ["data/partitions/partition_math", "rounds/loop", "rounds/evaluation", "rounds/transport", "store/run_db"]
    rest += ["core/summaries"]
    rest += ["analysis/statistics", "analysis/run_results", "analysis/pairing", "analysis/comparison"]
    rest += ["analysis/standings"]
    assert [file for file in rest if count[f"{file}.py"] < 3] == []


SOURCE = """
def larger(a, b):
    return a if a > b else b


def smaller(a, b):
    return a if a < b else b
"""
TESTS = """
from toy import larger


def test_larger():
    assert larger(1, 2) == 2
    assert larger(2, 1) == 2
"""
ENTRIES = {
    "killed": ("a > b", "a >= b + 9", "test_toy.py"),
    "survived": ("a < b", "a > b + 1", "test_toy.py"),  # nobody tests it
    "stale": ("a == b", "a != b", "test_toy.py"),
    "astray": ("a > b", "a < b", "test_toy.py::test_smaller"),
}


def run(folder: Path, *names: str, tests: str = TESTS) -> tuple[int, str]:
    """The runner on a package of two functions, of which one is tested: its exit code and what it says."""
    for path, text in (("src/toy/__init__.py", SOURCE), ("tests/test_toy.py", tests)):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    entries = [
        f'[[mutant]]\nwhy = "{name}"\nfile = "toy/__init__.py"\nold = "{old}"\nnew = "{new}"\ntests = ["{test}"]\n'
        for name, (old, new, test) in ENTRIES.items()
        if name in names
    ]
    (folder / "mutants.toml").write_text("\n".join(entries))
    command = [sys.executable, Path(__file__).with_name("mutate.py"), "--root", folder, "--workers", "1"]
    done = subprocess.run(
        [*map(str, command), "--list", str(folder / "mutants.toml")], capture_output=True, text=True, timeout=300
    )
    assert (folder / "src/toy/__init__.py").read_text() == SOURCE
    return done.returncode, done.stdout + done.stderr


def test_a_mutant_that_is_killed_is_well(tmp_path: Path) -> None:
    code, told = run(tmp_path, "killed")
    assert "tests/test_toy.py::test_larger" in told
    assert "1 of 1 mutants killed" in told
    assert code == 0


def test_survivors_and_entries_that_no_longer_fit_are_told_and_fail(tmp_path: Path) -> None:
    code, told = run(tmp_path, *ENTRIES)
    assert "survived: toy/__init__.py: survived" in told
    assert "broken: toy/__init__.py: stale\n    its old text is in toy/__init__.py 0 times, not once" in told
    assert "broken: toy/__init__.py: astray\n    test_toy.py has no test_smaller" in told
    assert "1 of 4 mutants killed" in told
    assert code == 1


def test_tests_that_fail_anyway_kill_nothing(tmp_path: Path) -> None:
    code, told = run(tmp_path, "killed", tests=TESTS + "    assert larger(1, 1) == 2\n")
    assert "the tests do not pass on the source as it is" in told
    assert "killed" not in told
    assert code == 1


@pytest.mark.parametrize(
    ("new", "fault"), [("a > b", "no other program"), ("(a > b)", "no other program"), ("a >", "no other program")]
)
def test_a_change_must_be_another_program(tmp_path: Path, new: str, fault: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/toy.py").write_text("def f(a, b):\n    return a > b\n")
    assert fault in str(find_fault(Mutant("toy.py", "a > b", new, (), "why"), tmp_path))
