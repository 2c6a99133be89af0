"""Documents that are made from the code are current, and the README's map is the territory."""

import re
from pathlib import Path

from maker import load_maker

ROOT = Path(__file__).parents[1]


def test_methods_page_is_current() -> None:
    current = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert current == load_maker("make_methods").page(), "run: python docs/make_methods.py"


def test_nothing_is_promised_that_the_tables_do_not_show() -> None:
    from fedapa.cli import group

    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "pyproject.toml")]
    for text in (*pages, group.help or ""):
        assert not re.search(r"\bproven\b|\bbeats\b|better than the shared one and", text)


def modules() -> list[Path]:
    return [path for path in (ROOT / "src" / "fedapa").rglob("*.py") if not path.name.startswith("__")]


def test_every_module_is_on_the_file_map() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\b(\w+\.py)\b", page))
    mapped = {path.name for path in modules() if path.parent.name not in ("cli", "methods", "bench")}
    assert mapped <= listed, f"not on the map: {sorted(mapped - listed)}"
    known = {path.name for path in (*modules(), *ROOT.glob("*/*.py"), *ROOT.glob("tests/*/*.py"))}
    assert listed <= known, f"on the map, but not there: {sorted(listed - known)}"


def test_no_two_modules_have_one_name() -> None:
    names = [path.name for path in modules()]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_flower_is_imported_by_its_transport_alone() -> None:
    wrong = [
        path.name
        for path in modules()
        if "transports/flower" not in path.as_posix()
        and re.search(r"^\s*(import flwr|from flwr)\b", path.read_text(encoding="utf-8"), re.M)
    ]
    assert wrong == []


def test_only_the_stores_speak_sql() -> None:
    speak = [path for path in modules() if re.search(r"\.execute(many|script)?\(", path.read_text(encoding="utf-8"))]
    assert {path.parent.name for path in speak} == {"store"}


def test_what_leaves_is_told_of_every_method() -> None:
    from fedapa.methods.catalogue import METHODS

    page = (ROOT / "docs" / "what-leaves-the-building.md").read_text(encoding="utf-8")
    table = {name for row in re.findall(r"^\| ([^|]+) \|", page, re.M) for name in re.findall(r"[\w-]+", row)}
    assert set(METHODS) <= table, f"not in the table: {set(METHODS) - table}"


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
