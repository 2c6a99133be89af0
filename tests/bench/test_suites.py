"""The command, and the page that is made of what it finds."""

from __future__ import annotations

import json
import threading
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from command import Call
from fedapa.bench import end_to_end, image_data, own_loops, suites
from fedapa.bench.end_to_end import Stopwatch, play, play_plain
from fedapa.bench.fixtures import How
from fedapa.bench.numerics import agreement
from fedapa.bench.side_by_side import Row, Spread, known, threads
from fedapa.bench.vmap_rounds import Workload, workloads
from fedapa.data import sources
from fedapa.methods.catalogue import make
from fedapa.methods.fedapa import FedAPA
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import Result, make_task, simulate
from fedapa.training import local
from fedapa.training.engines.choice import GAIN
from fedapa.training.engines.native import available
from maker import load_maker

ROOT = Path(__file__).parents[2]
native = pytest.mark.skipif(not available()[0], reason=f"the native kernel is not available: {available()[1]}")


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return load_maker("make_performance")


@native
def test_one_quick_suite_from_end_to_end(fedapa: Call, maker: ModuleType, tmp_path: Path) -> None:
    answer = fedapa("bench", "--quick", "--only", "train", "--format", "json", "--out", "here/found.json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert found == json.loads((tmp_path / "here" / "found.json").read_text())
    assert [row["suite"] for row in found["rows"]] == ["train", "train"]
    assert [row["target"] for row in found["rows"]] == [5.0, 7.0]
    for row in found["rows"]:
        speeds = row["detail"]["samples per second"]
        assert row["found"]["low"] <= row["found"]["median"] <= row["found"]["high"]
        assert row["found"]["median"] == pytest.approx(speeds["native"] / speeds["plain"], rel=0.5)
        assert row["holds"] is None  # tiny sizes prove nothing
    assert found["machine"]["cores"] >= 1
    assert "Training one client" in maker.page(found, "found.json")


@native
def test_recipes_are_measured_on_both_engines(fedapa: Call, maker: ModuleType) -> None:
    found = json.loads(fedapa("bench", "--quick", "--only", "recipes", "--format", "json").out)
    assert [row["what"].split(",")[0] for row in found["rows"]] == [
        "class weights and smoothed labels",
        "clipping",
        "Adam",
    ]
    assert all(set(row["detail"]["samples per second"]) == {"torch", "native"} for row in found["rows"])
    assert "## Other recipes" in maker.page(found, "found.json")


def test_the_vmap_engine_is_measured_where_auto_may_choose_it(fedapa: Call, maker: ModuleType) -> None:
    answer = fedapa("bench", "--quick", "--only", "vmap", "--format", "json")
    assert answer.code == 0
    found = json.loads(answer.out)
    tables, digits, images = found["rows"]
    assert [row["target"] for row in found["rows"]] == [GAIN, GAIN, None]
    for row in (tables, digits):
        assert set(row["detail"]["milliseconds"]) == {"torch", "vmap"}
        assert row["detail"]["engine of auto"] in ("torch", "vmap")
    assert ("native" in images["detail"]["milliseconds"]) == available()[0]
    assert "Many small clients" in maker.page(found, "found.json")


@pytest.mark.parametrize("k", range(3))
def test_a_hand_written_loop_does_the_same_work(k: int) -> None:
    """Its clients end with the same weights; Adam divides by small numbers, so that last digits grow."""
    workload = own_loops.workloads(How(quick=True))[k]
    with threads():
        both = zip(own_loops.ours(workload), own_loops.plain(workload), strict=True)
    assert workload.task.engine == "torch"
    for one, other in both:
        for part in ("theta", "phi"):
            assert torch.allclose(one[part], other[part], atol=5e-4)


def test_overhead_is_told_against_hand_written_loops(fedapa: Call, maker: ModuleType) -> None:
    answer = fedapa("bench", "--quick", "--only", "loops", "--format", "json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert [row["target"] for row in found["rows"]] == [1.05] * 3
    for row in found["rows"]:
        seconds = row["detail"]["seconds"]
        assert row["found"]["median"] == pytest.approx(seconds["ours"] / seconds["plain"], rel=0.5)
    assert "against a hand-written loop" in maker.page(found, "found.json")


@pytest.mark.parametrize("workload", workloads(How(quick=True)), ids=lambda workload: workload.model)
def test_the_engines_of_a_vmap_row_train_the_same(workload: Workload) -> None:
    """A ratio means something only if both ways do the same work."""
    ends = []
    for engine in ("torch", "vmap"):
        task = make_task(workload.data, workload.model, engine=engine)
        ends.append(simulate(FedAPA(), task, workload.data, Plan(1, (1.0, 1.0))))
        assert task.engine == engine
    for one, other in zip(ends[0].records, ends[1].records, strict=True):
        assert all(torch.allclose(one.state[k], other.state[k], atol=1e-4) for k in one.state)


def test_a_whole_run_is_told_for_every_method(fedapa: Call, maker: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_to_end, "available_cores", lambda: 1)  # threads would wait for whatever else runs
    answer = fedapa("bench", "--quick", "--only", "run", "--rounds", "1", "--format", "json")
    assert answer.code == 0
    found = json.loads(answer.out)
    of_fedapa, of_all = found["rows"]
    assert (of_fedapa["target"], of_all["target"]) == (6.0, 7.0)
    assert (
        of_all["what"] == "whole run, median of 3 methods, 20 clients, 1 round, against the plain loop doing the same"
    )
    ratios = [ratio for one in of_all["detail"]["ratios"] for ratio in one.values()]
    assert ratios == sorted(ratios)
    assert list(of_all["found"].values()) == [ratios[1], ratios[0], ratios[2]]
    assert "median of 3 methods" in maker.page(found, "found.json")


def test_long_benchmarks_play_few_rounds_of_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_to_end, "_fedapa", lambda how: how.rounds)
    monkeypatch.setattr(end_to_end, "_system", lambda how: how.rounds)
    assert end_to_end.run(How(rounds=50)) == [50, 2]
    assert end_to_end.run(How(rounds=1)) == [1, 1]


def test_the_system_is_that_of_the_papers_tables() -> None:
    table = tomllib.loads((ROOT / "experiments" / "table2.toml").read_text(encoding="utf-8"))
    assert list(end_to_end.SYSTEM) == table["methods"]
    assert len(end_to_end.SYSTEM) == 18


@native
@pytest.mark.parametrize("name", ["fedapa", "fedproto"])
def test_the_plain_loop_does_the_same_run_on_all_cores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ratio means something only if both ways do the same work; the plain one takes no engine and no worker."""
    data, ends, seen = image_data.equal("fmnist", 3, 70, 20), list[Result](), set[Any]()
    task = make_task(data, rounds=2)
    monkeypatch.setattr(end_to_end, "simulate", lambda *a, **k: ends.append(simulate(*a, **k)))
    play(make(name), task, data, 2)
    for work in ("train", "outputs"):  # of the plain engine
        real = getattr(local, work)

        def watched(given: Any, work: str = work, real: Any = real) -> Any:
            if given.task.training.epochs:  # none: a visit without training, to know the shapes of uploads
                seen.add((work, given.task.engine, torch.get_num_threads(), threading.current_thread().name))
            return real(given)

        monkeypatch.setattr(local, work, watched)
    monkeypatch.setattr(end_to_end, "available_cores", lambda: 3)
    play_plain(make(name), task, data, 2)
    assert seen == {(work, "torch", 3, threading.current_thread().name) for work in ("train", "outputs")}
    assert task.engine == "native"
    for one, other in zip(ends[0].records, ends[1].records, strict=True):
        assert all(torch.allclose(one.state[k], other.state[k], atol=1e-4) for k in one.state)
    for one_log, other_log in zip(ends[0].logs, ends[1].logs, strict=True):
        assert one_log.trained == other_log.trained


def test_unknown_suites_are_refused(fedapa: Call) -> None:
    answer = fedapa("bench", "--only", "trian")
    assert answer.code == 2
    assert "there is no benchmark called 'trian'" in answer.err


def test_suites_are_listed(fedapa: Call) -> None:
    rows = json.loads(fedapa("bench", "--list", "--format", "json").out)
    assert [row["suite"] for row in rows] == list(suites.SUITES)
    assert all(row["measures"] for row in rows)


def test_every_row_of_a_chosen_suite_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setitem(suites.SUITES, "start", lambda how: [Row("start", str(how.rounds), known(1.0), "s", 2.0, True)])
    found = suites.report(suites.chosen(["start"]), How(rounds=7), told.append)
    assert told == ["start"]
    assert [(row["what"], row["holds"]) for row in found["rows"]] == [("7", True)]


def test_random_images_have_the_shape_of_the_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "is_present", lambda name: False)
    image_data.dataset.cache_clear()
    data = image_data.unbalanced("cifar10", 6, 300, 60)
    image_data.dataset.cache_clear()
    assert data.name == "random, shaped as cifar10"
    assert data.shape == (3, 32, 32)
    sizes = data.sizes.tolist()
    assert 250 < sum(sizes) <= 300
    assert max(sizes) > 2 * min(sizes)


@native
def test_the_stopwatch_sees_less_than_the_whole_and_changes_nothing(tmp_path: Path) -> None:
    data = image_data.unbalanced("fmnist", 3, 300, 60)
    task = make_task(data, rounds=2)
    watch: Any = Stopwatch(FedAPA())
    whole = play(watch, task, data, 2)
    assert 0 < watch.spent.cpu < whole.cpu
    assert 0 < watch.spent.wall < 3 * whole.wall


@native
def test_two_layouts_of_torch_start_alike_and_end_close() -> None:
    found = agreement(image_data.unbalanced("cifar10", 2, 200, 40), 0)
    assert 0 < found.layouts < 1e-2
    assert found.native < 1e-2


def a_row(**changes: Any) -> dict[str, Any]:
    made = Row("train", "a ratio", Spread(5.456, 5.3, 5.6), "x", 5.0, detail={"samples per second": {"plain": 6640}})
    return {**made.as_dict(), **changes}


def test_the_page_says_what_was_measured_and_what_falls_short(maker: ModuleType) -> None:
    facts = {"processor": "P", "cores": 2, "python": "3.11", "packages": {"torch": "2", "fedapa": "0"}}
    machine = {**facts, "date": "2026-11-15T10:00:00", "load before": 0.1}
    met = maker.page({"machine": machine, "quick": False, "rows": [a_row()]}, "benchmarks/x.json")
    assert "| a ratio | ≥ 5 x | 5.46 x | 5.3, 5.6 | yes |" in met
    assert "samples per second plain 6,640" in met
    assert "All targets are met" in met
    missed = maker.page(
        {"machine": machine, "quick": False, "rows": [a_row(target=6.0, holds=False)]}, "benchmarks/x.json"
    )
    assert "- a ratio: 5.46 instead of 6 x" in missed
    assert "All targets are met" not in missed


def test_the_newest_file_counts(maker: ModuleType, tmp_path: Path) -> None:
    for name in ("2026-11-02.json", "2026-10-30.json"):
        (tmp_path / name).write_text("{}")
    assert maker.newest(tmp_path).name == "2026-11-02.json"
    with pytest.raises(SystemExit, match="run `fedapa bench` first"):
        maker.newest(tmp_path / "nothing")


def test_a_suite_that_was_measured_alone_since_then_counts(maker: ModuleType, tmp_path: Path) -> None:
    facts = {"processor": "P", "cores": 2, "python": "3", "packages": {"torch": "2", "fedapa": "0"}, "load before": 0}

    def keep(name: str, day: str, *rows: dict[str, Any]) -> None:
        report = {"machine": {**facts, "date": day}, "quick": False, "rows": rows}
        (tmp_path / f"{name}.json").write_text(json.dumps(report))

    keep("2026-11-02", "2026-11-02T08", a_row(), a_row(suite="exact", what="before"))
    keep("2026-11-02-exact", "2026-11-02T09", a_row(suite="exact", what="after"))
    keep("2026-11-01-train", "2026-11-01T09", a_row(what="older"))
    report, source = maker.gathered(tmp_path)
    assert source == "benchmarks/2026-11-02.json"
    assert [row["what"] for row in report["rows"]] == ["a ratio", "after"]
    assert maker.page(report, source).count("Measured alone, `benchmarks/2026-11-02-exact.json`. P, 2 cores") == 1


def test_the_page_is_current(maker: ModuleType) -> None:
    if not (ROOT / "docs" / "performance.md").exists():
        pytest.skip("nothing has been measured yet")
    found = maker.page(*maker.gathered(ROOT / "benchmarks"))
    assert (ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == found, (
        "run: python docs/make_performance.py"
    )
