"""Status of a federation: its sites and its runs, from the registry, the SuperLink and the run folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapa.errors import InputError
from fedapa.federation import audit_log
from fedapa.federation.enrolment import read_agreement
from fedapa.federation.messages import plain
from fedapa.federation.registry import Coordinator
from fedapa.federation.remote_transport import _from_record
from fedapa.store import checkpoint, run_db, run_folder
from fedapa.store.checkpoint import Checkpoint

SHOWN = 10  # events


def overview(coordinator: Coordinator, runs: Path | None, online: Mapping[int, str] | None) -> dict[str, Any]:
    """``online`` is the state of every node that the transport knows; None if it does not answer."""
    folders = run_folder.runs_under(runs) if runs is not None else []
    about = [_run(path) for path in folders]
    events = [event for path in folders for event in _events(path)]
    marks = Counter((event["site"], event["kind"]) for event in events)
    moved = sum((_moved(path) for path in folders), Counter[str]())
    sites = [
        {
            "site": site.name,
            "state": "removed"
            if site.removed
            else "unknown"
            if online is None
            else online.get(site.node, "registered"),
            "added": site.added,
            "refusals": marks[site.name, "refused"],
            "absent": marks[site.name, "absent"],
            "MB": moved[site.name] / 1e6,
            "share": site.share,
        }
        for site in coordinator.sites()
    ]
    alarms = [row for row in audit_log.read(coordinator.folder) if row.get("event") == "alarm"][-SHOWN:]
    found = {"up": online is not None, "sites": sites, "runs": about, "events": events[-SHOWN:]}
    return {**found, "alarms": [{key: plain(row.get(key, "")) for key in ("at", "site", "text")} for row in alarms]}


def _moved(path: Path) -> Counter[str]:
    """Bytes down and up of every site in one run."""
    agreement = read_agreement(path)
    if agreement is None or not run_db.is_begun(path / "run.db"):
        return Counter()
    with run_db.reading(path / "run.db") as db:
        totals = run_db.client_totals(db)
    return Counter({name: down + up for name, (_, down, up, _) in zip(agreement.terms.names, totals, strict=False)})


def _run(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"run": path.name, "status": run_folder.status(path), "round": run_folder.rounds_done(path)}
    agreement = read_agreement(path)
    row |= {
        "sites": len(agreement.terms.names) if agreement else None,
        "score": None,
        "before": None,
        "after": None,
        "MB": None,
    }
    if not run_db.is_begun(path / "run.db"):
        return row
    with run_db.reading(path / "run.db") as db:
        row["score"] = run_db.primary(db).heading
        for phase in ("before", "after"):
            if curve := run_db.curve(db, phase):
                row[phase] = curve[-1][1].pooled
        row["MB"] = run_db.totals(db).moved / 1e6
        kinds = Counter(kind for _, _, kind, _ in run_db.events(db))
        row |= {kind: kinds[kind] for kind in ("absent", "refused")}
    return row


def _events(path: Path) -> list[dict[str, Any]]:
    if not run_db.is_begun(path / "run.db"):
        return []
    agreement = read_agreement(path)
    names = agreement.terms.names if agreement else []
    with run_db.reading(path / "run.db") as db:
        rows = run_db.events(db)
    return [
        {
            "run": path.name,
            "round": t + 1,
            "site": names[i] if i is not None and i < len(names) else "",
            "kind": kind,
            "text": text,
        }
        for t, i, kind, text in rows
    ]


def release(path: Path, name: str) -> None:
    """Forget the refusals of one site in a run's newest checkpoint."""
    agreement = read_agreement(path)
    found = checkpoint.newest(path / "checkpoints")
    if agreement is None or found is None or name not in agreement.terms.names:
        raise InputError(f"{path} has no site called {name!r}", "`fedapa coordinator status RUNS` lists them")
    keeper = run_folder.RunFolder(path, 1)  # no other process may use it now
    try:
        i = agreement.terms.names.index(name)
        if i >= len(found.records):
            raise InputError(f"{name} has not taken part in {path} yet", "there is nothing to release it from")
        standing = found.records[i].state["standing"].clone()
        standing[1] = 0
        records = list(found.records)
        records[i] = records[i]._replace(state={**records[i].state, "standing": standing})
        assert _from_record(records[i]).refusals == 0
        checkpoint.write(path / "checkpoints", Checkpoint(found.state, records))
    finally:
        keeper.close()
