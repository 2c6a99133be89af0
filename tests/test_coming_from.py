"""docs/coming-from-other-libraries.md promises commands that were run: the cheap ones run here, as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from command import Call

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coming-from-other-libraries.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ fedapa (.*)$", PAGE, re.M)


def test_every_command_of_the_page(fedapa: Call, tmp_path: Path) -> None:
    """In one folder, one after the other, since later ones look at what earlier ones made."""
    (tmp_path / "my_method.py").write_text((ROOT / "examples" / "my_method.py").read_text())
    assert len(COMMANDS) == 8
    for line in COMMANDS:
        answer = fedapa(*shlex.split(line))
        assert answer.code == 0, f"{line}: {answer.err}"


def test_the_python_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(code, "page", "exec"), {})
    out = capsys.readouterr().out
    assert "over local" in out
    assert "ClientRow(client=0" in out


def test_commands_in_tables_exist(fedapa: Call) -> None:
    """Verbs and options that a table names are there; running all of them takes hours."""
    from fedapa.cli import VERBS, group

    named = [shlex.split(text) for text in re.findall(r"`fedapa ([a-z][^`]*)`", PAGE)]
    assert named
    for verb, *words in named:
        assert verb in VERBS
        command = group.get_command(None, verb)  # type: ignore[arg-type]
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, (verb, words)
