"""What finished and running runs say, read from their run.db alone."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.analysis import statistics
from fedapa.core.scores import ACCURACY, Score
from fedapa.errors import InputError
from fedapa.methods import privacy
from fedapa.methods.catalogue import METHODS
from fedapa.rounds.evaluation import Summary, Sums
from fedapa.store import provenance, run_db
from fedapa.store.atomic_io import PUBLIC, write_atomically
from fedapa.store.provenance import Provenance
from fedapa.store.run_folder import CONFIG, runs_under

Floats = npt.NDArray[np.float64]
LOCAL = "local"  # the rival of all: training alone
LATER = ("attackers", "attacker_weight", "evaluated_rounds")  # lists that older files of results do not have
LEVEL = 0.05  # of every test
TAIL = 5  # rounds in the mean of the last rounds


@dataclass(frozen=True)
class Phase:
    """The pooled primary score before or after local training: last round, best round, mean of the last five."""

    last: float
    best: float
    best_round: int
    tail: float
    selected: float | None  # at the round with the best score on validation data, where there is validation data
    summary: Summary  # of the last round
    curve: tuple[float, ...]  # pooled, of every evaluated round
    held: float | None = None  # score on validation data, mean of the last five rounds: to choose by


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
    counts: Sums  # [M, 2] sum and count of the primary score in the last round, of the evaluated model
    partition: str
    attackers: tuple[int, ...] = ()  # the malicious clients
    attacker_weight: tuple[float, ...] = ()  # that honest rows of A give to them, in every round that recorded A
    provenance: Provenance = Provenance()
    account: str = ""  # JSON of the privacy account, where uploads are noised

    evaluated_rounds: tuple[int, ...] = ()  # rounds done when the evaluated model was scored
    overlap: float = 0.0  # test rows per train row where seeds split the rows of the same sites anew, else 0
    score: Score = ACCURACY  # the primary one
    source: Path | None = None  # the folder that run.db is in, to look at earlier rounds; None: read from a file

    @property
    def privacy(self) -> privacy.Account | None:
        return privacy.from_json(self.account) if self.account else None

    @property
    def round(self) -> int:
        """The round, counted from 1, that the numbers are of."""
        return self.evaluated_rounds[-1] if self.evaluated_rounds else self.rounds_done

    @property
    def honest(self) -> npt.NDArray[np.bool_]:
        """[M] the clients that count: those that are not malicious and have test samples."""
        found: npt.NDArray[np.bool_] = ~np.isin(np.arange(len(self.counts)), self.attackers) & (self.counts[:, 1] > 0)
        return found

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
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        hint = "`fedapa sweep` writes results.json; `fedapa compare --format json` prints one"
        raise InputError(f"{path} is not a file of results: {type(error).__name__}: {error}", hint) from None


def _scenario(run: Path, folder: Path) -> str:
    return run.parent.name if run.parent.parent == folder else ""


def read(folder: Path, scenario: str = "", until: int | None = None) -> RunResult | None:
    """A run as it stands, or as it stood when so many rounds were done."""
    if not run_db.is_begun(folder / "run.db"):
        return None
    with run_db.reading(folder / "run.db") as db:
        about = run_db.meta(db)
        phases = [_phase(db, name, until) for name in ("before", "after")]
        if "label" not in about or None in phases:
            return None
        before, after = phases
        assert before is not None
        assert after is not None
        seen = [t for t, _ in _up_to(until, run_db.curve(db, about["evaluated"]))]
        totals = run_db.totals(db)
        malicious = tuple(json.loads(about["attack"])["clients"]) if "attack" in about else ()
        counts = run_db.client_sums(db, seen[-1], about["evaluated"])
        return RunResult(
            folder, scenario, about["label"], int(about["seed"]), about["status"], int(about["rounds"]), totals.rounds,
            about["evaluated"], before, after, run_db.bytes_per_visit(db) / 1024, totals.seconds,
            counts, about["partition"], malicious, _weight_on(malicious, db, len(counts)), provenance.read(about),
            about.get("privacy", ""), tuple(seen), _overlap(folder, db), run_db.primary(db), folder,
        )  # fmt: skip


def _weight_on(malicious: tuple[int, ...], db: Any, clients: int) -> tuple[float, ...]:
    """The weight that a client's mixture gives to malicious clients: the mean over the honest clients."""
    if not malicious:
        return ()
    honest = [i for i in range(clients) if i not in malicious]
    found = [A[np.ix_(honest, malicious)].sum(1).mean() for _, A in run_db.matrices(db, clients)]
    return tuple(round(float(weight), 4) for weight in found)


def _overlap(folder: Path, db: Any) -> float:
    """Test rows per train row of a run on [sites], whose seeds split the same rows in other ways; 0 for allocations."""
    try:
        has_sites = "sites" in tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0
    rows = run_db.client_data(db)
    test, rest = sum(row[2] for row in rows), sum(row[1] + row[3] for row in rows)
    return test / rest if has_sites and rest else 0.0


def _phase(db: Any, name: str, until: int | None = None) -> Phase | None:
    rows = _up_to(until, run_db.curve(db, name))
    if not rows:
        return None
    pooled, score = [summary.pooled for _, summary in rows], run_db.primary(db)
    best = score.best(pooled)
    held = [summary.pooled for _, summary in _up_to(until, run_db.curve(db, name, "validation"))]
    selected = pooled[score.best(held)] if held else None
    tail, curve = float(np.mean(pooled[-TAIL:])), tuple(round(value, score.digits) for value in pooled)
    chosen_by = float(np.mean(held[-TAIL:])) if held else None
    return Phase(pooled[-1], pooled[best], rows[best][0], tail, selected, rows[-1][1], curve, chosen_by)


def _up_to(until: int | None, rows: list[tuple[int, Summary]]) -> list[tuple[int, Summary]]:
    return rows if until is None else [row for row in rows if row[0] <= until]


# --------------------------------------------------------------------------------------------- at the same round


def at(run: RunResult, round: int) -> RunResult | None:
    """The run as it stood after a round; None if that round was not evaluated, or run.db is not at hand."""
    if round == run.round:
        return run
    if run.source is None or round not in run.evaluated_rounds:
        return None
    found = read(run.source, run.scenario, round)
    return None if found is None else replace(found, folder=run.folder, label=run.label)


def level(runs: Sequence[RunResult]) -> list[RunResult]:
    """All runs at the last round that every one of them evaluated; empty where there is no such round."""
    rounds = [set(run.evaluated_rounds or (run.round,)) for run in runs]
    shared = set.intersection(*rounds) if rounds else set()
    found = [at(run, max(shared)) for run in runs] if shared else []
    return [run for run in found if run is not None] if None not in found else []


def _whole(runs: Sequence[RunResult]) -> list[RunResult]:
    """The finished runs; while none is finished, all of them."""
    return [run for run in runs if run.status == "finished"] or list(runs)


def _opponent(run: RunResult, runs: Sequence[RunResult], rival: str) -> RunResult | None:
    """The rival's run on the same allocation: of the same scenario and seed where there is one, finished if it can be.

    The fingerprint says which allocation it is: runs may share one and differ in the seed of their training.
    """
    found = [o for o in runs if (o.label, o.partition) == (rival, run.partition) and len(o.counts) == len(run.counts)]
    found = [o for o in found if o.provenance.numerics == run.provenance.numerics and o.score.name == run.score.name]
    found.sort(key=lambda o: (o.scenario != run.scenario, o.seed != run.seed, o.status != "finished"))
    return found[0] if found else None


Pair = tuple[RunResult, RunResult]


def pairs(mine: Sequence[RunResult], runs: Sequence[RunResult], rival: str) -> list[Pair]:
    """Runs beside the rival's on the same allocation, all at one round; pairs of finished runs where there are any."""
    beside = [(run, other) for run in mine if (other := _opponent(run, runs, rival)) is not None]
    whole = [pair for pair in beside if len(_whole_of(pair)) == 2] or beside
    flat = level([run for pair in whole for run in pair])
    return list(zip(flat[::2], flat[1::2], strict=True))


def _whole_of(pair: Pair) -> list[RunResult]:
    return [run for run in pair if run.status == "finished"]


def gaps(run: RunResult, other: RunResult) -> Floats:
    """How much better every client is off than in the other run: above 0, whatever the direction of the score."""
    found: Floats = np.round(run.score.sign * (values(run) - values(other)), 9)
    return found


def client_gains(runs: Sequence[RunResult], rival: str = LOCAL) -> list[dict[str, Any]]:
    """Who gains and who loses against the rival, and by how many points, client by client, at the same round."""
    rows = []
    for run in runs:
        if run.label == rival or not (found := pairs([run], runs, rival)):
            continue
        mine, other = found[0]
        for client, (ours, theirs, gain) in enumerate(zip(values(mine), values(other), gaps(*found[0]), strict=True)):
            place = {"scenario": run.scenario, "method": run.label, "seed": run.seed, "client": client}
            place["round"] = mine.round
            tested = int(run.counts[client, 1])
            scores = {run.score.name: float(ours), rival: float(theirs), "gain": float(gain)}
            malicious = {"malicious": client in run.attackers} if any(one.attackers for one in runs) else {}
            rows.append({**place, **malicious, "test_samples": tested, **scores})
    return rows


def values(run: RunResult) -> Floats:
    """Every client's primary score; NaN where it has no test samples."""
    return run.score.values(run.counts[:, 0], run.counts[:, 1])


# ------------------------------------------------------------------------------------------------------ the table


def table(runs: Sequence[RunResult], rival: str = LOCAL) -> list[dict[str, Any]]:
    """One row per scenario and method: means over allocations, and gains against the rival.

    The numbers of a row are of one round: of the finished runs, or while there are none of the last round that all
    have evaluated. p-values are adjusted over the rows of a scenario.
    """
    groups: dict[tuple[str, str], list[RunResult]] = {}
    for run in sorted(runs, key=lambda run: (run.scenario, _place(run.label), run.seed)):
        groups.setdefault((run.scenario, run.label), []).append(run)
    rows = [_row(label, mine, runs, rival) for (_, label), mine in groups.items()]
    for scenario in dict.fromkeys(row["scenario"] for row in rows):
        _adjust([row for row in rows if row["scenario"] == scenario])
    return rows


def _adjust(rows: Sequence[dict[str, Any]]) -> None:
    """Holm over the tests against the rival; then who is best, and who is not distinguishable from it."""
    adjusted = statistics.holm([row["gain_p_unadjusted"] for row in rows])
    for row, p, standing in zip(rows, adjusted, _standings(rows), strict=True):
        row |= {"gain_p_adjusted": p, **standing}


def _standings(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every row's gap to the best method by the accuracies that the table shows, paired by allocation.

    The p of a gap is multiplied by the number of rivals (Bonferroni), which allows for the best having been chosen by
    the same numbers: the methods that are not rejected hold the truly best one in 95 of 100 tables.
    """
    best = _best(rows)
    rivals = sum(row["round"] == best["round"] for row in rows) - 1 if best else 0
    return [_standing(row, best, rivals) for row in rows]


def _best(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The highest mean over the allocations that all share; methods on fewer than three stand back if others can."""
    furthest = max((row["round"] for row in rows), default=0)
    level = [row for row in rows if row["round"] == furthest and row["score"] == rows[0]["score"]]
    level = [row for row in level if np.isfinite(list(row["scores"].values())).all()]
    enough = [row for row in level if row["allocations"] >= statistics.FEWEST]
    level = enough if len(enough) > 1 else level
    shared = set.intersection(*(set(row["scores"]) for row in level)) if level else set()
    return max(level, key=lambda row: score_of(row).sign * sum(row["scores"][a] for a in shared)) if shared else None


def _standing(row: dict[str, Any], best: dict[str, Any] | None, rivals: int) -> dict[str, Any]:
    if row is best:
        return {"standing": "best", "behind": 0.0, "behind_p": None}
    if best is None or row["round"] != best["round"] or row["score"] != best["score"]:
        why = "not compared: no allocation in common" if best is None else f"not compared: at round {row['round']}"
        return {"standing": why, "behind": None, "behind_p": None}
    mine, top = row["scores"], best["scores"]
    gaps = [score_of(row).sign * (top[a] - mine[a]) for a in mine if a in top]
    if not gaps:
        return {"standing": "not compared: no allocation in common", "behind": None, "behind_p": None}
    p = statistics.paired_p(gaps, row["overlap"])
    adjusted = None if p is None else min(1.0, rivals * p)
    return {"standing": _verdict(gaps, adjusted), "behind": _mean(gaps), "behind_p": adjusted}


def _verdict(gaps: Sequence[float], p: float | None) -> str:
    if not np.any(np.round(gaps, 9)):
        return "equal"
    if p is None:
        return f"not tested: {too_few(len(gaps))}"
    return "behind" if p < LEVEL and np.mean(gaps) > 0 else "not distinguishable"


def too_few(allocations: int) -> str:
    """Why there is no interval and no p."""
    if allocations >= statistics.FEWEST:
        return "all allocations alike, no spread to judge by"
    return f"{allocations} allocation{'s' if allocations > 1 else ''}, {statistics.FEWEST} are needed"


def who_wins(rows: Sequence[dict[str, Any]], name: Callable[[str], str] = str) -> str:
    """One scenario in a few sentences: the best, who is not distinguishable from it, who was not compared."""
    best = next((row for row in rows if row["standing"] == "best"), None)
    if best is None or len(rows) < 2:
        return ""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row["standing"], []).append(name(row["method"]))
    score = score_of(best)
    first = "Highest" if score.better == "higher" else f"Lowest {score.name}"
    told = [f"{first}: {name(best['method'])} with {score.text(best[best['evaluated'] + '_last'])}"]
    told += [_told(standing, names, len(rows) - 1) for standing, names in groups.items() if standing != "best"]
    return ". ".join(told) + "."


def _told(standing: str, names: Sequence[str], others: int) -> str:
    said = {"not distinguishable": "not distinguishable from it", "behind": "behind it"}.get(standing, standing)
    if len(names) == others and said.startswith("not tested"):
        return said.capitalize()
    return f"{said.capitalize()}: {', '.join(names) if len(names) < others else 'all others'}"


def left_out(runs: Sequence[RunResult], rows: Sequence[dict[str, Any]]) -> list[str]:
    """The unfinished runs that do not count beside finished ones of the same row."""
    rows = [row for row in rows if row["unfinished"]]
    places = {(row["scenario"], row["method"]): row["round"] for row in rows}
    return [
        f"{run.label} seed {run.seed} ({run.rounds_done}/{run.rounds})"
        for run in runs
        if run.status != "finished" and (run.scenario, run.label) in places
    ]


def _place(label: str) -> int:
    """Methods in the order in which `fedapa ls` has them, variants after them."""
    known = list(METHODS)
    return known.index(label) if label in known else len(known)


def ranks(rows: Sequence[dict[str, Any]]) -> statistics.Ranks | None:
    """Mean ranks over scenarios, by the last round of the model that each method is evaluated by.

    Of the methods that are in every scenario at its last round; every ranked number is a mean over equally many
    allocations, the same ones for all methods of a scenario. None where there are fewer than two scenarios or methods.
    """
    scenarios = sorted({row["scenario"] for row in rows})
    furthest = {s: max(row["round"] for row in rows if row["scenario"] == s) for s in scenarios}
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["round"] == furthest[row["scenario"]]:
            sign = score_of(row).sign  # ranked from high to low
            signed = {allocation: sign * value for allocation, value in row["scores"].items()}
            scores.setdefault(row["method"], {})[row["scenario"]] = signed
    whole = {name: found for name, found in scores.items() if len(found) == len(scenarios)}
    if len(scenarios) < 2 or len(whole) < 2:
        return None
    shared = {s: _in_all(found[s] for found in whole.values()) for s in scenarios}
    count = min(len(names) for names in shared.values())
    if not count:
        return None
    means = {m: [_mean([found[s][a] for a in shared[s][:count]]) for s in scenarios] for m, found in whole.items()}
    return statistics.ranks(means)._replace(allocations=count)


def _in_all(found: Iterable[dict[str, float]]) -> list[str]:
    """The allocations that are in all of them, in the order of the first."""
    first, *others = found
    return [name for name in first if all(name in other for other in others)]


def _row(label: str, every: Sequence[RunResult], runs: Sequence[RunResult], rival: str) -> dict[str, Any]:
    whole = _whole(every)
    mine = level(whole) or [run for run in whole if run.round == max(one.round for one in whole)]
    headline = _by_allocation(mine, [run.headline.last for run in mine])
    row: dict[str, Any] = {
        "scenario": mine[0].scenario,
        "method": label,
        "seeds": len(mine),
        "allocations": len(headline),
        "rounds": f"{min(r.rounds_done for r in mine)}/{mine[0].rounds}",
        "round": mine[0].round,
        "unfinished": len(every) - len(mine),  # runs beside finished ones, which do not count until they are done
        "evaluated": mine[0].evaluated,
        "score": mine[0].score.as_dict(),
        "numerics": " and ".join(map(str, sorted({run.provenance.numerics for run in mine}))),
    }
    for name in ("before", "after"):
        phases = [getattr(run, name) for run in mine]
        row |= {f"{name}_{key}": _over(mine, [getattr(p, key) for p in phases]) for key in ("last", "tail", "best")}
        spread = _interval(mine, [p.last for p in phases])
        row |= {f"{name}_sd": spread.sd, f"{name}_low": spread.low, f"{name}_high": spread.high}
        for key in ("selected", "held"):
            values = [getattr(p, key) for p in phases]
            row[f"{name}_{key}"] = None if None in values else _over(mine, values)
    row["worst_client"] = _over(mine, [run.headline.summary.worst for run in mine])
    row["worst_tenth"] = _over(mine, [run.headline.summary.worst10 for run in mine])
    row |= _gains(mine, runs, rival)
    row |= _attacked(mine, runs)
    row["kib"] = _mean([run.kib for run in mine])
    row["seconds"] = _mean([run.seconds for run in mine])
    account = mine[0].privacy
    row["epsilon"] = None if account is None else account.short()
    row |= {"scores": headline, "overlap": mine[0].overlap}
    return row


def score_of(row: dict[str, Any]) -> Score:
    """What the numbers of a row are values of."""
    return Score(**row["score"])


def protection(runs: Sequence[RunResult]) -> list[str]:
    """What noised uploads protect and what not, method by method."""
    return privacy.told({run.label: account for run in runs if (account := run.privacy) is not None})


def _by_allocation(runs: Sequence[RunResult], values: Sequence[float]) -> dict[str, float]:
    """One value per allocation: several runs on one are repeats of the training, and count once, by their mean."""
    found: dict[str, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        found.setdefault(run.partition, []).append(value)
    return {name: _mean(mine) for name, mine in found.items()}


def _over(runs: Sequence[RunResult], values: Sequence[float]) -> float:
    """Mean over allocations."""
    return _mean(list(_by_allocation(runs, values).values()))


def _interval(runs: Sequence[RunResult], values: Sequence[float]) -> statistics.Interval:
    return statistics.interval(list(_by_allocation(runs, values).values()), runs[0].score.bounds, runs[0].overlap)


def _gains(mine: Sequence[RunResult], runs: Sequence[RunResult], rival: str) -> dict[str, Any]:
    """The gain over the rival, mean over clients and then over allocations; its interval and test are over the latter.

    How many clients gain, stay equal and lose is told, not tested.
    """
    found = [pair for pair in pairs(mine, runs, rival) if (pair[0].honest & pair[1].honest).any()]
    if not found:
        names = ("gain", "gain_points", "gain_low", "gain_high", "gain_p_unadjusted", "gain_round")
        has_rival = any(_opponent(run, runs, rival) for run in mine)
        why = "rounds differ" if has_rival else f"no {rival} on the same allocation"
        return dict.fromkeys(names) | {"gain_allocations": 0, "gain_note": f"not compared: {why}"}
    honest = [gaps(run, other)[run.honest & other.honest] for run, other in found]
    points = list(_by_allocation([run for run, _ in found], [_mean(gap) for gap in honest]).values())
    overlap = found[0][0].overlap
    spread = statistics.interval(points, found[0][0].score.gap_bounds, overlap)
    signs = np.sign(np.concatenate(honest))
    p = statistics.paired_p(points, overlap)
    return {
        "gain": [int((signs == sign).sum()) for sign in (1, 0, -1)],
        "gain_points": spread.mean,
        "gain_low": spread.low,
        "gain_high": spread.high,
        "gain_p_unadjusted": p,
        "gain_round": found[0][0].round,
        "gain_allocations": len(points),
        "gain_note": too_few(len(points)) if p is None and np.any(signs) else "",
    }


def _attacked(mine: Sequence[RunResult], runs: Sequence[RunResult]) -> dict[str, Any]:
    """What is left for honest clients, and how many points that is above or below the run without an attack."""
    if not all(run.attackers for run in mine):
        return {"attackers": 0, "honest": None, "attack_points": None, "attacker_weight": None}
    costs = [cost for run in mine if (cost := _cost_of_attack(run, runs)) is not None]
    weights = [run.attacker_weight[-1] for run in mine if run.attacker_weight]
    return {
        "attackers": len(mine[0].attackers),
        "honest": _mean([float(values(run)[run.honest].mean()) for run in mine]),
        "attack_points": _mean(costs) if costs else None,
        "attacker_weight": _mean(weights) if weights else None,
    }


def _cost_of_attack(run: RunResult, runs: Sequence[RunResult]) -> float | None:
    """How much better the honest clients are off than the same clients where nobody is malicious; below 0: worse."""
    for other in runs:
        if _setting(other) == _setting(run) and not other.attackers:
            met = level([run, other])
            return float(gaps(met[0], met[1])[run.honest].mean()) if met else None
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
    aside = (*LATER, "provenance", "account", "overlap", "score", "source")
    known = {field.name: row[field.name] for field in fields(RunResult) if field.name not in aside}
    later: dict[str, Any] = {name: tuple(row.get(name, ())) for name in LATER}
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


def _mean(values: Sequence[float] | Floats) -> float:
    return float(np.mean(values))
