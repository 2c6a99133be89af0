"""Everything that a report or a dashboard tells, read from run folders alone; what cannot be read is named."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedapa.analysis import comparison, result_sets, run_results
from fedapa.analysis.method_rows import MethodRow
from fedapa.analysis.run_results import Phase, RunResult
from fedapa.core.scores import ACCURACY, LOSS, Score
from fedapa.core.summaries import Summary
from fedapa.data.schema import read_schema
from fedapa.data.sources import OWN, SOURCES
from fedapa.errors import FedapaError, InputError
from fedapa.methods.catalogue import METHODS
from fedapa.store import run_db
from fedapa.store.run_list import runs_under
from fedapa.store.run_settings import config_of, settings_of

Floats = npt.NDArray[np.float64]
TRAIN_LOSS, TEST_LOSS = "train loss", "test loss"  # curves beside those of the primary score
LARGEST_MATRIX = 400  # clients; a larger matrix is neither read nor drawn
# Keys that do not change what is learned, or only where the numbers come from.
ASIDE = {
    "data": ("data_dir", "seed"),
    "run": ("workers", "engine", "checkpoint_every", "evaluate_every", "mmap_above_mb", "log"),
}


class Client(NamedTuple):
    name: str
    train: int
    test: int
    labels: tuple[int, ...]  # train samples of every class


class Curve(NamedTuple):
    rounds: Floats  # counted from 1
    pooled: Floats  # of the primary score; NaN where run.db holds no finite number


class Spent(NamedTuple):
    """Seconds of the clock per round; work at the clients is shared out by what they did."""

    training: float
    other: float  # receiving and evaluating
    server: float

    @property
    def whole(self) -> float:
        return self.training + self.other + self.server


@dataclass(frozen=True)
class Run:
    result: RunResult
    about: dict[str, str]
    config: dict[str, Any]
    environment: dict[str, Any]
    clients: tuple[Client, ...]
    curves: dict[str, Curve]  # before, after; train loss, test loss
    spent: Spent
    mib: float  # down and up, all rounds and clients
    events: Counter[str]
    matrices: list[tuple[int, Floats]] = field(default_factory=list)  # (round from 1, A [M, M])

    @property
    def label(self) -> str:
        return self.result.label

    @property
    def settings(self) -> dict[str, Any]:
        """The hyper-parameters of its method."""
        return settings_of(self.about, "method")

    @property
    def curve(self) -> Curve:
        return self.curves[self.result.evaluated]

    @property
    def score(self) -> Score:
        return self.result.score

    @property
    def is_whole(self) -> bool:
        return self.result.status == "finished"


class Trouble(NamedTuple):
    """A run that has no numbers to show, and why."""

    folder: str
    status: str
    reason: str


@dataclass(frozen=True)
class Scenario:
    """Runs that can be compared: same data, partition rule, clients, model and training."""

    title: str
    runs: tuple[Run, ...]
    rows: tuple[MethodRow, ...]  # one per method, as `fedapa compare` has them
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def score(self) -> Score:
        """The primary score of its runs."""
        return self.first.score

    def of(self, label: str) -> list[Run]:
        return [run for run in self.runs if run.label == label]


class Gathered(NamedTuple):
    scenarios: list[Scenario]
    troubles: list[Trouble]


def gather(folder: Path) -> Gathered:
    """All runs at or below a folder, by scenario."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "name a folder of runs; `fedapa run` makes one")
    paths = runs_under(folder)
    if not paths:
        raise InputError(f"no run under {folder}", "`fedapa run CONFIG --out DIR` makes some")
    found = [read_run(path, name_of(path, folder)) for path in paths]
    runs = [run for run in found if isinstance(run, Run)]
    return Gathered(scenarios_of(runs), [trouble for trouble in found if isinstance(trouble, Trouble)])


# ---------------------------------------------------------------------------------------------------------- one run


def name_of(path: Path, folder: Path) -> str:
    """What a run is called in the folder that holds it."""
    return str(path.relative_to(folder)) if path != folder else path.name


def read_run(folder: Path, name: str, with_matrices: bool = True) -> Run | Trouble:
    try:
        result = run_results.read(folder)
        if result is None:
            return _without_results(folder, name)
        with run_db.reading(folder / "run.db") as db:
            return _run(_sound(result, name), db, folder, with_matrices)
    except FedapaError as error:
        return Trouble(name, "unreadable", error.message)
    except (sqlite3.Error, ValueError, TypeError, KeyError, LookupError) as error:
        return Trouble(name, "unreadable", f"run.db holds something unexpected: {error!r}")


def _sound(result: RunResult, name: str) -> RunResult:
    """Numbers that are not finite become NaN, which every mean passes on and no maximum picks."""
    before, after = (_finite_phase(phase, result.score) for phase in (result.before, result.after))
    return replace(result, folder=Path(name), before=before, after=after)


def _finite_phase(phase: Phase, score: Score) -> Phase:
    curve = np.array([_finite(value) for value in phase.curve])
    if np.isfinite(curve).all():
        return phase
    best = float(curve[score.best(curve.tolist())])
    return replace(phase, last=float(curve[-1]), best=best, tail=float("nan"))


def _without_results(folder: Path, name: str) -> Trouble:
    if not run_db.is_begun(folder / "run.db"):
        return Trouble(name, "planned", "not started")
    with run_db.reading(folder / "run.db") as db:
        about = run_db.meta(db)
    return Trouble(name, about.get("status", "planned"), about.get("reason") or "no evaluated round yet")


def _run(result: RunResult, db: sqlite3.Connection, folder: Path, with_matrices: bool) -> Run:
    about = run_db.meta(db)
    config, environment = config_of(about, folder), read_json(folder / "env.json")
    clients = clients_of(db)
    curves = {phase: _curve(run_db.curve(db, phase)) for phase in ("before", "after")}
    curves[TRAIN_LOSS] = _curve(run_db.train_loss(db))
    curves[TEST_LOSS] = _curve(run_db.curve(db, result.evaluated, score=LOSS.name))
    kinds = Counter(kind for _, _, kind, _ in run_db.events(db))
    return Run(
        result, about, config, environment, clients, curves, _spent(db), run_db.totals(db).moved / 2**20, kinds,
        list(matrices(db, len(clients))) if with_matrices else [],
    )  # fmt: skip


def clients_of(db: sqlite3.Connection) -> tuple[Client, ...]:
    return tuple(_client(name, train, test, labels) for name, train, test, _, labels in run_db.client_data(db))


def _client(name: str, train: int, test: int, labels: str) -> Client:
    return Client(str(name), train, test, tuple(int(n) for n in labels.split(",") if n))


def _curve(rows: Sequence[tuple[int, Summary]]) -> Curve:
    pooled = np.array([_finite(summary.pooled) for _, summary in rows])
    return Curve(np.array([float(t) for t, _ in rows]), pooled)


def _finite(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else float("nan")


def _spent(db: sqlite3.Connection) -> Spent:
    found, visits = run_db.totals(db), run_db.visit_seconds(db)
    at_clients = found.seconds - found.server_seconds
    share = min(1.0, found.training_seconds / visits) if visits else 0.0
    parts = at_clients * share, at_clients * (1 - share), found.server_seconds
    return Spent(*(value / max(found.rounds, 1) for value in parts))


def matrices(db: sqlite3.Connection, clients: int, round: int | None = None) -> Iterator[tuple[int, Floats]]:
    """Every round's A, or that of one; ``round`` counts from 1."""
    if clients <= LARGEST_MATRIX:
        yield from run_db.matrices(db, clients, round)


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


# -------------------------------------------------------------------------------------------------------- scenarios


def scenarios_of(runs: Iterable[Run]) -> list[Scenario]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_key(run), sort_keys=True), []).append(run)
    keys = [_key(group[0]) for group in groups.values()]
    titles = _distinct([_title(key) for key in keys], keys)
    return [_scenario(title, _told_apart(group)) for title, group in zip(titles, groups.values(), strict=True)]


def _key(run: Run) -> dict[str, Any]:
    """What must be equal for two runs to be compared."""
    tables = {name: run.config.get(name) or {} for name in ("data", "model", "objective", "training", "run", "attack")}
    key = {
        f"{name}.{word}": value
        for name, table in tables.items()
        for word, value in table.items()
        if word not in ASIDE.get(name, ())
    }
    if not key:  # no config: what run.db says of itself
        plan = settings_of(run.about, "plan")
        key = {f"run.{word}": value for word, value in plan.items() if word not in ("seed", "evaluate_every")}
        key |= {"data.source": run.about.get("source", "data"), "data.clients": len(run.clients)}
        key |= {"objective": run.result.score.name} if run.result.score != ACCURACY else {}
        key |= {f"training.{word}": value for word, value in settings_of(run.about, "training").items()}
    if sites := run.config.get("sites"):
        key |= {"data.source": sites.get("source") or f"own data: {sites.get('label', 'label')}"}
        key |= {"data.clients": len(run.clients), "data.split": sites.get("split", "stratified")}
    elif key.get("data.source") == OWN:  # of real sites, whom no rule made
        label = (run.config.get("layout") or {}).get("label", "label")
        key |= {"data.source": f"own data: {label}", "data.clients": len(run.clients)}
        key.pop("data.partition", None)
    return key


def _title(key: dict[str, Any]) -> str:
    named = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fmnist": "Fashion-MNIST"}
    source, rule = str(key.get("data.source", "data")), str(key.get("data.partition", ""))
    rule = {"dirichlet": "Dirichlet", "iid": "IID"}.get(rule, Path(rule).name if rule.endswith(".npz") else rule)
    if "data.alpha" in key:
        rule += f" {key['data.alpha']:g}"
    if "data.classes_per_client" in key:
        rule += f", {key['data.classes_per_client']} classes each"
    parts = [named.get(source, source), rule, f"{key.get('data.clients', '?')} clients", _attack(key)]
    return " · ".join(part for part in parts if part)


def _attack(key: dict[str, Any]) -> str:
    """How many clients are malicious, and what they do."""
    if "attack.kind" not in key:
        return ""
    who, factor = key.get("attack.clients", 1), f" {key['attack.factor']:g}" if "attack.factor" in key else ""
    return f"{len(who) if isinstance(who, list) else who} malicious ({key['attack.kind']}{factor})"


def _distinct(titles: Sequence[str], keys: Sequence[dict[str, Any]]) -> list[str]:
    """Scenarios of the same title say what else differs between them."""
    found = []
    for title, key in zip(titles, keys, strict=True):
        rivals = [other for name, other in zip(titles, keys, strict=True) if name == title]
        words = sorted({word for other in rivals for word in other if other.get(word) != key.get(word)})
        extra = [f"{word.partition('.')[2]} {key[word]}" for word in words if word in key]
        found.append(" · ".join([title, *extra]))
    return found


def _told_apart(runs: Sequence[Run]) -> list[Run]:
    """Runs of one name and other hyper-parameters are methods of their own: the name says in what they differ."""
    given = {id(run): run.settings for run in runs}
    found = []
    for run in runs:
        rivals = [given[id(other)] for other in runs if other.label == run.label]
        common = set.intersection(*(set(words) for words in rivals)) if rivals else set()
        differing = sorted(word for word in common if len({repr(words[word]) for words in rivals}) > 1)
        extra = ", ".join(f"{word}={given[id(run)][word]}" for word in differing)
        name = f"{run.label} ({extra})" if extra else run.label
        found.append(replace(run, result=replace(run.result, label=name)))
    return found


def _scenario(title: str, runs: Sequence[Run]) -> Scenario:
    runs = [replace(run, result=replace(run.result, scenario=title)) for run in runs]
    rows = comparison.table([run.result for run in runs])
    return Scenario(title, tuple(runs), tuple(rows), tuple(_notes(runs)))


def _so_far(run: Run) -> str:
    return f"{run.result.folder} ({run.result.rounds_done}/{run.result.rounds})"


def _variants(runs: Sequence[Run]) -> Iterator[str]:
    """Which method is behind a name that a config made up, and with which settings."""
    for label, run in {run.label: run for run in reversed(runs)}.items():
        table = run.config.get("method", {}).get((run.config.get("methods") or [""])[0], {})
        if "base" not in table:
            continue
        given = {key: value for key, value in table.items() if key not in ("base", "code", "training")}
        given |= {f"training.{key}": value for key, value in table.get("training", {}).items()}
        words = ", ".join(f"{key}={value}" for key, value in given.items())
        yield f"{label} is {title_of(table['base'])}{f' with {words}' if words else ''}."


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    yield from _variants(runs)
    yield from result_sets.protection([run.result for run in runs])
    yield from result_sets.site_notes([run.result for run in runs])
    failed = [run for run in runs if run.result.status == "failed"]
    yield from (f"{_so_far(run)} failed: {run.about.get('reason') or 'no reason was kept'}." for run in failed)
    if unfinished := [run for run in runs if run.result.status not in ("finished", "failed")]:
        yield f"Not finished: {', '.join(map(_so_far, unfinished))}."
    if failed or unfinished:
        yield "Such runs do not count beside finished ones of the same method."
    if versions := result_sets.mixed([run.result for run in runs]):
        yield f"{versions[0].upper()}{versions[1:]}."
    broken = [str(run.result.folder) for run in runs if any(np.isnan(c.pooled).any() for c in run.curves.values())]
    if broken:
        yield f"Scores that are not finite are left out: {', '.join(broken)}."
    twice = [key for key, n in Counter((run.label, run.result.seed) for run in runs).items() if n > 1]
    if twice:
        names = ", ".join(f"{label} seed {seed}" for label, seed in twice)
        yield f"More than one run of {names}; their mean counts once."
    marks = Counter[str]()
    for run in runs:
        marks += run.events
    if marks:
        yield f"During the rounds: {', '.join(f'{n} x {kind}' for kind, n in marks.items())}."


def class_names(run: Run) -> list[str]:
    """Of a built-in data set, or of own data as the schema beside the run or its agreed layout has them."""
    known = SOURCES.get(run.about.get("source", ""))
    classes = len(run.clients[0].labels) if run.clients else 0
    if known is None and len(own := _own_classes(run)) == classes:
        return own
    return list(known.class_names) if known and known.classes == classes else [str(k) for k in range(classes)]


def _own_classes(run: Run) -> list[str]:
    if run.result.source is not None and (path := run.result.source.parent / "schema.json").is_file():
        with suppress(InputError):
            return list(read_schema(path).class_names)
    layout = run.config.get("layout") or {}
    return [str(name) for name in layout.get("classes", ())]


def title_of(label: str) -> str:
    """The name that papers use, for labels that are registered methods."""
    base, space, rest = label.partition(" ")
    return METHODS[base].title + space + rest if base in METHODS else label


def label_counts(clients: Sequence[Client]) -> npt.NDArray[np.int64] | None:
    """[clients, classes] train samples."""
    rows = [client.labels for client in clients]
    if not rows or not rows[0] or len({len(row) for row in rows}) > 1 or not np.any(rows):
        return None
    return np.array(rows, dtype=np.int64)


def mean_curve(runs: Sequence[Run], phase: str | None = None) -> Curve:
    """Over seeds, in the rounds that all of them evaluated; ``phase`` None: the model that is reported."""
    rounds, picked = _shared_rounds(runs, phase)
    return Curve(rounds, picked.mean(axis=0))


def seed_band(runs: Sequence[Run], phase: str | None = None) -> tuple[Floats, Floats] | None:
    """The least and the most over seeds in every round of ``mean_curve``; None for a single run."""
    picked = _shared_rounds(runs, phase)[1]
    return (picked.min(axis=0), picked.max(axis=0)) if len(runs) > 1 else None


def _shared_rounds(runs: Sequence[Run], phase: str | None) -> tuple[Floats, Floats]:
    """The rounds that all runs evaluated, and a row per run of their scores there."""
    curves = [run.curves[phase] if phase else run.curve for run in runs]
    rounds = curves[0].rounds
    for curve in curves[1:]:
        rounds = np.intersect1d(rounds, curve.rounds)
    return rounds, np.array([curve.pooled[np.isin(curve.rounds, rounds)] for curve in curves])
