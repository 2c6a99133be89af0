"""``fa.open("runs/x")``: runs on disk as tables of typed rows, curves and models, for notebooks and scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedapa.analysis import comparison, result_sets, standings
from fedapa.analysis.method_rows import MethodRow
from fedapa.analysis.personalized_model import in_use, last_checkpoint, predictions
from fedapa.config.experiment import Parts, assemble, read_config
from fedapa.core.scores import LOSS, Score
from fedapa.core.tree import Tree
from fedapa.errors import InputError
from fedapa.store import run_db
from fedapa.store.run_folder import kept_engine, runs_under
from fedapa.store.run_settings import config_of

Floats = npt.NDArray[np.float64]
R = TypeVar("R")


@dataclass(frozen=True)
class ScoreRow:
    """A score of one round over all clients; ``pooled`` is that of all their samples together."""

    round: int  # rounds done
    phase: str  # before or after local training; during it, for the train loss
    data: str  # test, validation or train
    score: str
    pooled: float
    mean: float
    std: float
    worst: float
    worst10: float


@dataclass(frozen=True)
class ClientRow:
    """A client: its samples, and its primary score now, before and after local training."""

    client: int
    name: str
    train: int
    test: int
    validation: int
    before: float
    after: float


@dataclass(frozen=True)
class WeightRow:
    """How much of ``other``'s model went to ``client`` after a round."""

    round: int
    client: int
    other: int
    weight: float


class Rows(Sequence[R], Generic[R]):
    """A list of typed rows that pandas can take."""

    def __init__(self, rows: Sequence[R]) -> None:
        self._rows = list(rows)

    @overload
    def __getitem__(self, k: int) -> R: ...
    @overload
    def __getitem__(self, k: slice) -> Rows[R]: ...
    def __getitem__(self, k: int | slice) -> R | Rows[R]:
        return Rows(self._rows[k]) if isinstance(k, slice) else self._rows[k]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Rows({self._rows!r})"

    def to_pandas(self) -> Any:
        """A DataFrame with a column for every field."""
        try:
            import pandas
        except ImportError:
            raise InputError("pandas is not installed", "pip install pandas; the rows themselves need it not") from None
        return pandas.DataFrame([_plain(row) for row in self._rows])


def _plain(row: Any) -> dict[str, Any]:
    return row.as_dict() if hasattr(row, "as_dict") else asdict(row)


@dataclass(frozen=True)
class ClientModel:
    """The model that a client has in use when a run is over."""

    client: str
    parts: Parts
    state: Tree

    def __call__(self, x: Tensor) -> Floats:
        """Probabilities [n, classes], or numbers [n, 1], of samples as the data set has them."""
        return predictions(self.parts.method, self.parts.task, self.state, x)

    def logits(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.parts.method.predict(self.parts.task, self.state, x)


@dataclass(frozen=True)
class OpenedRun:
    """One run, finished or not. Every table is read when it is asked for, so a running one shows what there is."""

    folder: Path

    @cached_property
    def about(self) -> dict[str, str]:
        with run_db.reading(self.folder / "run.db") as db:
            return run_db.meta(db)

    @property
    def method(self) -> str:
        return self.about.get("label", self.folder.name)

    @property
    def config(self) -> dict[str, Any]:
        """The config that the run was started with; empty where it was started with Python objects."""
        return config_of(self.about, self.folder)

    @property
    def score(self) -> Score:
        """What the run is judged by."""
        with run_db.reading(self.folder / "run.db") as db:
            return run_db.primary(db)

    @property
    def scores(self) -> Rows[ScoreRow]:
        """Every score of every evaluated round, the loss among them, and the train loss of every round."""
        with run_db.reading(self.folder / "run.db") as db:
            names = [score.name for score in run_db.scores_of(db)]
            found = [row for name in names for row in _score_rows(db, name)]
            during = [
                ScoreRow(done, "during", "train", LOSS.name, *loss.as_dict().values())
                for done, loss in run_db.train_loss(db)
            ]
            return Rows([*found, *during])

    def curve(self, phase: str | None = None, data: str = "test", score: str | None = None) -> Rows[ScoreRow]:
        """One score, round by round: by default the primary one, of the model that the method is evaluated by.

        On ``train`` data it is the loss of the batches that clients trained on.
        """
        wanted = phase or self.about.get("evaluated", "after"), data, score or self.score.name
        wanted = ("during", data, score or LOSS.name) if data == "train" else wanted
        every = self.scores
        found = [row for row in every if (row.phase, row.data, row.score) == wanted]
        if not found:
            known = sorted({f"({row.phase!r}, {row.data!r}, {row.score!r})" for row in every})
            raise InputError(f"{self.folder} has no curve {wanted}", f"it has {', '.join(known) or 'none yet'}")
        return Rows(found)

    @property
    def clients(self) -> Rows[ClientRow]:
        with run_db.reading(self.folder / "run.db") as db:
            data, score = run_db.client_data(db), run_db.primary(db)
            before, after = (_values(score, run_db.last_sums(db, phase), len(data)) for phase in ("before", "after"))
        return Rows([ClientRow(i, *row[:4], float(before[i]), float(after[i])) for i, row in enumerate(data)])

    @property
    def weights(self) -> Rows[WeightRow]:
        """The last weights between clients, where the method has such; ``matrices`` has every round's."""
        return Rows(
            [
                WeightRow(t, i, j, float(weight))
                for t, matrix in self.matrices()[-1:]
                for (i, j), weight in np.ndenumerate(matrix)
            ]
        )

    def matrices(self) -> list[tuple[int, Floats]]:
        """(round, [M, M] weights) of every round, where the method has such."""
        with run_db.reading(self.folder / "run.db") as db:
            return list(run_db.matrices(db, len(run_db.client_data(db))))

    def model(self, client: int | str) -> ClientModel:
        """A client's personalized model, by its number or name, as the run's last checkpoint has it."""
        config = read_config(self.folder)
        parts = assemble(config, kept_engine(config.run.engine, self.folder))
        i = _place(client, [one.name for one in parts.data.clients])
        point = last_checkpoint(self.folder, parts.plan.rounds)
        state = in_use(parts.method, parts.task, point, i, parts.data.clients[i], parts.plan.seed)
        return ClientModel(parts.data.clients[i].name, parts, state)

    def __str__(self) -> str:
        return summary(self.folder)


@dataclass(frozen=True)
class OpenedRuns(Sequence[OpenedRun]):
    """The runs of a folder; printed, they are a comparison."""

    folder: Path
    runs: tuple[OpenedRun, ...]

    @overload
    def __getitem__(self, k: int) -> OpenedRun: ...
    @overload
    def __getitem__(self, k: slice) -> tuple[OpenedRun, ...]: ...
    def __getitem__(self, k: int | slice) -> OpenedRun | tuple[OpenedRun, ...]:
        return self.runs[k]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def table(self) -> Rows[MethodRow]:
        """One row per method, as `fedapa compare` has them."""
        return Rows(comparison.table(result_sets.load(self.folder)))

    def __str__(self) -> str:
        return summary(self.folder)


def open(folder: str | Path) -> OpenedRun | OpenedRuns:
    """The run in a folder, or all runs below it: tables of typed rows, curves, weights and models."""
    found = runs_under(Path(folder))
    if not found:
        raise InputError(f"{folder} holds no run", "name a folder that `fedapa run` or fit(out=...) made")
    if found == [Path(folder)]:
        return OpenedRun(found[0])
    return OpenedRuns(Path(folder), tuple(OpenedRun(path) for path in found))


def summary(folder: Path) -> str:
    """A line per method: its score, its gain over Local; then who is best, and who cannot be told from it."""
    rows = comparison.table(result_sets.load(folder))
    lines = [_line(row) for row in rows] or ["no evaluated round yet"]
    return "\n".join([*lines, *([told] if (told := standings.who_wins(rows)) and len(rows) > 1 else [])])


def _line(row: MethodRow) -> str:
    spread = "" if row.headline.sd is None else f" ± {row.score.number(row.headline.sd)}"
    gain = "" if row.gain is None else _gained(row)
    rounds = f"{row.round} rounds, {row.allocations} allocation{'s' if row.allocations > 1 else ''}"
    what = row.score.unit or row.score.name
    return (
        f"{row.method}: {row.score.number(row.headline.last)}{spread} {what} {row.evaluated} training{gain} ({rounds})"
    )


def _gained(row: MethodRow) -> str:
    assert row.gain is not None
    p = "" if row.gain.p_adjusted is None else f", p {row.gain.p_adjusted:.3f}"
    return f", {row.score.number(row.gain.points, signed=True)} over local{p}"


def _score_rows(db: Any, name: str) -> Iterator[ScoreRow]:
    for phase in ("before", "after"):
        for data in ("test", "validation"):
            for done, found in run_db.curve(db, phase, data, name):
                yield ScoreRow(done, phase, data, name, *found.as_dict().values())


def _values(score: Score, sums: Any, clients: int) -> Floats:
    return np.full(clients, np.nan) if sums is None else score.values(sums[:, 0], sums[:, 1])


def _place(client: int | str, names: Sequence[str]) -> int:
    if isinstance(client, int) and 0 <= client < len(names):
        return client
    if client not in names:
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise InputError(f"there is no client {client!r}", f"clients: {shown}")
    return names.index(str(client))
