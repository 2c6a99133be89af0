"""docs/coming-from-other-libraries.md: verbs, options and settings that its tables name are there."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

from fedapa.cli import VERBS, group
from fedapa.config.load import load

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from-other-libraries.md").read_text(encoding="utf-8")


def test_commands_in_tables_exist() -> None:
    """Running all of them takes hours."""
    named = [shlex.split(text) for text in re.findall(r"`fedapa ([a-z][^`]*)`", PAGE)]
    assert named
    for verb, *words in named:
        assert verb in VERBS
        command = group.get_command(None, verb)  # type: ignore[arg-type]
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, (verb, words)


def test_settings_in_tables_are_legal() -> None:
    """Every --set that the page names is a key of a config, with a value in its range."""
    spans = [shlex.split(text) for text in re.findall(r"`([^`\n]*--set [^`\n]*)`", PAGE)]
    assert len(spans) > 10
    for words in spans:
        changes = [value for option, value in pairwise(words) if option == "--set"]
        preset = words[2] if words[:2] == ["fedapa", "run"] else "demo"
        if not any(change.startswith("method.halfway") for change in changes):  # its file is not here
            load(preset, changes)
