"""The arithmetic behind the figures, by hand."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fedapa.analysis.client_similarity import clustered, groups, moved, partners, rank_correlation, similarity
from fedapa.report import drawing, drawn, figures
from fedapa.report.drawn import Job


def test_similarity_is_the_label_mass_in_common() -> None:
    counts = np.array([[10, 10, 0], [0, 30, 30], [5, 5, 0], [0, 0, 0]])
    wanted = [[1, 0.5, 1, 0], [0.5, 1, 0.5, 0], [1, 0.5, 1, 0], [0, 0, 0, 0]]
    assert similarity(counts).tolist() == wanted


def test_clients_of_the_same_labels_stand_side_by_side() -> None:
    counts = np.eye(3, dtype=int)[[0, 1, 2, 0, 1, 2, 0]] * 10
    order = clustered(similarity(counts)).tolist()
    groups = [[0, 1, 2, 0, 1, 2, 0][i] for i in order]
    assert sum(a != b for a, b in pairwise(groups)) == 2
    assert clustered(np.eye(2)).tolist() == [0, 1]


def test_rank_correlation() -> None:
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([1.0, 4, 9])) == pytest.approx(1)
    assert np.isnan(rank_correlation(np.ones(3), np.arange(3.0)))


def test_partners_by_hand() -> None:
    """All from one other; 3 : 1 from two, so 16 / (9 + 1); the same from both; nothing; a negative weight is none."""
    A = np.array([[0.7, 0.3, 0], [0.3, 0.6, 0.1], [0.1, 0.1, 0.8]])
    assert partners(A) == pytest.approx([1, 1.6, 2])
    assert partners(np.array([[1.0, 0, 0], [-0.2, 1, 0.2], [0.5, 0.5, 0]])) == pytest.approx([0, 1, 2])


def test_groups_hang_together_and_who_is_alone_is_in_none() -> None:
    A = np.full((5, 5), 0.05)
    for i, j in ((0, 3), (3, 4)):  # 0 and 4 are together through 3; 1.5 times an even share is 0.3
        A[i, j] = A[j, i] = 0.4
    A[1, 2] = 0.9  # one-sided
    assert groups(A) == [[0, 3, 4]]


def test_what_moved_by_hand() -> None:
    """A fifth of one row goes elsewhere, and nothing of the other: a tenth on average."""
    assert moved(np.array([[0.5, 0.5], [0, 1]]), np.array([[0.7, 0.3], [0, 1]])) == pytest.approx(0.1)


def test_moments_start_dense_and_include_both_ends() -> None:
    assert figures.moments(50) == [0, 2, 6, 18, 49]
    assert figures.moments(1) == [0]
    assert figures.moments(3) == [0, 1, 2]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(0.1, 5))
def test_labels_never_touch_and_keep_their_order(values: list[float], gap: float) -> None:
    places = drawing.spread(values, gap)
    order = np.argsort(values, kind="stable")
    assert (np.diff(np.array(places)[order]) >= gap - 1e-6).all()


def test_labels_with_room_stay_where_they_are() -> None:
    assert drawing.spread([5.0, 1.0, 9.0], 2) == [5, 1, 9]
    assert drawing.spread([5.0, 5.0], 2) == [4, 6]


def test_an_inline_figure_has_the_pages_colours_and_ids_of_its_own() -> None:
    import matplotlib

    with matplotlib.rc_context(drawing.RC):
        figure = drawing.new(2)
        figure.add_subplot().plot([1, 2], color=drawing.ONE, label="a < $b$ & </svg><script>")
        figure.axes[0].legend()
    one, two = (drawing.inline(drawing.as_svg(figure, name), name, 'say "a" <b>') for name in ("one", "two"))
    assert "var(--one)" in one
    assert drawing.ONE not in one
    assert 'aria-label="say &quot;a&quot; &lt;b&gt;"' in one
    assert "<script" not in one
    assert "$b$" in one
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', one)) <= ids[0]


def test_many_figures_are_drawn_by_several_processes_and_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plot(height: float) -> Figure:
        figure = drawing.new(height)
        figure.add_subplot().plot([1, 2], [1, height])
        return figure

    jobs = [Job("one", partial(plot, 1.0)), Job("none", lambda: "nothing to draw"), Job("two", partial(plot, 2.0))]
    here = list(drawn.draw_all(jobs, None))
    monkeypatch.setattr(drawn, "MANY", 1)
    monkeypatch.setattr(drawn, "available_cores", lambda: 2)
    apart = list(drawn.draw_all(jobs, tmp_path))
    assert [picture[:2] for picture in apart] == [picture[:2] for picture in here]
    assert here[1] == ("", "nothing to draw", [])
    assert [path.name for picture in apart for path in picture.files] == ["one.svg", "one.pdf", "two.svg", "two.pdf"]
    assert (tmp_path / "two.svg").read_text() == here[2].svg
