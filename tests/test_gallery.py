"""The gallery's scripts, whole but shorter; the notebook is in test_notebooks.py, the federation in tests/flower."""

from __future__ import annotations

import re
from pathlib import Path

from maker import load_maker

ROOT = Path(__file__).parents[1]


def test_every_example_is_on_the_page() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert {path.name for path in (ROOT / "examples").glob("*.*")} <= set(re.findall(r"examples/([\w.]+)\)", page))


def test_compare_methods(tmp_path: Path) -> None:
    lines = load_maker("compare_methods", "examples").main(tmp_path / "out", rounds=3, clients=5)
    assert [line.split()[0] for line in lines[:-1]] == ["local", "fedavg", "fedper", "fedapa"]
    assert "vs Local" not in lines[0]
    assert all("points vs Local" in line for line in lines[1:-1])
    assert (tmp_path / "out" / "report.html").is_file()


def test_own_model_and_method() -> None:
    lines = load_maker("own_model_and_method", "examples").main(rounds=4, clients=5)
    assert [line.split()[0] for line in lines] == ["LocalOnly", "HalfWay", "FedAPA"]
    assert all(float(line.split()[1]) > 50 for line in lines), lines


def test_find_groups() -> None:
    """Nobody is grouped with a stranger, and hardly anybody is left alone."""
    lines = load_maker("find_groups", "examples").main()
    told = [line.partition("clients ")[2].split(", ") for line in lines if line.startswith("group")]
    found = [{int(client) % 3 for client in members} for members in told]
    assert all(len(hidden) == 1 for hidden in found), lines
    assert sum(map(len, told)) >= 10, lines
    alone, _, mixed = (float(line.split()[-5]) for line in lines[:3])
    assert mixed > alone, lines


def test_the_picture_of_the_readme(tmp_path: Path) -> None:
    maker = load_maker("make_picture")
    scenario = maker.make_runs(tmp_path, clients=6, rounds=2, methods=("local", "fedavg", "fedapa-exact"))
    text = maker.as_picture(maker.draw(scenario))
    assert text.startswith("<svg")
    assert "prefers-color-scheme: dark" in text
    kept = (ROOT / "docs" / "picture.svg").read_text(encoding="utf-8")
    for words in ("Who learns from whom", "Who gains over training alone", "FedAPA-exact"):
        assert words in text
        assert words in kept
