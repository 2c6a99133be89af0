"""The page as a reader meets it: made by the command, looked at in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from browser import BROKEN, OVERFLOW, PHONE, REPEATED, WIDE, Looker, address
from command import Call
from fedapa.analysis.run_reader import gather
from fedapa.report import figures
from fedapa.report.page import _tie_row, write
from made_runs import Make, change, make_run

LOCAL = [[1, 2, 3], [2, 4, 6], [4, 5, 6]]
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on two scenarios with a broken run, and with names that are not harmless."""
    top = tmp_path_factory.mktemp("report")
    for alpha in (0.1, 0.5):
        folder = top / "runs" / f"a{alpha}"
        make_run(folder / "local-seed0", "local", LOCAL, alpha=alpha)
        better = [[n + 1 for n in row] for row in LOCAL]
        names = [NASTY, "$x$", "z" * 60]
        make_run(folder / "fedapa-seed0", "fedapa", better, alpha=alpha, weights=True, names=names)
    odd = make_run(top / "runs" / "a0.1" / "odd-seed0", "odd", LOCAL, evaluated="before")
    change(odd, "UPDATE meta SET value = '<script>alert(2)</script>' WHERE key = 'label'")
    (odd.parent / "broken").mkdir()
    (odd.parent / "broken" / "run.db").write_bytes(b"garbage" * 99)
    assert write(top / "runs", top / "page.html") == [top / "page.html"]
    return top / "page.html"


def test_the_page_in_a_real_browser(page: Path, browser: Looker) -> None:
    for width, scheme in ((WIDE, "light"), (PHONE, "dark")):
        with browser.look(address(page), width, scheme) as tab:
            assert browser.faults == []
            assert tab.evaluate(OVERFLOW) <= 0
            assert tab.evaluate(BROKEN) == []
            assert tab.evaluate(REPEATED) == []
            assert tab.locator("figure svg").count() == 2 * 10 + 1
            assert tab.locator("script, img").count() == 0
            assert tab.locator("h2").all_inner_texts()[:2] == ["All scenarios", "CIFAR-10 · Dirichlet 0.1 · 3 clients"]
            assert NASTY[:18] in tab.locator("figure[id$=who] svg").first.text_content()
            box = tab.locator("figure svg").first.bounding_box()
            assert box["width"] <= width
            assert box["height"] > 60
            tab.emulate_media(media="print")
            assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_browser_would_see_what_is_wrong(tmp_path: Path, browser: Looker) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<meta name=viewport content='width=device-width'><p id=a><p id=a><img src='data:,'><svg><use href='#b'/></svg>"
        "<div style='width:2000px'>x</div><script>nonsense()</script><img src='gone.png'>"
    )
    with browser.look(address(page), PHONE) as tab:
        assert [fault.partition(":")[0] for fault in browser.faults if "nonsense" in fault] == ["script"]
        assert any("gone.png" in fault for fault in browser.faults)
        assert tab.evaluate(OVERFLOW) > 1000
        assert len(tab.evaluate(BROKEN)) == 3
        assert tab.evaluate(REPEATED) == ["a"]


def test_what_the_page_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in text
    assert not re.search(r"<(script|img|iframe|link rel=.stylesheet)", text)
    assert not re.search(r"(src|href)=\"https?:", text)
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text
    plain = re.sub(r"<[^>]+>", " ", text)
    assert re.search(r"a0\.1/broken\s+unreadable", plain)
    # In the last round 5 + 6 + 7 of 30 are right, before training one less at each client.
    assert re.search(r"1\s+FedAPA\s+50\.00\s+60\.00\s+60\.00\s", plain)
    assert "+10.00" in plain
    assert "3 clients gain, 0 equal, 0 lose" in plain
    # The last A: 0.8 of one's own (0.9 before, so that half of a tenth moved), 0.1 of both others, nobody together.
    assert re.search(r"FedAPA\s+3\s+0\.80\s+2\.0 \(2\.0 to 2\.0\)\s+5\.00 %\s+3\s+–", plain)
    assert "Yuxia Sun" in plain
    assert re.search(r"training\.lr\s+0\.01", plain)


def test_the_papers_number_stands_beside_ours(fedapa: Call, make: Make) -> None:
    make("fedapa-seed0", "fedapa", [[8] * 20, [7] * 20], method="FedAPA(eta=0.01, mu=0.5)")
    top = make("local-seed0", "local", [[7] * 20, [7] * 20]).parent
    assert fedapa("report", top).code == 0
    text = re.sub(r"<[^>]+>", " ", (top / "report.html").read_text(encoding="utf-8"))
    assert re.search(r"FedAPA\s+60\.00\s+70\.00\s+80\.00\s+85\.85\s+−5\.85", text)
    assert "rounds 2, not 50" in text
    assert "0 clients gain, 20 equal, 0 lose" in text


def told(fedapa: Call, folder: Path) -> str:
    assert fedapa("report", folder).code == 0
    return re.sub(r"<[^>]+>", " ", (folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_compares_at_the_same_round(fedapa: Call, make: Make) -> None:
    """FedAPA is at round 2 of 3, where Local had as many right; in round 3 Local has more."""
    make("fedapa-seed0", "fedapa", [[5] * 4, [6] * 4], status="running", rounds=3)
    text = told(fedapa, make("local-seed0", "local", [[5] * 4, [6] * 4, [8] * 4]).parent)
    assert re.search(r"FedAPA\s+2/3 rounds\s+0\s+4\s+0\s+\+0\.00\s+–\s+–\s+2\s", text)
    assert re.search(r"FedAPA\s+60\.00 %\s+round 2: not ranked", text)
    assert "0 clients gain, 4 equal, 0 lose, round 2" in text
    assert "Highest: Local with 80.00 %. Not compared (at round 2): all others." in text
    assert "Below Local" not in text


def test_the_page_says_what_three_allocations_say(fedapa: Call, make: Make) -> None:
    """Gains of 10, 20 and 10 points: mean 13.33, sd 5.77, p 0.057; four clients of each are counted alone."""
    for seed, (alone, together) in enumerate(((5, 6), (5, 7), (6, 7))):
        make(f"local-seed{seed}", "local", [[alone] * 4], seed=seed)
        top = make(f"fedapa-seed{seed}", "fedapa", [[together] * 4], seed=seed).parent
    text = told(fedapa, top)
    assert re.search(r"FedAPA\s+3 allocations\s+12\s+0\s+0\s+\+13\.33\s+−1\.01 to \+27\.68\s+0\.057\s+1\s", text)
    assert "Not distinguishable from it: all others" in text
    assert "Wilcoxon" not in text


def test_the_page_says_that_one_allocation_has_no_test(page: Path) -> None:
    text = re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8"))
    assert "No interval and no p: 1 allocation, 3 are needed." in text
    assert "Not tested: 1 allocation, 3 are needed" in text
    assert "Fewer than 3 allocations: no intervals, no tests" in text


def test_figures_are_files_too_and_those_that_cannot_be_drawn_say_why(fedapa: Call, make: Make, tmp_path: Path) -> None:
    run = make("fedper-seed0", "fedper", [[5, 5]])
    change(run, "UPDATE client SET labels = ''", "UPDATE round SET seconds = 0, server_seconds = 0")
    answer = fedapa("report", run, "--figures", "drawn")
    assert answer.code == 0
    assert answer.err.splitlines()[-1] == "8 figures are in drawn"  # a slow machine tells of its progress before
    text = (run / "report.html").read_text(encoding="utf-8")
    for words in ("No run of Local", "Train samples per client.", "No run recorded a matrix", "recorded no times"):
        assert words in text
    drawn = {path.name.rpartition("-")[2] for path in (tmp_path / "drawn").iterdir()}
    assert drawn == {f"{name}.{form}" for name in ("curves", "phases", "bytes", "partition") for form in ("svg", "pdf")}
    for path in (tmp_path / "drawn").iterdir():
        assert path.read_bytes().startswith(b"%PDF" if path.suffix == ".pdf" else b"<?xml")


def test_weights_between_very_many_clients_are_not_drawn(fedapa: Call, make: Make) -> None:
    run = make("fedapa-seed0", "fedapa", [[5] * 401], weights=True)
    assert fedapa("report", run).code == 0
    assert "between more than 400 clients are not drawn" in (run / "report.html").read_text(encoding="utf-8")


def test_weights_of_a_run_that_diverged_stay_readable(make: Make) -> None:
    """Twenty digits in a cell, or an axis up to 1e28, hide what all other runs did."""
    run = make("a", "fedapa", [[5, 6], [6, 7]], weights=True)
    huge = np.full((2, 2), 1e20, dtype="<f4").tobytes().hex()
    change(run, f"UPDATE watched SET float32 = x'{huge}' WHERE round = (SELECT max(round) FROM watched)")
    (scenario,) = gather(run.parent).scenarios
    (tie,) = figures.ties(scenario)
    row = _tie_row(tie)
    assert row["own"] == "1e+20"
    assert re.fullmatch(r"\de\+22 %", row["moved"])
    drawn = figures.collaborators(scenario)
    assert not isinstance(drawn, str)
    assert drawn.axes[1].get_ylim() == (0, 100)


def test_only_broken_runs_still_give_a_page(fedapa: Call, tmp_path: Path) -> None:
    broken = tmp_path / "runs" / "latest" / "broken"
    broken.mkdir(parents=True)
    (broken / "run.db").write_bytes(b"garbage" * 99)
    answer = fedapa("report")  # the latest under ./runs
    assert (answer.code, answer.out) == (0, "the report is in runs/latest/report.html\n")
    assert "None of these runs" in (tmp_path / answer.out.split()[-1]).read_text(encoding="utf-8")


def test_mistakes(fedapa: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = fedapa("report", "empty")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: no run under empty")
    assert fedapa("report", "nowhere").code == 2
    assert fedapa("report").code == 2
    (tmp_path / "file").touch()
    assert fedapa("report", "empty", "--out", "file/page.html").code == 2
