"""Change the source a little, run the tests that should notice, and fail if they do not.

``mutants.toml`` beside this file lists the changes. Each is made in a copy of ``src``, one at a time:

killed    the named tests failed (pytest's exit code 1), as they should
survived  they passed: a bug of this kind would not be noticed
broken    anything else: the text is not in the source exactly once, nothing was collected, or time ran out

A change of the C++ kernel is compiled for AVX2, which takes some seconds.

    python tests/mutants/mutate.py --workers 2 --only fedala
"""

from __future__ import annotations

import argparse
import ast
import compileall
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SECONDS = 300  # more than this for the tests of one mutant means that it hangs
# Large libraries are loaded once: the processes that run tests are forked from one that has them.
PROCESSES = multiprocessing.get_context("forkserver")
LIBRARIES = ["torch", "scipy.stats", "scipy.optimize", "hypothesis", "pytest", "sklearn.metrics", "pydantic"]
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=fast", "-mavx2", "-mfma", "-Wno-psabi", "-fPIC", "-shared"]
VERDICTS = {0: "survived", 1: "killed"}  # by pytest's exit code
FAILED = 3  # pytest's exit code of an error that is no test's


class Mutant(NamedTuple):
    file: str  # below src
    old: str  # stands in the file exactly once
    new: str
    tests: tuple[str, ...]  # files or node ids below tests
    why: str  # what the change would be as a bug

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


class Outcome(NamedTuple):
    mutant: Mutant
    verdict: str
    told: str  # the test that noticed, or what went wrong
    seconds: float


def read(path: Path) -> list[Mutant]:
    entries = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def find_fault(mutant: Mutant, root: Path) -> str | None:
    """Why an entry does not fit the source or the tests of ``root``; None if it does."""
    path = root / "src" / mutant.file
    if not path.is_file():
        return f"there is no file {mutant.file}"
    text = path.read_text()
    if (count := text.count(mutant.old)) != 1:
        return f"its old text is in {mutant.file} {count} times, not once"
    if path.suffix == ".py" and not _is_other_code(text, text.replace(mutant.old, mutant.new)):
        return "its new text is no other program"
    return next((fault for test in mutant.tests if (fault := _fault_of_test(test, root))), None)


def _is_other_code(old: str, new: str) -> bool:
    try:
        return ast.dump(ast.parse(old)) != ast.dump(ast.parse(new))
    except SyntaxError:
        return False


def _fault_of_test(test: str, root: Path) -> str | None:
    file, _, name = test.partition("::")
    path = root / "tests" / file
    if not path.is_file():
        return f"there is no test file {file}"
    return f"{file} has no {name}" if name and f"def {name.partition('[')[0]}(" not in path.read_text() else None


class Copy:
    """A copy of ``src`` that tests import from. Its byte code is made once and never written again."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.src = root, folder, folder / "src"
        shutil.copytree(root / "src", self.src, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self.src, quiet=2)

    def judge(self, mutant: Mutant) -> Outcome:
        if fault := find_fault(mutant, self.root):
            return Outcome(mutant, "broken", fault, 0.0)
        begin = time.perf_counter()
        with self._changed(mutant), self._rebuilt(mutant):
            code, told = self.test(mutant.tests)
        return Outcome(mutant, VERDICTS.get(code, "broken"), told, time.perf_counter() - begin)

    def test(self, tests: Sequence[str], seconds: float = SECONDS) -> tuple[int, str]:
        """pytest's exit code, and the line of its output that says most."""
        process = PROCESSES.Process(target=run_pytest, args=(self.root, self.folder, tests))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            return -1, f"still running after {seconds:g} s"
        return process.exitcode, _telling((self.folder / "output").read_text())

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.src / mutant.file
        text, was = path.read_text(), path.stat()
        path.write_text(text.replace(mutant.old, mutant.new))
        os.utime(path, (0, 0))  # another time than that of the byte code, which is therefore not used
        try:
            yield
        finally:
            path.write_text(text)
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))

    @contextmanager
    def _rebuilt(self, mutant: Mutant) -> Iterator[None]:
        """The kernel's library from changed C++, quickly compiled; the one of the source afterwards."""
        source = self.src / mutant.file
        if source.suffix != ".cpp":
            yield
            return
        (library,) = source.parent.glob("_avx2.*")
        kept = library.read_bytes()
        library.unlink()  # a process that has it open keeps its own
        try:
            subprocess.run(["g++", *FLAGS, str(source), "-o", str(library)], check=True)
            yield
        finally:
            library.unlink(missing_ok=True)
            library.write_bytes(kept)


def run_pytest(root: Path, folder: Path, tests: Sequence[str]) -> None:
    """In a process of its own: the tests, with the package from the copy in ``folder``. Exits as pytest would."""
    with (folder / "output").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.path.insert(0, str(folder / "src"))
    sys.dont_write_bytecode = True
    own = {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}  # for what the tests start
    os.environ.update(own, COLUMNS="200")
    os.chdir(root)
    code = FAILED
    try:
        code = _pytest([f"tests/{test}" for test in tests])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)  # at once, whatever a mutant left behind


def _pytest(tests: Sequence[str]) -> int:
    import pytest
    from hypothesis import Phase, settings

    settings.register_profile("mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")  # any example will do: the smallest costs minutes
    options = ["-x", "-n0", "-p", "no:cacheprovider", "--tb=no", "-o", "addopts=-q"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of Hypothesis, which is loaded already
    return int(pytest.main([*options, *tests]))


def _telling(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()] or ["no output"]
    noticed = [line.removeprefix("FAILED ") for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return (noticed or lines)[-1 if not noticed else 0]


def play(mutants: Sequence[Mutant], root: Path, workers: int) -> Iterator[Outcome]:
    """Judge all mutants, several at a time, each worker with a copy of its own."""
    PROCESSES.set_forkserver_preload(LIBRARIES)
    with ExitStack() as stack:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for _ in range(workers):
            copies.put(Copy(root, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        check_unchanged(copies, mutants)

        def judge(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return copy.judge(mutant)
            finally:
                copies.put(copy)

        pool = stack.enter_context(ThreadPoolExecutor(workers))
        for future in as_completed([pool.submit(judge, mutant) for mutant in mutants]):
            yield future.result()


def check_unchanged(copies: SimpleQueue[Copy], mutants: Sequence[Mutant]) -> None:
    """Tests that fail anyway would kill everything."""
    copy, begin = copies.get(), time.perf_counter()
    sound = [mutant for mutant in mutants if not find_fault(mutant, copy.root)]
    tests = list(dict.fromkeys(test for mutant in sound for test in mutant.tests))
    code, told = copy.test(tests, SECONDS + 60 * len(tests)) if tests else (0, "")
    copies.put(copy)
    if code != 0:
        sys.exit(f"the tests do not pass on the source as it is: {told}")
    print(f"{len(tests)} test files and tests pass on the source as it is ({time.perf_counter() - begin:.0f} s)")


def tell(outcome: Outcome, done: int, count: int, begin: float) -> None:
    left = (time.perf_counter() - begin) / done * (count - done) / 60
    print(f"[{done}/{count}, {left:.1f} min left] {outcome.verdict} {outcome.seconds:.1f} s  {outcome.mutant}")
    print(f"    {outcome.told}", flush=True)


def summarise(outcomes: Sequence[Outcome]) -> str:
    """A row per file: how many mutants it has, and how many were killed; then everything that was not."""
    rows = {}
    for file in sorted({outcome.mutant.file for outcome in outcomes}):
        of_file = [outcome.verdict for outcome in outcomes if outcome.mutant.file == file]
        rows[file] = f"{of_file.count('killed'):4} of {len(of_file):3} killed  {file}"
    alive = [f"{o.verdict}: {o.mutant}\n    {o.told}" for o in outcomes if o.verdict != "killed"]
    killed = len(outcomes) - len(alive)
    middle = statistics.median(outcome.seconds for outcome in outcomes)
    return "\n".join([*rows.values(), *alive, f"{killed} of {len(outcomes)} mutants killed, median {middle:.1f} s"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="mutants at a time")
    parser.add_argument("--only", default="", help="those whose file, text or reason contains this")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder with src and tests")
    parser.add_argument("--list", type=Path, default=Path(__file__).with_name("mutants.toml"), help="the mutants")
    asked = parser.parse_args(arguments)
    mutants = [m for m in read(asked.list) if asked.only in f"{m} {m.old} {m.new}"]
    if not mutants:
        sys.exit(f"no mutant contains {asked.only!r}")
    begin, outcomes = time.perf_counter(), list[Outcome]()
    for outcome in play(mutants, asked.root.resolve(), asked.workers):
        outcomes.append(outcome)
        tell(outcome, len(outcomes), len(mutants), begin)
    print(f"{summarise(outcomes)}, {(time.perf_counter() - begin) / 60:.1f} min")
    return int(any(outcome.verdict != "killed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
