"""Documents that are made from the code are current, links lead somewhere, and what pages show can be run."""

import re
import shlex
import textwrap
import tomllib
from pathlib import Path

import click
import pytest
import tomli_w

from fedapa.cli import group
from fedapa.config.grid import laid_over, load_scenarios
from fedapa.config.load import as_table, load
from fedapa.tune.space import asked_for, spaces
from maker import load_maker

ROOT = Path(__file__).parents[1]


def test_methods_pages_are_current() -> None:
    pages = load_maker("make_methods").pages()
    for name, text in pages.items():
        path = ROOT / "docs" / name
        assert path.is_file(), f"{name} is missing: run python docs/make_methods.py"
        assert path.read_text(encoding="utf-8") == text, f"{name}: run python docs/make_methods.py"
    kept = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "methods").iterdir()}
    assert kept <= pages.keys(), f"of methods that are gone: {kept - pages.keys()}"


def test_nothing_is_promised_that_the_tables_do_not_show() -> None:
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


MADE = {"reference/api.md", "reference/cli.md", "reference/config.md"}  # by docs/site_hook.py, when the site is built
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            there = (page.parent / target).exists() or (page.parent.name == "docs" and target in MADE)
            assert target.startswith("http") or there, f"{page.name}: {target}"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S)


def shown_commands() -> list[tuple[str, list[str]]]:
    """Every command line of a console block that calls fedapa, with the page; test_doc_blocks.py runs most of them."""
    found = []
    for page in PAGES:
        for block in blocks(page, "console"):
            for line in re.findall(r"^ *(?:[\w-]*\$|#) (?:podman (?:run|exec) .*? )?fedapa (.*)$", block, re.M):
                found.append((page.name, shlex.split(line, comments=True)))
    return found


@pytest.mark.parametrize(("page", "words"), shown_commands(), ids=lambda value: str(value)[:60])
def test_commands_of_the_pages_are_understood(page: str, words: list[str]) -> None:
    """Read by the parser of the real command: verbs, options, their values, and as many arguments as it takes."""
    command: click.Command = group
    while isinstance(command, click.Group) and words and words[0] not in ("-h", "--help"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"{page}: there is no command {words[0]!r}"
        command, words = found, words[1:]
    if {"-h", "--help"} & set(words):
        return
    context = click.Context(command, **group.context_settings)  # a command keeps the help option that it makes first
    try:
        values, left, _ = command.make_parser(context).parse_args(list(words))
        for option in command.params:
            given = values.get(option.name)
            if isinstance(given, str | list) and not isinstance(option.type, click.Path):
                option.type_cast_value(context, given)
    except click.UsageError as error:
        pytest.fail(f"{page}: {error.format_message()}")
    assert left == [], f"{page}: {command.name} takes no {left}"


def test_commands_in_sentences_exist() -> None:
    """Verbs and options of `fedapa ...` between two backticks; many have a placeholder for a file or a name."""
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for named in re.findall(r"`fedapa ([a-z][^`]*)`", text):
            command, words = group, shlex.split(named)
            while isinstance(command, click.Group) and words:
                command = command.get_command(click.Context(command), words.pop(0))
                assert command is not None, f"{page.name}: fedapa {named}"
            known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            assert {word for word in words if word.startswith("--")} <= known, f"{page.name}: fedapa {named}"


def test_what_stands_in_a_list_is_indented_by_four() -> None:
    """With less, the site takes it out of the list, though GitHub does not."""
    for page in PAGES:
        wrong = re.findall(r"^ {1,3}(?:[-*] |\d+\. |```).*$", page.read_text(encoding="utf-8"), re.M)
        assert wrong == [], page.name


def test_every_block_says_what_it_is() -> None:
    """Then the tests here know what to do with it; `text` is a drawing or a formula."""
    for page in PAGES:
        fences = re.findall(r"^ *```(\w*)$", page.read_text(encoding="utf-8"), re.M)
        assert set(fences[::2]) <= {"console", "python", "toml", "ini", "text"}, page.name
        assert set(fences[1::2]) <= {""}, page.name


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=lambda page: page.name)
def test_toml_of_the_pages_is_a_config(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On top of the demo's config, or as a search space of `fedapa tune`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_method.py").write_text((ROOT / "examples" / "my_method.py").read_text())
    demo = as_table(load("demo"))
    for block in blocks(page, "toml"):
        table = tomllib.loads(textwrap.dedent(block))
        (tmp_path / "shown.toml").write_text(tomli_w.dumps(table))
        if table.keys() & {"ditto"}:
            assert spaces(load("demo", ['methods=["ditto"]']), asked_for(tmp_path / "shown.toml", ()))
            continue
        base = {key: value for key, value in demo.items() if key != "data" or not table.keys() & {"sites", "scenario"}}
        (tmp_path / "shown.toml").write_text(tomli_w.dumps(laid_over(base, table)))
        assert load_scenarios(str(tmp_path / "shown.toml"))


def test_the_readme_is_short() -> None:
    """A reader sees what it is, how to install it and a first result before anything else."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 900
    (code,) = blocks(ROOT / "README.md", "python")
    assert len(code.strip().splitlines()) <= 10
    assert text.index("docs/picture.svg") < text.index("pip install") < text.index("```python") < 2500


def test_every_page_opens_with_words() -> None:
    """A title, then what the reader gets; no table, list or code first."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.strip()]
        assert lines[0].startswith("# "), page.name
        assert re.match(r"[A-Z`*\[\"]", lines[1]), f"{page.name} opens with {lines[1]!r}"
