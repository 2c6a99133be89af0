"""The page as a reader meets it: made by the command, looked at in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Make, change

from browser import BROKEN, OVERFLOW, PHONE, REPEATED, WIDE, Looker, address
from command import Call

LOCAL = [[1, 2, 3], [2, 4, 6], [4, 5, 6]]
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def runs(make: Make) -> Path:
    """Two scenarios; a failed run, a broken one, and names that are not harmless."""
    for alpha in (0.1, 0.5):
        make(f"a{alpha}/local-seed0", "local", LOCAL, alpha=alpha)
        make(f"a{alpha}/fedavg-seed0", "fedavg", LOCAL[::-1], alpha=alpha, evaluated="before")
        better = [[n + 1 for n in row] for row in LOCAL]
        make(f"a{alpha}/fedapa-seed0", "fedapa", better, alpha=alpha, weights=True, names=[NASTY, "$x$", "z" * 60])
    odd = make("a0.1/odd-seed0", "odd", LOCAL)
    change(odd, "UPDATE meta SET value = '<script>alert(2)</script>' WHERE key = 'label'")
    (odd.parent / "broken").mkdir()
    (odd.parent / "broken" / "run.db").write_bytes(b"garbage" * 99)
    return odd.parents[1]


def test_the_page_in_a_real_browser(fedapa: Call, runs: Path, browser: Looker, tmp_path: Path) -> None:
    answer = fedapa("report", runs, "--figures", "drawn")
    assert answer.code == 0, answer.err
    page = runs / "report.html"
    assert answer.out == f"the report is in {page}\n"
    for width, scheme in ((WIDE, "light"), (PHONE, "dark")):
        with browser.look(address(page), width, scheme) as tab:
            assert browser.faults == []
            assert tab.evaluate(OVERFLOW) <= 0
            assert tab.evaluate(BROKEN) == []
            assert tab.evaluate(REPEATED) == []
            assert tab.locator("figure svg").count() == 2 * 9 + 1
            assert tab.locator("script, img").count() == 0
            assert tab.locator("h2").all_inner_texts()[:2] == ["All scenarios", "CIFAR-10 · Dirichlet 0.1 · 3 clients"]
            assert NASTY in tab.locator("figure svg").all_inner_texts()[4]
            box = tab.locator("figure svg").first.bounding_box()
            assert box["width"] <= width
            assert box["height"] > 100
            tab.emulate_media(media="print")
            assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    drawn = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert len(drawn) == 2 * (2 * 9 + 1)
    assert (tmp_path / "drawn" / "ranks.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "drawn" / "ranks.svg").read_text(encoding="utf-8")


def test_what_the_page_says(fedapa: Call, runs: Path) -> None:
    assert fedapa("report", runs, "--out", "deep/page.html").code == 0
    text = Path("deep/page.html").read_text(encoding="utf-8")
    assert "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'" in text
    assert not re.search(r"<(script|img|iframe|link rel=.stylesheet)", text)
    assert not re.search(r"(src|href)=\"https?:", text)
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text
    assert "broken" in text
    assert "unreadable" in text
    plain = re.sub(r"<[^>]+>", " ", text[text.index("Accuracy, next to the paper") :])
    row = re.search(r"FedAPA\s+([\d.–]+)\s+([\d.–]+)\s+([\d.–]+)\s+([\d.–]+)\s+([−+\d.–]+)", plain)
    # The last round has 5 + 6 + 7 of 30 right; before training one less at each client. The paper has no 3 clients.
    assert row is None
    row = re.search(r"FedAPA\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s", re.sub(r"<[^>]+>", " ", text[text.index("<h3>Accuracy") :]))
    assert row is not None
    assert row.groups() == ("50.00", "60.00", "60.00")
    assert "Sun" in text
    assert "lr" in text


def test_the_papers_number_stands_beside_ours(fedapa: Call, make: Make) -> None:
    make("fedapa-seed0", "fedapa", [[8] * 20, [7] * 20], method="FedAPA(eta=0.01, mu=0.5)")
    top = make("local-seed0", "local", [[7] * 20, [7] * 20]).parent
    assert fedapa("report", top).code == 0
    text = re.sub(r"<[^>]+>", " ", (top / "report.html").read_text(encoding="utf-8"))
    assert re.search(r"FedAPA\s+60\.00\s+70\.00\s+80\.00\s+85\.85\s+−5\.85", text)
    assert "rounds 2, not 50" in text
    assert "0 clients gain, 20 equal, 0 lose" in text


def test_figures_that_cannot_be_drawn_say_why(fedapa: Call, make: Make) -> None:
    run = make("fedper-seed0", "fedper", [[5, 5]])
    change(run, "UPDATE client SET labels = ''", "UPDATE round SET seconds = 0, server_seconds = 0")
    assert fedapa("report", run).code == 0
    text = (run / "report.html").read_text(encoding="utf-8")
    for words in ("No run of Local", "did not record their clients", "No run recorded a matrix", "recorded no times"):
        assert words in text


def test_only_broken_runs_still_give_a_page(fedapa: Call, tmp_path: Path) -> None:
    (tmp_path / "r" / "broken").mkdir(parents=True)
    (tmp_path / "r" / "broken" / "run.db").write_bytes(b"garbage" * 99)
    assert fedapa("report", "r").code == 0
    assert "None of these runs" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")


def test_mistakes(fedapa: Call, tmp_path: Path, make: Make) -> None:
    (tmp_path / "empty").mkdir()
    answer = fedapa("report", "empty")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: no run under empty")
    assert fedapa("report", "nowhere").code == 2
    assert fedapa("report").code == 0  # the latest under ./runs
    (tmp_path / "file").touch()
    assert fedapa("report", make("extra", "local", LOCAL), "--out", "file/page.html").code == 2
