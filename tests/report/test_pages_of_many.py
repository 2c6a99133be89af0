"""A thousand clients and several seeds: what is drawn can be read, and rounds are whole numbers."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from fedapa.analysis import run_reader
from fedapa.analysis.run_reader import Scenario, gather, seed_band
from fedapa.report import figures
from fedapa.report.page import write
from made_runs import Make


def of(folder: Path) -> Scenario:
    (scenario,) = gather(folder).scenarios
    return scenario


def test_gains_of_a_thousand_clients_are_a_histogram(make: Make) -> None:
    """700 gain a tenth, 200 lose two tenths, 100 stay: 200 are left of zero, 700 right of it, 100 on it."""
    gains = [1] * 700 + [-2] * 200 + [0] * 100
    make("local-seed0", "local", [[5] * 1000])
    scenario = of(make("fedapa-seed0", "fedapa", [[5 + g for g in gains]]).parent)
    drawn = figures.who(scenario)
    assert not isinstance(drawn, str)
    (axes,) = drawn.axes
    assert drawn.get_figheight() < 4
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in axes.patches]
    assert sum(n for x, n in bars if x < -1e-9) == 200
    assert sum(n for x, n in bars if x > 1e-9) == 700
    assert [n for x, n in bars if abs(x) <= 1e-9] == [100]
    holdings = figures.partition(scenario)
    assert not isinstance(holdings, str)
    assert [axes.get_xlabel() for axes in holdings.axes] == ["train samples", "classes"]


def test_few_clients_are_shown_by_name(make: Make) -> None:
    make("local-seed0", "local", [[5] * 3])
    scenario = of(make("fedapa-seed0", "fedapa", [[6, 7, 4]], names=["north", "south", "west"]).parent)
    drawn = figures.who(scenario)
    assert not isinstance(drawn, str)
    assert [text.get_text() for text in drawn.axes[0].get_yticklabels()] == ["west · 100", "north · 100", "south · 100"]


def test_seeds_make_a_band_from_the_least_to_the_most(make: Make) -> None:
    make("fedapa-seed0", "fedapa", [[2] * 4, [4] * 4], seed=0)
    scenario = of(make("fedapa-seed1", "fedapa", [[4] * 4, [8] * 4], seed=1).parent)
    band = seed_band(scenario.of("fedapa"), "after")
    assert band is not None
    assert [bound.tolist() for bound in band] == [[20, 40], [40, 80]]
    assert seed_band(scenario.of("fedapa")[:1]) is None
    drawn = figures.convergence(scenario)
    assert not isinstance(drawn, str)
    (shape,) = drawn.axes[0].collections
    assert shape.get_paths()[0].get_extents().bounds == (1, 20, 1, 60)


def test_rounds_are_whole_and_told_once(make: Make) -> None:
    for rounds in (1, 2, 4, 7):
        scenario = of(make(f"{rounds}/fedapa-seed0", "fedapa", [[5, 6]] * rounds, weights=True).parent)
        for draw in (figures.convergence, figures.phases, figures.course, figures.collaborators):
            if isinstance(drawn := draw(scenario), str):
                continue
            drawn.canvas.draw()
            for axes in drawn.axes:
                inside = [x for x in axes.get_xticks() if axes.get_xlim()[0] <= x <= axes.get_xlim()[1]]
                assert all(float(x).is_integer() for x in inside), (draw.__name__, rounds, inside)
                assert len(inside) == len(set(np.round(inside)))


def test_nobody_gains_over_itself(make: Make, tmp_path: Path) -> None:
    make("local-seed0", "local", [[5] * 3])
    folder = make("fedapa-seed0", "fedapa", [[6] * 3]).parent
    write(folder, tmp_path / "page.html")
    text = re.sub(r"<[^>]+>", " ", (tmp_path / "page.html").read_text(encoding="utf-8"))
    assert re.search(r"FedAPA\s+3\s+0\s+0\s+\+10\.00", text)
    assert re.search(r"Local\s+–\s+–\s+–\s+–\s+–\s+–\s+–\s", text)


def test_a_run_of_real_sites_is_called_what_it_is() -> None:
    """Its config has no rule and no number of clients of its own; what stands there are defaults."""
    data = {"source": "own", "partition": "dirichlet", "clients": 20}
    run = SimpleNamespace(config={"data": data, "layout": {"label": "outcome"}}, clients=["a", "b", "c", "d"])
    assert run_reader._title(run_reader._key(run)) == "own data: outcome · 4 clients"  # type: ignore[arg-type]


def test_names_that_begin_alike_are_told_apart() -> None:
    assert figures.distinct(["hospital-1", "hospital-2"]) == ["hospital-1", "hospital-2"]  # short enough
    assert figures.distinct(["big hospital 1", "big hospital 2", "x"]) == ["…ital 1", "…ital 2", "x"]
    assert figures.distinct(["north hospital", "south hospital"]) == ["north ", "south "]
