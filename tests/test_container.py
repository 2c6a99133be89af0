"""The steps of deploy/Containerfile, where no builder exists: what it copies is there, and what it runs works."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPE = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")


def test_what_is_copied_is_there_and_not_ignored() -> None:
    sources = [word for line in re.findall(r"^COPY (?!--from)(.*)$", RECIPE, re.M) for word in line.split()[:-1]]
    assert "src" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
    sent = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    assert set(sources) <= sent


def test_the_recipe_is_careful() -> None:
    lines = RECIPE.splitlines()
    assert "--require-hashes" in RECIPE
    assert lines.index("USER 10001") < lines.index('ENTRYPOINT ["fedapa"]')
    assert not re.search(r"FROM \S+:latest|curl|chmod 777|--privileged", RECIPE)
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {line.split()[0] for line in lines if line and not line.startswith("#")} <= known


def test_the_lock_has_what_the_wheel_needs() -> None:
    """`pip install --no-deps` asks for nothing: every dependency and the extra `flower` must be locked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "deploy" / "requirements.lock").read_text(), re.M))
    wanted = {re.split(r"[<>=\[]", word)[0] for word in (*project["dependencies"], "flwr")}
    assert {name.lower().replace("_", "-") for name in wanted} <= {name.lower().replace("_", "-") for name in locked}


@pytest.mark.skipif(not os.environ.get("FEDAPA_CONTAINER"), reason="compiles for a minute: make test-container")
def test_the_wheel_of_the_recipe_in_a_clean_environment(tmp_path: Path) -> None:
    """Build from the copied files alone, look into the wheel, install it and start the command."""
    source = tmp_path / "source"
    source.mkdir()
    for line in re.findall(r"^COPY (pyproject.*|src .*)$", RECIPE, re.M):
        for name in line.split()[:-1]:
            subprocess.run(["cp", "-r", str(ROOT / name), str(source / name)], check=True)
    for left in source.rglob("*.so"):
        left.unlink()
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), "."]
    subprocess.run([sys.executable, *build], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("fedapa-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(re.search(r"native/_portable\..*so$", name) for name in names)
    assert any(re.search(r"native/_avx2\..*so$", name) for name in names) or not is_x86()
    for name in ("report/page.html", "dashboard/static/app.js", "config/presets/demo.toml", "cli/skeletons/north.csv"):
        assert f"fedapa/{name}" in names
    home = tmp_path / "venv"
    venv.create(home, system_site_packages=False, with_pip=False)
    install = ["-m", "pip", "--python", str(home / "bin" / "python"), "install", "-q", "--no-deps", str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    path = f"import sys; sys.path += {[p for p in sys.path if 'site-packages' in p]!r}; "
    start = f"{path}sys.argv = ['fedapa', 'doctor', '--format', 'json']; from fedapa.cli import main; main()"
    done = subprocess.run(
        [home / "bin" / "python", "-I", "-c", start], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert rows["engine native"]["state"] == "ok", rows["engine native"]


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")
