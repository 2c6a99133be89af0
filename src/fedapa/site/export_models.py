"""From a finished run to every site's own folder: its model, its card, its held-out rows with predictions."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedapa.analysis import statistics
from fedapa.analysis.personalized_model import in_use, last_checkpoint, predictions
from fedapa.config.experiment import Parts, assemble, load_own, read_config
from fedapa.config.load import settings_of, training_of
from fedapa.config.sections import Config
from fedapa.core.survival import concordance
from fedapa.data.cell_format import as_number
from fedapa.data.federated import ClientData
from fedapa.data.schema import Schema, unscaled
from fedapa.data.site_description import Sites
from fedapa.data.sites import described
from fedapa.data.tables import Table, as_written, encoding_of
from fedapa.errors import InputError
from fedapa.federation.enrolment import AGREED
from fedapa.federation.kit import KIT
from fedapa.methods.catalogue import entry
from fedapa.methods.method import mixing_weights
from fedapa.site.card_details import with_details
from fedapa.site.measures import chosen_threshold, decided, measures_of
from fedapa.site.model_card import Facts, privacy_of, write_card
from fedapa.site.silo_scores import Scored, score_run
from fedapa.site.site_model import write_model
from fedapa.store.checkpoint import Checkpoint, write_atomically
from fedapa.store.run_folder import kept_engine
from fedapa.training.model import choose
from fedapa.training.objective import Objective, Survival

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet takes for a formula


class Useless(InputError):
    """A model that is no better than the most frequent class."""


def deliver_all(
    run: Path, scored: Sequence[Scored], out: Path, anyway: bool = False, splits: Sequence[Path] = ()
) -> tuple[list[Path], dict[str, str]]:
    """Write every site's model of a run below ``out``; returns the sites that got none, with the reason. ``splits``:
    the runs of the same method on all splits."""
    delivered, refused = [], {}
    mixed = [weights for split in splits if (weights := _mixed(split)) is not None]
    for i, name in enumerate(folder_names([client.name for client in assemble(read_config(run)).data.clients])):
        try:
            delivered.append(deliver(run, i, out / name, scored, anyway, mixed))
        except Useless as error:
            refused[name] = error.message
    return delivered, refused


def _mixed(run: Path) -> Tensor | None:
    """[M, M] whose models a finished run mixes for whom, where its method tells."""
    config = read_config(run)
    parts = assemble(config, kept_engine(config.run.engine, run))
    return mixing_weights(parts.method, last_checkpoint(run, parts.plan.rounds).state.server)


def deliver(
    run: Path,
    i: int,
    out: Path,
    scored: Sequence[Scored] | None = None,
    anyway: bool = False,
    mixed: Sequence[Tensor] = (),
) -> Path:
    """Client i's model of a finished run in ``out``/site-model; of tables also the held-out rows with predictions.
    ``mixed``: the weights [M, M] of all splits.

    A useless model is refused, or delivered ``anyway`` with a card that says so.
    """
    check_simulated(run)
    config = read_config(run)
    parts = assemble(config, kept_engine(config.run.engine, run))
    if not 0 <= i < len(parts.data.clients):
        raise InputError(f"there is no client {i}", f"this run has clients 0 to {len(parts.data.clients) - 1}")
    point = last_checkpoint(run, parts.plan.rounds)
    client = parts.data.clients[i]
    own = load_own(config, parts.plan.seed) if config.sites is not None else None
    schema = own.schemas[i] if own is not None else plain_schema(parts)
    task = parts.task.for_client(i)
    state = in_use(parts.method, task, point, i, client, parts.plan.seed)
    predict = partial(predictions, parts.method, task, state)
    p, seen = predict(client.test.x), predict(client.train.x)
    threshold = chosen_threshold(measures_of(task.objective, parts.data.classes), client, predict)
    cut = None if threshold is None else threshold.value
    flaw = flaw_of(client, seen, p, schema.class_names, cut, task.objective)
    refuse(client.name, flaw, anyway)
    facts = _facts(config, parts, point, i, p)._replace(flaw=flaw or "")
    if mixed:
        shares = torch.stack([weights[i] for weights in mixed], dim=1).tolist()
        facts = facts._replace(by_split=dict(zip(facts.sites, shares, strict=True)))
    groups = () if config.sites is None else config.sites.subgroups
    rows = None if own is None else own.held_out[i]
    facts = with_details(facts, client, p, threshold, schema.class_names, rows, groups)
    base, settings = settings_of(config, config.methods[0])
    card = write_card(facts, schema, score_run(run) if scored is None else scored)
    sites = Sites() if own is None else described(sites_of(config), data_dir_of(config))
    about = {"rounds": parts.plan.rounds, "seed": parts.plan.seed, "data": parts.data.name, "threshold": cut}
    model = {**config.model.model_dump(), "name": choose(config.model.name, i, client.name)}
    folder = write_model(
        out / "site-model", client.name, base, settings, model, task, state, schema, sites, card, about
    )
    if own is not None:
        write_held_out(out, own.held_out[i], schema, p, cut, sites)
    return folder


def check_simulated(run: Path) -> None:
    """Of a run with real sites, the coordinator has no personal model."""
    if (run / AGREED).is_file():
        raise InputError(f"{run} is a run of real sites, and their models are there", "fedapa site export KIT")
    if (run / KIT).is_file():
        raise InputError(f"{run} is a site's kit, not a run", f"fedapa site export {run}")


def flaw_of(
    client: ClientData,
    seen: statistics.Floats,
    p: statistics.Floats,
    names: Sequence[str],
    threshold: float | None = None,
    objective: Objective | None = None,
) -> str | None:
    """Why a model is useless on the site's own rows, train and test together: it predicts one class for all of them,
    or is right no more often than the most frequent class and ranks them no better than chance. Of numbers: it is no
    closer to them than their mean is. Of times: its risks order them no better than chance."""
    if isinstance(objective, Survival):
        return _flaw_of_risks(client, np.concatenate([seen, p]))
    if not names:
        return _flaw_of_numbers(client, np.concatenate([seen, p]))
    y, both = np.concatenate([client.train.y.numpy(), client.test.y.numpy()]), np.concatenate([seen, p])
    counts, said = np.bincount(y), np.unique(decided(both, threshold))
    share, right = counts.max() / len(y), statistics.accuracy(y, both)
    if (counts > 0).sum() < 2 or right > share:
        return None
    area = statistics.bootstrap(y, both, statistics.auc)
    if len(said) > 1 and area.low is not None and area.low > 0.5:
        return None
    says = f"predicts {names[int(said[0])]!r} for all" if len(said) == 1 else f"is right on {right:.1%} of"
    often = f"{names[int(counts.argmax())]!r}, the most frequent class, is {share:.1%} of them"
    return f"it {says} {len(y)} own rows (train and test); {often}; AUC {area.mean:.2f}"


def _flaw_of_numbers(client: ClientData, p: statistics.Floats) -> str | None:
    y = np.concatenate([client.train.y.numpy(), client.test.y.numpy()]).astype(np.float64)
    error, spread = float(np.square(p[:, 0] - y).mean()), float(y.var())
    if error < spread or spread == 0:
        return None
    gap = f"mean squared error {error:.3g}, variance {spread:.3g}"
    return f"it is no closer to its {len(y)} own rows (train and test) than their mean is: {gap}"


def _flaw_of_risks(client: ClientData, p: statistics.Floats) -> str | None:
    y = np.concatenate([client.train.y.numpy(), client.test.y.numpy()]).astype(np.float64)
    right, pairs = concordance(y, p[:, 0])
    if right > 0.5 * pairs or not pairs:
        return None
    return f"its risks order {len(y)} own rows (train and test) no better than chance: concordance {right / pairs:.2f}"


def refuse(site: str, flaw: str | None, anyway: bool) -> None:
    if flaw and not anyway:
        raise Useless(
            f"the model of {site} is not delivered: {flaw}",
            "see the run's log for refused uploads; lower noise or rates; --deliver-anyway writes it all the same",
        )


def folder_names(names: Sequence[str]) -> list[str]:
    """A folder for every client. Names come from cells and files: none leads out of the folder above it."""
    safe = ["".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".") or "site" for name in names]
    return [name if safe.count(name) == 1 else f"{name}-{i}" for i, name in enumerate(safe)]


def settings_text(config: Config) -> str:
    training = training_of(config, config.methods[0])
    return f"{config.run.rounds} rounds of {training.epochs} epochs, batch {training.batch}, rate {training.lr:g}"


def agreed_schema(config: Config) -> Schema:
    """What all sites must share: the layout, and where they agreed on it the scaling."""
    schema = load_own(config, config.seeds[0]).schemas[0]
    return schema if sites_of(config).scaling == "federated" else unscaled(schema)


def sites_of(config: Config) -> Sites:
    assert config.sites is not None
    return config.sites


def data_dir_of(config: Config) -> Path | None:
    return None if config.data.data_dir is None else Path(config.data.data_dir)


def plain_schema(parts: Parts) -> Schema:
    return schema_of_samples(parts.data.classes, parts.data.shape)


def schema_of_samples(classes: int, shape: tuple[int, ...]) -> Schema:
    """Images and arrays of a shipped data set: classes by number, none where targets are numbers."""
    mode = {1: "L", 3: "RGB"}.get(shape[0], "") if len(shape) == 3 else ""
    return Schema((), "class", {str(c): (str(c),) for c in range(classes)}, shape, mode)


def _facts(config: Config, parts: Parts, point: Checkpoint, i: int, p: statistics.Floats) -> Facts:
    client, known = parts.data.clients[i], entry(settings_of(config, config.methods[0])[0])
    names = [other.name for other in parts.data.clients]
    y = client.test.y.numpy()
    weights = mixing_weights(parts.method, point.state.server)
    trained, tested = (counts_of(part.y, parts.data.classes) for part in (client.train, client.test))
    measures = measures_of(parts.task.objective, parts.data.classes)
    own = {measure.name: measure.own(y, p) for measure in measures}
    shares = {} if weights is None else dict(zip(names, weights[i].tolist(), strict=True))
    return Facts(
        client.name,
        config.methods[0],
        known.title,
        known.stays,
        known.up,
        parts.plan.rounds,
        trained,
        tested,
        own,
        shares,
        names,
        privacy_of(parts.method, parts.plan.rounds),
        settings_text(config),
        measures=measures,
        simulated=True,
    )


def counts_of(y: Tensor, classes: int) -> list[int]:
    """Rows of every class; of numbers, of all."""
    return y.bincount(minlength=classes).tolist() if classes else [len(y)]


def write_held_out(
    out: Path, table: Table | None, schema: Schema, p: statistics.Floats, threshold: float | None, sites: Sites
) -> None:
    """The test rows of a table as its site writes them, for `predict`, and what the model says about them."""
    if table is not None:
        names = [str(line) for line in table.lines]
        encoding = encoding_of(table.path, sites.encoding)
        write_atomically(out / "held-out.csv", table_text(table, sites).encode(encoding))
        text = prediction_text(names, schema, p, threshold=threshold)
        write_atomically(out / "predictions.csv", text.encode())


def table_text(table: Table, sites: Sites) -> str:
    """A table as CSV, written as its file is; an empty cell where there is no value."""
    if sites.decimal != "." or sites.thousands or sites.dates or sites.booleans:
        rows = as_written(table, sites.header, sites.encoding)
    else:
        rows = [list(table.columns), *zip(*table.columns.values(), strict=True)]
    return _csv([["" if cell is None else cell for cell in row] for row in rows])


def prediction_text(
    names: Sequence[str], schema: Schema, p: statistics.Floats, what: str = "line", threshold: float | None = None
) -> str:
    """One line per row: where it stands, the class, the probability of every class; or the number alone.

    Spreadsheets run a cell that begins like a formula, so texts that do get an apostrophe in front.
    """
    if not schema.classes:
        rows = [[name, f"{row[0]:.6g}"] for name, row in zip(names, p, strict=True)]
        return _csv(_escaped([[what, schema.label], *rows]))
    header = [what, schema.label, *(f"p({name})" for name in schema.class_names)]
    best = decided(p, threshold)
    rows = [
        [name, schema.class_names[int(k)], *(f"{v:.6f}" for v in row)]
        for name, k, row in zip(names, best, p, strict=True)
    ]
    return _csv(_escaped([header, *rows]))


def _escaped(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    return [
        [f"'{cell}" if cell.startswith(FORMULA) and as_number(cell) is None else cell for cell in row] for row in rows
    ]


def _csv(rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
