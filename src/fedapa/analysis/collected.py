"""Results of several sessions and machines in one file: new runs are merged into what was collected before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedapa.errors import InputError
from fedapa.store import provenance

Row = dict[str, Any]  # a run as ``result_sets.as_dicts`` has it


class Key(NamedTuple):
    """What makes two runs the same experiment; on other machines their last digits may differ."""

    scenario: str
    label: str
    seed: int
    config: str
    numbers: tuple[int, int]  # numerics version, and the revision of the method's own numbers
    partition: str


def key(row: Row) -> Key:
    found = provenance.from_dict(row.get("provenance", {}))
    return Key(row["scenario"], row["label"], row["seed"], found.config, found.numbers, row["partition"])


def read(path: Path, part: str = "runs") -> list[Row]:
    """The runs of a file of results, or those that ``failed``."""
    try:
        whole: dict[str, list[Row]] = json.loads(path.read_text(encoding="utf-8"))
        for row in whole["runs"]:
            key(row)
        return whole.get(part, [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "`fedapa sweep` writes results.json; experiments/collect.py writes experiments/results/NAME.json"
        raise InputError(f"{path} is not a file of results: {type(error).__name__}: {error}", hint) from None


def keys(paths: Iterable[Path]) -> set[Key]:
    """Of every finished run in some files."""
    rows = [row for path in paths for row in read(path)]
    return {key(row) for row in rows if row["status"] == "finished"}


def merged(earlier: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Both, a new run in place of the earlier one of its scenario, method and seed.

    A scenario and method is one row of a table, a mean over seeds. Its runs are therefore of one numerics version and
    revision, the newest there is, and of one config, that of its new runs.
    """
    cells: dict[tuple[str, str], list[Row]] = {}
    for row in (*new, *earlier):
        cells.setdefault((row["scenario"], row["label"]), []).append(row)
    kept = [row for cell in cells.values() for row in _one_kind(cell)]
    return sorted(kept, key=_place)


def _one_kind(cell: Sequence[Row]) -> list[Row]:
    """The runs of a cell, the new ones first, that one mean may be taken of; one per seed."""
    newest = max(key(row).numbers for row in cell)
    alike = [row for row in cell if key(row).numbers == newest]
    first = {row["seed"]: row for row in reversed(alike) if key(row).config == key(alike[0]).config}
    return list(first.values())


def merged_failures(earlier: Sequence[Row], new: Sequence[Row], finished: Sequence[Row]) -> list[Row]:
    """Runs that failed and were not finished since."""
    found = {_place(row): row for row in (*earlier, *new)}
    for row in finished:
        found.pop(_place(row), None)
    return [found[place] for place in sorted(found)]


def _place(row: Row) -> tuple[str, str, int]:
    return row["scenario"], row["label"], row["seed"]
