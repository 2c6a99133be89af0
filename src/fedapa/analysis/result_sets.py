"""The results of many runs: read from their folders or from a file, and written to one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedapa.analysis.run_results import Phase, RunResult, read
from fedapa.core.scores import ACCURACY, Score
from fedapa.core.summaries import Summary
from fedapa.errors import InputError
from fedapa.methods import privacy
from fedapa.store import provenance
from fedapa.store.atomic_io import PUBLIC, write_atomically
from fedapa.store.run_list import runs_under

SILO = "silo.json"  # the scores of sites, beside their runs
BESIDE_ALONE = " beside the better of tuned Local and a plain model"  # in notes about who gains
# Lists that older files of results do not have.
LATER = ("attackers", "attacker_weight", "groups_found", "evaluated_rounds")
LOSSES = ("train_loss", "test_loss")  # nor these


class Found(NamedTuple):
    runs: list[RunResult]
    unreadable: dict[Path, str]  # and why


def load(folder: Path) -> list[RunResult]:
    """All runs at or below a folder that have at least one evaluated round."""
    return survey(folder).runs


def survey(folder: Path) -> Found:
    """The same, with the runs that cannot be read; an error where nothing can be. Takes a file of results, too."""
    if folder.is_file():
        return Found(_from_file(folder), {})
    found = Found([], {})
    for path in runs_under(folder):
        try:
            if (run := read(path, _scenario(path, folder))) is not None:
                found.runs.append(run)
        except InputError as error:
            found.unreadable[path] = error.message
    if not found.runs:
        why = next(iter(found.unreadable.values()), f"no run with results under {folder}")
        raise InputError(why, "`fedapa run` makes one; `fedapa resume` continues it")
    return found


def _from_file(path: Path) -> list[RunResult]:
    try:
        return from_dicts(json.loads(path.read_text(encoding="utf-8"))["runs"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        hint = "`fedapa sweep` writes results.json; `fedapa compare --format json` prints one"
        raise InputError(f"{path} is not a file of results: {type(error).__name__}: {error}", hint) from None


def _scenario(run: Path, folder: Path) -> str:
    return run.parent.name if run.parent.parent == folder else ""


def protection(runs: Sequence[RunResult]) -> list[str]:
    """What noised uploads protect and what not, method by method."""
    return privacy.told({run.label: account for run in runs if (account := run.privacy) is not None})


def site_notes(runs: Sequence[RunResult]) -> list[str]:
    """What `silo run` found beside these runs: gains over the best that sites can do alone, then doubts."""
    folders = dict.fromkeys(run.source.parent for run in runs if run.source is not None)
    found: list[str] = []
    for folder in folders:
        try:
            notes = json.loads((folder / SILO).read_text(encoding="utf-8"))["notes"]
            found += [str(note) for note in notes if str(note) not in found]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # there is none, or it is being written
    return sorted(found, key=lambda note: BESIDE_ALONE not in note)


def mixed(runs: Sequence[RunResult]) -> str:
    """A note where runs of different numerics versions, or revisions of one method, come together; else empty."""
    versions = provenance.by_numerics((run.label, run.provenance.numerics) for run in runs)
    revisions = provenance.by_revision((run.label, run.provenance.numbers) for run in runs)
    return "; ".join(note for note in (versions, revisions) if note)


def as_dicts(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Everything about every run, for ``--format json``."""
    rows = []
    for run in runs:
        row = asdict(replace(run, source=None))
        del row["source"]
        row |= {"folder": run.folder.name, "counts": run.counts.tolist(), "environment": _environment(run.folder)}
        row |= {"score": run.score.as_dict()}
        rows.append(row)
    return rows


def write_file(path: Path, rows: Sequence[dict[str, Any]], failed: Sequence[dict[str, Any]] = ()) -> Path:
    """A file of results: what ``as_dicts`` says, a line per run, and what is to be said about runs that failed."""
    parts = {"runs": rows, "failed": failed} if failed else {"runs": rows}
    lists = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row, default=str) for row in part) + "\n]"
        for name, part in parts.items()
    ]
    write_atomically(path, ("{" + ",\n".join(lists) + "}\n").encode(), PUBLIC)
    return path


def from_dicts(rows: Sequence[dict[str, Any]]) -> list[RunResult]:
    """The other way round."""
    return [_from_dict(row) for row in rows]


def _from_dict(row: dict[str, Any]) -> RunResult:
    phases = {name: _phase_of(row[name]) for name in ("before", "after")}
    aside = (*LATER, *LOSSES, "provenance", "account", "overlap", "score", "source")
    known = {field.name: row[field.name] for field in fields(RunResult) if field.name not in aside}
    later: dict[str, Any] = {name: tuple(row.get(name, ())) for name in LATER}
    later |= {name: row.get(name) for name in LOSSES}
    later |= {"provenance": provenance.from_dict(row.get("provenance", {})), "account": row.get("account", "")}
    counts = np.array(row["counts"], dtype=np.float64)
    score = Score(**row["score"]) if "score" in row else ACCURACY
    rest = {"folder": Path(row["folder"]), "counts": counts, "overlap": row.get("overlap", 0.0), "score": score}
    return RunResult(**{**known, **later, **phases, **rest})


def _phase_of(row: dict[str, Any]) -> Phase:
    return Phase(**{**row, "summary": Summary(**row["summary"]), "curve": tuple(row["curve"])})


def _environment(folder: Path) -> dict[str, Any]:
    """Date, Python and packages behind a run's numbers."""
    path = folder / "env.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {key: found[key] for key in ("date", "python", "packages") if key in found}
