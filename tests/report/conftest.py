"""Run folders made by hand, in a folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_runs import Make, make_run


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def one(name: str, *words: object, **options: object) -> Path:
        return make_run(tmp_path / "runs" / name, *words, **options)  # type: ignore[arg-type]

    return one
