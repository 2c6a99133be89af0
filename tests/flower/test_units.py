"""The systemd units of docs/deploy.md: systemd takes them, and what they start is what there is."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from fedapa.cli import group
from fedapa.federation.kit import Kit, read_kit, write_kit
from fedapa.federation.registry import Coordinator, Settings, create

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
SHOWN = re.compile(r"^`/etc/systemd/system/([\w@-]+\.service)`.*?^```ini\n(.*?)^```", re.DOTALL | re.MULTILINE)
UNITS = dict(SHOWN.findall(PAGE.read_text()))
HOME = "/srv/fedapa"
PROGRAM = f"{HOME}/venv/bin/fedapa"


def setting(unit: str, key: str) -> str:
    (value,) = re.findall(rf"^{key}=(.*)$", UNITS[unit], re.MULTILINE)
    return value


def parsed(words: list[str]) -> tuple[str, dict]:
    """What the command line makes of these words, without doing it; a wrong option or a missing argument raises."""
    command, names, rest = group, [], list(words)
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(click.Context(command), rest)
        names.append(name)
    return " ".join(names), command.make_context(names[-1], rest, **group.context_settings).params


def started(unit: str, instance: str = "") -> tuple[str, dict]:
    program, *words = shlex.split(setting(unit, "ExecStart").replace("%i", instance))
    assert program == PROGRAM
    return parsed(words)


def test_the_page_shows_three_units():
    assert sorted(UNITS) == ["fedapa-coordinator.service", "fedapa-run@.service", "fedapa-site.service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_them(tmp_path):
    for name, text in UNITS.items():
        (tmp_path / name).write_text(text.replace(PROGRAM, shutil.which("true")))
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_they_start_what_the_steps_before_made(tmp_path):
    """Paths in the units are those of the page's own commands, seen from the unit's working directory."""
    home = tmp_path / HOME.lstrip("/")
    home.mkdir(parents=True)
    for unit in UNITS:
        assert setting(unit, "WorkingDirectory") == HOME
    path, params = started("fedapa-coordinator.service")
    assert (path, params["detach"]) == ("coordinator start", False)  # systemd watches a process in the foreground
    create(home / parsed(["coordinator", "init"])[1]["home"], Settings(), [], None, None)
    assert Coordinator(home / params["home"]).address
    path, params = started("fedapa-run@.service", "first")
    out = parsed(["coordinator", "run", "config.toml", "--out", "runs/first"])[1]["out"]
    assert f"--out {out}" in PAGE.read_text()
    assert (path, params["folder"], params["home"]) == ("coordinator resume", out, Path("coordinator"))
    path, params = started("fedapa-site.service")
    assert (path, params["detach"]) == ("site join", False)
    kit = tmp_path / params["kit"].relative_to("/")
    kit.mkdir(parents=True)
    write_kit(kit, Kit("amber", "fed.example.org:9443"))
    assert read_kit(kit).name == "amber"
    for unit in ("fedapa-coordinator.service", "fedapa-site.service"):  # nothing else can be written
        assert setting(unit, "ReadWritePaths") == HOME
    assert params["kit"].is_relative_to(HOME)


def test_a_wrong_option_would_be_noticed(monkeypatch):
    for wrong in ("coordinator start --detatch", "coordinator resum runs/x", "site join"):
        monkeypatch.setitem(UNITS, "x.service", f"ExecStart={PROGRAM} {wrong}\n")
        with pytest.raises(click.UsageError):
            started("x.service")
