"""What a forge, an installer and a shell expect of the project."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path

import pytest
import yaml

from fedapa.errors import InputError, RunError
from fedapa.store import file_lock

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

WITHOUT_UNIX = """
import sys, pkgutil, importlib
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None  # an import fails, as on Windows
import fedapa
for found in pkgutil.walk_packages(fedapa.__path__, "fedapa."):
    if ".transports.flower" not in found.name and ".native._" not in found.name and "__main__" not in found.name:
        importlib.import_module(found.name)
"""


def test_nothing_of_unix_is_imported_at_import() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_UNIX], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# What cannot be used without an extra, and says so before it is imported.
NEED_EXTRAS = ("transports.flower", "dashboard.access", "dashboard.server", "federation.keys", "federation.registry",
               "federation.overview", "federation.run_federation")  # fmt: skip
WITHOUT_EXTRAS = f"""
import sys, pkgutil, importlib
for name in ("flwr", "cryptography", "httpx", "grpc", "starlette", "uvicorn", "plotly", "onnx", "onnxscript", "optuna",
             "pyarrow", "pandas", "tensorboard", "ray", "submitit", "torchvision"):
    sys.modules[name] = None  # an import fails, as where nothing but fedapa is installed
import fedapa
for found in pkgutil.walk_packages(fedapa.__path__, "fedapa."):
    if not any(part in found.name for part in (".native._", "__main__", *{NEED_EXTRAS!r})):
        importlib.import_module(found.name)
"""


def test_extras_are_not_needed_to_import_what_works_without_them() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_shows_the_hint_of_an_error() -> None:
    with pytest.raises(InputError) as caught:
        raise InputError("wrong", "do this")
    assert "".join(traceback.format_exception(caught.value)).endswith("wrong\nhint: do this\n")


def test_windows_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(file_lock.os, "name", "nt")
    with open(tmp_path.joinpath("x"), "w") as handle, pytest.raises(RunError, match="Windows is not supported"):
        file_lock.flock(handle)


def test_a_lock_keeps_others_out(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w") as first, open(tmp_path / "x", "w") as second:
        file_lock.flock(first)
        with pytest.raises(OSError, match="unavailable"):
            file_lock.flock(second, wait=False)


def test_all_has_every_extra_that_a_user_may_want() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(re.findall(r"[\w-]+", everything.partition("[")[2]))
    platforms = {"ray", "slurm", "mlflow", "wandb", "tensorboard", "models"}  # of other projects
    assert named == set(extras) - {"all", "dev", "docs"} - platforms


def test_the_doctor_knows_every_extra() -> None:
    text = (ROOT / "src/fedapa/cli/doctor.py").read_text(encoding="utf-8")
    assert all(
        f'"{extra}": (' in text for extra in set(PROJECT["optional-dependencies"]) - {"all", "dev", "docs", "ray"}
    )


def test_version_citation_and_changelog_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["type"], citation["version"]) == ("software", PROJECT["version"])
    assert "preferred-citation" not in citation  # the software first
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(PROJECT['version'])}\]", log, re.M)
    parts = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", log, re.M)) <= parts  # Keep a Changelog


def test_workflows_call_what_there_is() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    files = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    assert files.keys() == {"test", "wheels", "docs", "release"}
    for text in files.values():
        assert "jobs" in yaml.safe_load(text)
        assert set(re.findall(r"run: make ([a-z-]+)", text)) <= targets
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        yaml.safe_load(path.read_text(encoding="utf-8"))


def test_package_data_is_named(tmp_path: Path) -> None:
    """Files that are no Python modules reach a wheel only if pyproject.toml names them."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    package = ROOT / "src" / "fedapa"
    found = {path for pattern in named["fedapa"] for path in package.glob(pattern)}
    kinds = {".py", ".pyc", ".so", ".cpp"}
    other = {path for path in package.rglob("*") if path.is_file() and path.suffix not in kinds}
    assert other <= found, f"no wheel has {sorted(path.name for path in other - found)}"


@pytest.mark.parametrize(("typed", "wanted"), [("fedapa ru", {"run"}), ("fedapa data fe", {"fetch"})])
def test_the_shell_completes_commands(typed: str, wanted: set[str]) -> None:
    script = "import sys; sys.argv = ['fedapa']; from fedapa.cli import main; main()"
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_FEDAPA_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env={**os.environ, **words}
    )
    assert {line.partition(",")[2] for line in done.stdout.split()} == wanted, done.stderr


def test_examples_in_docstrings_run() -> None:
    sources = [path for path in (ROOT / "src").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]
    assert sources
    for path in sources:
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert found.attempted
        assert found.failed == 0, name


def test_the_compose_file_gives_away_no_rights() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
    json.dumps(services)
