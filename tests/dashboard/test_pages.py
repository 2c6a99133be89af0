"""The pages as a user meets them, in a real browser, while runs are going."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the dashboard is not installed: pip install 'fedapa[dashboard]'")

from serving import Writer, serving

from browser import OVERFLOW, PHONE, REPEATED, WIDE, Looker
from made_runs import change, make_run

NASTY = "<img src=x onerror=alert(1)><b>bold</b>"
SLANTED = "<i>c</i>"  # plotly would know what to do with it
ADDRESSES = {
    "overview": "overview?phase=after&sort=-gain_points",
    "clients": "clients?run=fedapa-seed0&client=1&sort=-after",
    "collaboration": "collaboration?run=fedapa-seed0&round=1&order=number",
    "compare": "compare?with=fedapa-seed0&with=local-seed0&against=fedapa",
    "events": "events?run=fedapa-seed0&kind=refused",
    "config": "config?run=local-seed0",
}
CHARTS = {"overview": 1, "clients": 4, "collaboration": 6, "compare": 1}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    top = tmp_path_factory.mktemp("watched") / "runs"
    make_run(top / "local-seed0", "local", [[2, 4, 6], [4, 5, 6]])
    run = make_run(top / "fedapa-seed0", "fedapa", [[3, 4, 5], [5, 6, 5]], weights=True, names=[NASTY, "b", SLANTED])
    change(run, f"INSERT INTO event VALUES (1, 1, 0, 'refused', '{NASTY}')")
    broken = top / "broken"
    broken.mkdir()
    (broken / "run.db").write_bytes(b"garbage" * 99)
    with serving(top) as found:
        yield found


def shown(tab: Any, charts: int = 0) -> None:
    """Wait until the page is filled and its charts are drawn."""
    tab.locator("main[data-version]").wait_for(timeout=20_000)
    for k in range(charts):
        tab.locator(".chart[data-drawn]").nth(k).wait_for(timeout=20_000)


def faults(browser: Looker) -> list[str]:
    """Without questions to a server that was stopped."""
    return [fault for fault in browser.faults if not (fault.startswith("request:") and "/api/" in fault)]


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_every_page_by_its_address(address: str, browser: Looker, width: int, scheme: str) -> None:
    with browser.look(address, width, scheme) as tab:
        shown(tab, 1)
        for page, path in ADDRESSES.items():
            tab.goto(address + path)
            shown(tab, CHARTS.get(page, 0))
            assert tab.locator("nav [aria-current]").inner_text().lower() == page
            assert tab.locator(".trouble").count() == 0, page
            assert tab.evaluate(OVERFLOW) <= 0, page
            assert tab.evaluate(REPEATED) == [], page
            assert tab.locator("main img, main b b").count() == 0
            assert faults(browser) == [], page
            if page == "clients":
                rows = tab.locator("tbody th").all_inner_texts()
                assert rows[0] == "b"
                assert set(rows[1:]) == {NASTY, SLANTED}
                assert tab.locator(".detail h2").inner_text() == "Client b"
            if page == "collaboration":
                assert tab.locator("output").inner_text() == "round 1 of 2"
                assert tab.locator(".chart text", has_text=SLANTED).count() >= 2  # a name in charts, too
                assert tab.get_by_text("No groups in round 1.").count() == 1
            if page == "events":
                assert NASTY in tab.locator("tbody").inner_text()
            if page == "compare":
                assert tab.locator("input:checked").count() == 2


def test_clicks_and_keys_lead_to_addresses(address: str, browser: Looker) -> None:
    with browser.look(address) as tab:
        shown(tab)
        tab.keyboard.press("2")
        tab.locator("main.clients[data-version]").wait_for()
        tab.locator("#run").select_option("fedapa-seed0")
        tab.locator("tbody tr").nth(2).click()
        tab.locator(".detail h2", has_text=f"Client {SLANTED}").wait_for()
        tab.keyboard.press("k")
        tab.locator(".detail h2", has_text="Client b").wait_for()
        assert tab.url == f"{address}clients?run=fedapa-seed0&client=1"
        tab.get_by_role("button", name="after %").click()
        assert tab.locator("th[aria-sort=descending]").inner_text().startswith("after %")
        tab.keyboard.press("3")
        shown(tab, 4)
        tab.keyboard.press("ArrowLeft")
        tab.locator("output", has_text="round 1 of 2").wait_for()
        assert tab.url == f"{address}collaboration?run=fedapa-seed0&round=1"
        tab.go_back()
        tab.locator("main.clients").wait_for()
        tab.keyboard.press("t")
        assert tab.evaluate("document.documentElement.dataset.theme") == "light"
        tab.keyboard.press("?")
        assert tab.locator("dialog").is_visible()
        assert faults(browser) == []


def test_a_damaged_run_and_a_wrong_name_are_told(address: str, browser: Looker) -> None:
    with browser.look(address) as tab:
        for page in ("clients", "collaboration", "config"):
            tab.goto(f"{address}{page}?run=broken")
            tab.locator(".trouble", has_text="not a readable run.db").wait_for()
        tab.goto(f"{address}clients?run=../../etc")
        tab.locator(".trouble", has_text="There is no run ../../etc here").wait_for()
        assert faults(browser) == []


def test_live_updates_reload_and_two_viewers(tmp_path: Path, browser: Looker) -> None:
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs") as address, browser.look(address) as tab:
        tab.locator(".empty", has_text="No run here yet").wait_for()
        writer = Writer(tmp_path / "runs" / "a", 4, rounds=6)
        try:
            tab.locator("tbody", has_text="0 / 6").wait_for()
            writer.play(2)
            tab.locator("tbody", has_text="2 / 6").wait_for()
            second = browser.browser.new_page()
            second.goto(f"{address}collaboration?run=a")
            second.locator("output", has_text="round 2 of 2 (newest)").wait_for()
            tab.bring_to_front()  # a browser draws nothing in a tab that is behind another
            writer.play()
            tab.locator("tbody", has_text="3 / 6").wait_for()
            second.bring_to_front()
            second.locator("output", has_text="round 3 of 3 (newest)").wait_for()
            tab.bring_to_front()
            tab.reload()
            tab.locator("tbody", has_text="3 / 6").wait_for()
            writer.play(3)
        finally:
            writer.finish()
        tab.locator("tbody", has_text="finished").wait_for()
        second.bring_to_front()
        second.locator(".controls .state", has_text="finished").wait_for()
        second.close()
        assert faults(browser) == []


def test_a_tab_that_nobody_sees_asks_for_nothing(tmp_path: Path, browser: Looker) -> None:
    writer = Writer(tmp_path / "runs" / "a", 4, rounds=6)
    try:
        with serving(tmp_path / "runs") as address, browser.look(address) as tab:
            tab.locator("tbody", has_text="0 / 6").wait_for()
            tab.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
            asked: list[str] = []
            tab.on("request", lambda request: asked.append(request.url))
            writer.play(2)
            other = browser.browser.new_page()
            other.goto(address)
            other.locator("tbody", has_text="2 / 6").wait_for()  # the news is out
            other.close()
            assert asked == []
            tab.bring_to_front()
            tab.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
            tab.locator("tbody", has_text="2 / 6").wait_for()
    finally:
        writer.close()


def test_charts_out_of_sight_wait_until_somebody_scrolls_there(tmp_path: Path, browser: Looker) -> None:
    writer = Writer(tmp_path / "runs" / "a", 4, rounds=6)
    writer.play()
    try:
        with serving(tmp_path / "runs") as address, browser.look(f"{address}collaboration?run=a") as tab:
            tab.set_viewport_size({"width": WIDE, "height": 500})
            shown(tab, 4)
            top, below = tab.locator(".chart").nth(0), tab.locator(".chart").nth(3)
            below.and_(tab.locator("[data-seen=no]")).wait_for()
            before = below.get_attribute("data-drawn")
            writer.play()
            tab.locator("output", has_text="round 2 of 2").wait_for()
            tab.locator(".chart[aria-label='Weights of round 2']").wait_for()
            assert (top.get_attribute("data-seen"), below.get_attribute("data-drawn")) == ("yes", before)
            below.scroll_into_view_if_needed()
            below.and_(tab.locator(f"[data-seen=yes]:not([data-drawn='{before}'])")).wait_for()
    finally:
        writer.close()


def test_the_server_goes_and_comes_back(tmp_path: Path, browser: Looker) -> None:
    make_run(tmp_path / "runs" / "a", "fedapa", [[1, 2]], weights=True)
    with serving(tmp_path / "runs") as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        tab = browser.browser.new_page()
        tab.goto(f"{address}clients?run=a&client=1")
        tab.locator(".detail h2", has_text="Client 1").wait_for()
    tab.locator(".chip.lost").wait_for()
    assert tab.locator(".detail h2").inner_text() == "Client 1"  # what was there stays
    make_run(tmp_path / "runs" / "b", "local", [[1, 1]])
    with serving(tmp_path / "runs", port):
        tab.locator(".chip.live").wait_for()
        tab.locator("#run option", has_text="b · finished").wait_for(state="attached")
        tab.close()


def age(folder: Path) -> None:
    """As if nothing had changed for long: a server that starts now has one version of it."""
    for file in folder.rglob("*"):
        os.utime(file, (1e9, 1e9))


def test_another_server_that_counts_from_one_is_believed_though_the_page_rests(tmp_path: Path, browser: Looker) -> None:
    """A page that took long to draw rests; a server that comes back meanwhile says the version which is shown."""
    runs = tmp_path / "runs"
    make_run(runs / "a", "fedapa", [[1, 2]])
    age(runs)
    tab = browser.browser.new_page()
    tab.add_init_script("let now = 0; performance.now = () => (now += 200)")
    with serving(runs) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        tab.goto(f"{address}clients?run=a")
        tab.locator("#run option", has_text="a · finished").wait_for(state="attached")
    tab.locator(".chip.lost").wait_for()
    with serving(runs, port), tab.expect_response("**/api/overview*"):
        pass
    tab.locator(".chip.lost").wait_for()
    make_run(runs / "b", "local", [[1, 1]])
    age(runs)
    with serving(runs, port):
        tab.locator("#run option", has_text="b · finished").wait_for(state="attached")
    tab.close()


def test_a_real_run_as_it_goes(tmp_path: Path, small: Path, browser: Looker) -> None:
    import threading

    from fedapa.config.experiment import execute, lay_out
    from fedapa.config.load import load

    (run,) = lay_out(load(str(small), ["run.rounds=8", "methods=['fedapa']"]), tmp_path / "runs")
    with serving(tmp_path / "runs") as address, browser.look(address) as tab:
        tab.locator("tbody", has_text="planned").wait_for()
        thread = threading.Thread(target=execute, args=(run,))
        thread.start()
        tab.locator("tbody", has_text="8 / 8").wait_for(timeout=60_000)
        thread.join()
        tab.locator("tbody", has_text="finished").wait_for()
        assert faults(browser) == []
