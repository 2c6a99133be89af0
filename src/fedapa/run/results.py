"""What finished and running runs say, read from their run.db alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.errors import InputError
from fedapa.methods import privacy
from fedapa.methods.catalogue import METHODS
from fedapa.run import ledger, provenance, statistics
from fedapa.run.evaluate import Counts, Summary
from fedapa.run.folder import runs_under
from fedapa.run.provenance import Provenance

Percent = npt.NDArray[np.float64]
LOCAL = "local"  # the rival of all: training alone
LATER = ("attackers", "attacker_weight", "provenance", "account")  # older files of results do not have them
TAIL = 5  # rounds in the mean of the last rounds


@dataclass(frozen=True)
class Phase:
    """Pooled accuracy before or after local training: the last round, the best one, the mean of the last five."""

    last: float
    best: float
    best_round: int
    tail: float
    selected: float | None  # at the round with the best validation accuracy, where there is validation data
    summary: Summary  # of the last round
    curve: tuple[float, ...]  # pooled accuracy of every evaluated round
    held: float | None = None  # accuracy on validation data, mean of the last five rounds: to choose by


@dataclass(frozen=True)
class RunResult:
    folder: Path
    scenario: str  # of a sweep; empty where there is only one
    label: str
    seed: int
    status: str
    rounds: int
    rounds_done: int
    evaluated: str
    before: Phase
    after: Phase
    kib: float  # down and up, per trained client and round
    seconds: float
    counts: Counts  # [M, 2] correct and total of the last round, of the model that the method is evaluated by
    partition: str
    attackers: tuple[int, ...] = ()  # the clients that lie
    attacker_weight: tuple[float, ...] = ()  # that honest rows of A give to them, in every round that recorded A
    provenance: Provenance = Provenance()
    account: str = ""  # JSON of the privacy account, where uploads are noised

    @property
    def privacy(self) -> privacy.Account | None:
        return privacy.from_json(self.account) if self.account else None

    @property
    def honest(self) -> npt.NDArray[np.bool_]:
        """[M] the clients that count: those that do not lie, and have test samples."""
        return ~np.isin(np.arange(len(self.counts)), self.attackers) & (self.counts[:, 1] > 0)

    @property
    def headline(self) -> Phase:
        return self.before if self.evaluated == "before" else self.after


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
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = "`fedapa sweep` writes results.json; `fedapa compare --format json` prints one"
        raise InputError(f"{path} is not a file of results: {type(error).__name__}: {error}", hint) from None


def _scenario(run: Path, folder: Path) -> str:
    return run.parent.name if run.parent.parent == folder else ""


def read(folder: Path, scenario: str = "") -> RunResult | None:
    if not ledger.is_begun(folder / "run.db"):
        return None
    with ledger.reading(folder / "run.db") as db:
        about = ledger.meta(db)
        phases = [_phase(db, name) for name in ("before", "after")]
        if "label" not in about or None in phases:
            return None
        before, after = phases
        assert before is not None
        assert after is not None
        done, seconds = db.execute("SELECT count(*), sum(seconds) FROM round").fetchone()
        liars = tuple(json.loads(about["attack"])["clients"]) if "attack" in about else ()
        counts = ledger.last_counts(db, about["evaluated"])
        return RunResult(
            folder, scenario, about["label"], int(about["seed"]), about["status"], int(about["rounds"]), done,
            about["evaluated"], before, after, ledger.bytes_per_visit(db) / 1024, seconds,
            counts, about["partition"], liars, _weight_on(liars, db, len(counts)), provenance.read(about),
            about.get("privacy", ""),
        )  # fmt: skip


def _weight_on(liars: tuple[int, ...], db: Any, clients: int) -> tuple[float, ...]:
    """The weight that a client's mixture gives to liars, mean over all who are not."""
    if not liars:
        return ()
    honest = [i for i in range(clients) if i not in liars]
    found = [A[np.ix_(honest, liars)].sum(1).mean() for _, A in ledger.matrices(db, clients)]
    return tuple(round(float(weight), 4) for weight in found)


def _phase(db: Any, name: str) -> Phase | None:
    rows = ledger.curve(db, name)
    if not rows:
        return None
    pooled = [summary.pooled for _, summary in rows]
    best = int(np.argmax(pooled))
    held = [summary.pooled for _, summary in ledger.curve(db, name, "validation")]
    selected = pooled[int(np.argmax(held))] if held else None
    tail, curve = float(np.mean(pooled[-TAIL:])), tuple(round(value, 2) for value in pooled)
    chosen_by = float(np.mean(held[-TAIL:])) if held else None
    return Phase(pooled[-1], pooled[best], rows[best][0] + 1, tail, selected, rows[-1][1], curve, chosen_by)


def side_by_side(run: RunResult, runs: Sequence[RunResult], rival: str) -> tuple[Percent, Percent] | None:
    """Every client's accuracy with this method and the rival, on the same allocation; None without such a run."""
    same = [o for o in runs if (o.label, o.seed, o.partition) == (rival, run.seed, run.partition)]
    same = [other for other in same if other.provenance.numerics == run.provenance.numerics]
    at_home = [other for other in same if other.scenario == run.scenario]
    return (_percent(run), _percent((at_home or same)[0])) if same else None


def client_gains(runs: Sequence[RunResult], rival: str = LOCAL) -> list[dict[str, Any]]:
    """Who gains and who loses against the rival, and by how many points, client by client."""
    rows = []
    for run in runs:
        if run.label == rival or (pair := side_by_side(run, runs, rival)) is None:
            continue
        for client, (ours, theirs) in enumerate(zip(*pair, strict=True)):
            place = {"scenario": run.scenario, "method": run.label, "seed": run.seed, "client": client}
            tested = int(run.counts[client, 1])
            found = {"accuracy": float(ours), rival: float(theirs), "gain": float(ours - theirs)}
            lies = {"lies": client in run.attackers} if any(one.attackers for one in runs) else {}
            rows.append({**place, **lies, "test_samples": tested, **found})
    return rows


def _percent(run: RunResult) -> Percent:
    found: Percent = 100.0 * run.counts[:, 0] / np.maximum(run.counts[:, 1], 1)
    return found


def table(runs: Sequence[RunResult], rival: str = LOCAL) -> list[dict[str, Any]]:
    """One row per scenario and method: means over seeds, spread where there are several; gains against the rival."""
    groups: dict[tuple[str, str], list[RunResult]] = {}
    for run in sorted(runs, key=lambda run: (run.scenario, _place(run.label))):
        groups.setdefault((run.scenario, run.label), []).append(run)
    return [_row(label, mine, runs, rival) for (_, label), mine in groups.items()]


def _place(label: str) -> int:
    """Methods in the order in which `fedapa ls` has them, variants after them."""
    known = list(METHODS)
    return known.index(label) if label in known else len(known)


def ranks(rows: Sequence[dict[str, Any]]) -> statistics.Ranks | None:
    """Mean ranks over scenarios, by the last round of the model that each method is evaluated by.

    Of the methods that are in every scenario; None where there are fewer than two scenarios or methods.
    """
    scores: dict[str, dict[str, float]] = {}
    for row in rows:
        scores.setdefault(row["method"], {})[row["scenario"]] = row[f"{row['evaluated']}_last"]
    scenarios = sorted({row["scenario"] for row in rows})
    whole = {name: [found[s] for s in scenarios] for name, found in scores.items() if len(found) == len(scenarios)}
    return statistics.ranks(whole) if len(scenarios) > 1 and len(whole) > 1 else None


def _row(label: str, mine: Sequence[RunResult], runs: Sequence[RunResult], rival: str) -> dict[str, Any]:
    pairs = [(run.honest, side_by_side(run, runs, rival)) for run in mine]
    compared = [(pair[0][honest], pair[1][honest]) for honest, pair in pairs if pair is not None]
    row: dict[str, Any] = {
        "scenario": mine[0].scenario,
        "method": label,
        "seeds": len(mine),
        "rounds": f"{min(r.rounds_done for r in mine)}/{mine[0].rounds}",
        "evaluated": mine[0].evaluated,
        "numerics": " and ".join(map(str, sorted({run.provenance.numerics for run in mine}))),
    }
    for name in ("before", "after"):
        phases = [getattr(run, name) for run in mine]
        row |= {f"{name}_{key}": _mean([getattr(p, key) for p in phases]) for key in ("last", "tail", "best")}
        spread = statistics.interval([p.last for p in phases])
        row |= {f"{name}_sd": spread.sd, f"{name}_low": spread.low, f"{name}_high": spread.high}
        for key in ("selected", "held"):
            values = [getattr(p, key) for p in phases if getattr(p, key) is not None]
            row[f"{name}_{key}"] = _mean(values) if len(values) == len(phases) else None
    row["worst_client"] = _mean([run.headline.summary.worst for run in mine])
    row["worst_tenth"] = _mean([run.headline.summary.worst10 for run in mine])
    row |= _gains(compared)
    row |= _attacked(mine, runs)
    row["kib"] = _mean([run.kib for run in mine])
    row["seconds"] = _mean([run.seconds for run in mine])
    account = mine[0].privacy
    row["epsilon"] = None if account is None else account.short()
    return row


def protection(runs: Sequence[RunResult]) -> list[str]:
    """What noised uploads protect and what not, method by method."""
    return privacy.told({run.label: account for run in runs if (account := run.privacy) is not None})


def _gains(pairs: Sequence[tuple[Percent, Percent]]) -> dict[str, Any]:
    """Clients better, equal and worse, the mean gain in points, and a paired test over all of them."""
    if not pairs:
        return {"gain": None, "gain_points": None, "gain_p": None}
    ours, theirs = (np.concatenate(side) for side in zip(*pairs, strict=True))
    found = statistics.paired(ours, theirs)
    return {"gain": [found.better, found.equal, found.worse], "gain_points": found.gain, "gain_p": found.p}


def _attacked(mine: Sequence[RunResult], runs: Sequence[RunResult]) -> dict[str, Any]:
    """What is left for honest clients where others lie, and the points that it is above or below the run without."""
    if not all(run.attackers for run in mine):
        return {"attackers": 0, "honest": None, "attack_points": None, "attacker_weight": None}
    costs = [cost for run in mine if (cost := _cost_of_attack(run, runs)) is not None]
    weights = [run.attacker_weight[-1] for run in mine if run.attacker_weight]
    return {
        "attackers": len(mine[0].attackers),
        "honest": _mean([float(_percent(run)[run.honest].mean()) for run in mine]),
        "attack_points": _mean(costs) if costs else None,
        "attacker_weight": _mean(weights) if weights else None,
    }


def _cost_of_attack(run: RunResult, runs: Sequence[RunResult]) -> float | None:
    """Mean accuracy of the honest clients, minus that of the same clients where nobody lies."""
    for other in runs:
        if _setting(other) == _setting(run) and not other.attackers:
            return float((_percent(run) - _percent(other))[run.honest].mean())
    return None


def _setting(run: RunResult) -> tuple[Any, ...]:
    return run.label, run.seed, run.partition, run.rounds, run.provenance.numerics


def mixed(runs: Sequence[RunResult]) -> str:
    """A note where runs of different numerics versions come together; else empty."""
    return provenance.by_numerics((run.label, run.provenance.numerics) for run in runs)


def as_dicts(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Everything about every run, for ``--format json``."""
    rows = []
    for run in runs:
        row = asdict(run)
        row |= {"folder": run.folder.name, "counts": run.counts.tolist(), "environment": _environment(run.folder)}
        rows.append(row)
    return rows


def write_file(path: Path, rows: Sequence[dict[str, Any]], failed: Sequence[dict[str, Any]] = ()) -> Path:
    """A file of results: what ``as_dicts`` says, a line per run, and what is to be said about runs that failed."""
    parts = {"runs": rows, "failed": failed} if failed else {"runs": rows}
    lists = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row, default=str) for row in part) + "\n]"
        for name, part in parts.items()
    ]
    path.write_text("{" + ",\n".join(lists) + "}\n", encoding="utf-8")
    return path


def from_dicts(rows: Sequence[dict[str, Any]]) -> list[RunResult]:
    """The other way round."""
    return [_from_dict(row) for row in rows]


def _from_dict(row: dict[str, Any]) -> RunResult:
    phases = {name: _phase_of(row[name]) for name in ("before", "after")}
    known = {field.name: row[field.name] for field in fields(RunResult) if field.name not in LATER}
    later: dict[str, Any] = {name: tuple(row.get(name, ())) for name in ("attackers", "attacker_weight")}
    later["provenance"] = provenance.from_dict(row.get("provenance", {}))
    later["account"] = row.get("account", "")
    counts = np.array(row["counts"], dtype=np.int64)
    return RunResult(**{**known, **later, **phases, "folder": Path(row["folder"]), "counts": counts})


def _phase_of(row: dict[str, Any]) -> Phase:
    return Phase(**{**row, "summary": Summary(**row["summary"]), "curve": tuple(row["curve"])})


def _environment(folder: Path) -> dict[str, Any]:
    """Date, Python and packages behind a run's numbers."""
    path = folder / "env.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {key: found[key] for key in ("date", "python", "packages") if key in found}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
