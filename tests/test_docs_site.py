"""The documentation as a site: built without a warning, every page in the navigation, no network, search as a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from browser import FAINT, OVERFLOW, PHONE, Looker, address
from maker import load_maker

pytest.importorskip("mkdocs", reason="the docs extra is not installed: pip install 'fedapa[docs]'")
pytest.importorskip(
    "mkdocstrings_handlers.python", reason="the docs extra is not installed: pip install 'fedapa[docs]'"
)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)], cwd=ROOT, text=True,
        capture_output=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_a_new_page_is_found_by_itself() -> None:
    hook = load_maker("site_hook")
    told = hook.navigation(["index.md", "start-site.md", "models.md", "methods/x.md", "decisions/0001-a.md"])
    assert {"Guides": ["models.md"]} in told
    assert {"Methods": ["methods/x.md"]} in told
    assert [name for section in told for name in section] == ["Home", "Start", "Guides", "Methods", "Decisions"]


def test_links_of_the_repository_are_made_right_for_the_site() -> None:
    hook = load_maker("site_hook")
    assert hook.moved("[a](docs/results.md#x)", "", "index.md") == "[a](results.md#x)"
    assert hook.moved("[a](../methods.md)", "docs/", "methods/fedapa.md") == "[a](../methods.md)"
    assert hook.moved("[a](../SECURITY.md)", "docs/", "deploy.md") == "[a](project/security.md)"
    assert hook.moved("[a](https://x.org)", "docs/", "deploy.md") == "[a](https://x.org)"
    code = hook.moved("[a](../examples/poisson.py)", "docs/", "deploy.md")
    assert code.endswith("/blob/main/examples/poisson.py)")
    assert "://" in code


def test_the_reference_has_every_command_key_and_name(site: Path) -> None:
    import fedapa
    from fedapa.cli import VERBS
    from fedapa.config.sections import Config

    commands, config, python = (
        (site / "reference" / f"{name}.html").read_text(encoding="utf-8") for name in ("cli", "config", "api")
    )
    assert all(f"fedapa {verb}" in commands for verb in VERBS)
    assert "--proxy-port" in commands
    assert all(f"<code>{key}</code>" in config or f"[{key}]" in config for key in Config.model_fields)
    assert "learning rate" in config
    assert all(re.search(rf'id="fedapa\.[\w.]*\.{name}"', python) for name in fedapa.__all__)


def test_methods_are_in_order_and_the_home_page_stands_alone() -> None:
    told = load_maker("site_hook").navigation(["index.md", "methods/fedapa-exact.md", "methods/fedapa.md"])
    assert told == [{"Home": "index.md"}, {"Methods": ["methods/fedapa.md", "methods/fedapa-exact.md"]}]


def test_formulas_are_shown_without_a_script(site: Path) -> None:
    page = (site / "theory.html").read_text(encoding="utf-8")
    assert page.count("<math") > 100
    text = re.sub(r"<(script|math).*?</\1>|<[^>]*>", "", page, flags=re.S)
    assert "$" not in re.sub(r"^\$ ", "", text, flags=re.M)
    assert "\\" not in text


def test_the_home_page_has_the_name_of_the_site_once(site: Path) -> None:
    assert "<title>fedapa</title>" in (site / "index.html").read_text(encoding="utf-8")


def test_the_site_in_a_browser(site: Path, browser: Looker) -> None:
    for page, width, scheme in (
        ("index", 1280, "light"),
        ("results/table1", PHONE, "dark"),
        ("methods", 1920, "light"),
        ("methods/fedapa", 1280, "dark"),
        ("theory", PHONE, "light"),
        ("reference/api", PHONE, "dark"),
    ):
        with browser.look(address(site / f"{page}.html"), width, scheme) as tab:
            assert tab.evaluate(OVERFLOW) <= 0, page
            asked = [fault for fault in browser.faults if "http" in fault or fault.startswith(("script", "console"))]
            assert asked == [], page
            faint = [text for text in tab.evaluate(FAINT) if not text.startswith("md-skip")]  # out of sight
            assert faint == [], page
    with browser.look(address(site / "index.html"), 1280) as tab:
        tab.locator("input.md-search__input").first.click()
        tab.keyboard.type("prototype", delay=30)
        tab.locator(".md-search-result__item").first.wait_for(timeout=20_000)
        assert "http" not in " ".join(browser.faults)
