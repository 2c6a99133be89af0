"""The script that measures the source: every fact on a tiny package, and no import cycle in the real one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tools" / "house_metrics.py"
QUERY = 'QUERY = "SELECT a FROM b"\n'


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house_metrics", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house_metrics"] = module
    spec.loader.exec_module(module)
    return module


metrics = loaded()
SOUND = {
    "__init__.py": "",
    "a.py": "from fedapa import b\n",
    "b.py": 'import fedapa.c\n\n\ndef two(x, y):\n    """Says."""\n    z = x\n    return z + y\n',
    "c.py": "def one(self, x):\n    return x\n",
    "store/__init__.py": "",
    "store/runs.py": QUERY,
    "transports/flower/session.py": "import flwr\n",
}


def facts(folder: Path, **changed: str) -> object:
    for name, text in {**SOUND, **{key.replace("__", "/") + ".py": text for key, text in changed.items()}}.items():
        path = folder / "fedapa" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return metrics.facts(folder)


def test_a_sound_package(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert (found.modules, found.lines, found.functions) == (7, 12, 2)
    assert (found.import_edges, found.longest_import_chain) == (2, 3)
    assert (found.body_lines_max, found.longest_function, found.body_lines_median) == (2, "b.py:two", 1.5)
    assert (found.parameters_max, found.most_parameters) == (2, "b.py:two")
    wrong = (found.import_cycles, found.hidden_cycles, found.files_over_300_lines, found.duplicate_module_names)
    assert wrong == ([], [], [], [])
    assert (found.fmt_skip, found.sql_outside_store, found.flwr_outside_transport) == (0, [], [])


@pytest.mark.parametrize(
    ("fact", "changed", "expected"),
    [
        ("import_cycles", {"c": "import fedapa.a\ndef f(): pass\n"}, [["fedapa.a", "fedapa.b", "fedapa.c"]]),
        ("import_cycles", {"c": "def f():\n    import fedapa.a\n"}, []),
        ("hidden_cycles", {"c": "def f():\n    import fedapa.a\n"}, [["fedapa.a", "fedapa.b", "fedapa.c"]]),
        ("import_cycles", {"c": "if TYPE_CHECKING:\n    from fedapa.b import two\n"}, []),
        ("hidden_cycles", {"c": "if TYPE_CHECKING:\n    from fedapa.b import two\n"}, [["fedapa.b", "fedapa.c"]]),
        ("files_over_300_lines", {"long": "x = 1\n" * 301, "short": "x = 1\n" * 300}, ["long.py"]),
        ("duplicate_module_names", {"store__a": ""}, ["a.py"]),
        ("fmt_skip", {"d": "x = [1]  # fmt: skip\n"}, 1),
        ("sql_outside_store", {"d": QUERY, "e": '"""Select from a list."""\n'}, ["d.py"]),
        ("flwr_outside_transport", {"d": "def f():\n    from flwr.app import Message\n"}, ["d.py"]),
    ],
)
def test_every_fault_is_seen(tmp_path: Path, fact: str, changed: dict[str, str], expected: object) -> None:
    assert getattr(facts(tmp_path, **changed), fact) == expected


def test_the_source_has_no_import_cycle_not_even_a_hidden_one() -> None:
    found = metrics.facts(ROOT / "src")
    assert (found.import_cycles, found.hidden_cycles) == ([], [])


def test_a_commit_is_read_without_a_work_tree(tmp_path: Path) -> None:
    facts(tmp_path / "src")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    facts(tmp_path / "src", a="", b="", c="def f(): pass\n")
    assert metrics.facts_of_commit("HEAD", tmp_path).import_edges == 2
    assert metrics.facts(tmp_path / "src").import_edges == 0
    with pytest.raises(SystemExit, match="git cannot read gone"):
        metrics.facts_of_commit("gone", tmp_path)


def test_the_command_prints_text_a_table_and_json(tmp_path: Path) -> None:
    facts(tmp_path)
    words = [sys.executable, str(SCRIPT), "--source", str(tmp_path), "--format"]
    text, table, plain = (
        subprocess.run([*words, form], check=True, capture_output=True, text=True).stdout
        for form in ("text", "table", "json")
    )
    assert "longest function         b.py:two" in text
    assert "| modules | 7 |" in table
    assert json.loads(plain)["working tree"]["modules"] == 7
