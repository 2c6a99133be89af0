"""Figures drawn for a page and for files; many of them by as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fedapa.core.threads import available_cores
from fedapa.report import drawing, figures

MANY = 30  # figures that are worth processes of their own


class Job(NamedTuple):
    name: str
    draw: Callable[[], figures.Drawn]


class Picture(NamedTuple):
    """A figure as the text of an SVG file, or the line that says why there is none."""

    svg: str
    missing: str
    files: list[Path]


def draw_all(jobs: Sequence[Job], folder: Path | None) -> Iterator[Picture]:
    """Every figure in its order, also as files if a folder for them is given."""
    cores = min(available_cores(), len(jobs))
    if cores == 1 or len(jobs) < MANY or sys.platform != "linux":
        yield from (draw(job, folder) for job in jobs)
        return
    # Forked, the processes have all that was read and loaded here; nothing but answers is sent.
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401

    context: Any = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(cores, context, _begin, (list(jobs), folder)) as pool:
        yield from pool.map(_draw, range(len(jobs)))


def draw(job: Job, folder: Path | None) -> Picture:
    import matplotlib

    with matplotlib.rc_context(drawing.RC):
        drawn = job.draw()
    if isinstance(drawn, str):
        return Picture("", drawn, [])
    svg = drawing.as_svg(drawn, job.name)
    return Picture(svg, "", drawing.write(drawn, svg, folder / job.name) if folder is not None else [])


# ------------------------------------------------------------------------------------------------ in a forked process

_work: tuple[Sequence[Job], Path | None]


def _begin(jobs: Sequence[Job], folder: Path | None) -> None:
    global _work
    _work = jobs, folder


def _draw(k: int) -> Picture:
    jobs, folder = _work
    return draw(jobs[k], folder)
