"""From a site's kit to its model: made at the site from its own states, with no coordinator and no other site.

site-model/       the model of the last answered request of a run
alone-model/      the same recipe trained at the site alone, to compare and to fall back to; beside both, the card shows
                  a network tuned at the site and a plain model
held-out.csv      the test rows, and predictions.csv what the model says about them; of tables
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from fedapa.analysis.personalized_model import predictions
from fedapa.config.load import settings_of, training_of
from fedapa.config.sections import Config
from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Federated
from fedapa.data.schema import Schema
from fedapa.data.site_description import Sites
from fedapa.data.tables import Table
from fedapa.errors import FedapaError, InputError
from fedapa.federation import site_result
from fedapa.federation.kit import read_kit
from fedapa.federation.site_agent import Agreed, Site, agree, read_config
from fedapa.federation.site_result import About, InUse
from fedapa.methods.catalogue import entry
from fedapa.methods.local_only import LocalOnly
from fedapa.methods.method import Method
from fedapa.methods.wrappers import account_of
from fedapa.site.alone import NETWORK, Alone, alone_with
from fedapa.site.card_details import with_details
from fedapa.site.export_models import counts_of, flaw_of, refuse, settings_text, write_held_out
from fedapa.site.export_models import schema_of_samples as of_samples
from fedapa.site.local_training import train_alone
from fedapa.site.measures import at_threshold, chosen_threshold, measures_of
from fedapa.site.model_card import Facts, write_card
from fedapa.site.silo_scores import Scored, scored_one, scored_ways
from fedapa.site.site_model import write_model
from fedapa.site.verdict import Verdict, judge
from fedapa.store.atomic_io import make_folder, replace_folder
from fedapa.training.local import Local
from fedapa.training.task import Task

CHANGED = "this site's rows are no longer those of the run: the model has no scores, and none trained alone beside it"


class Delivered(NamedTuple):
    folder: Path
    run: str
    method: str
    rounds: tuple[int, int]  # answered, of how many
    verdict: Verdict | None
    notes: list[str]


class Kept(NamedTuple):
    """Everything that a site has of one run."""

    about: About
    use: InUse
    config: Config
    agreed: Agreed
    record: Tree
    memory: Tree


class Rows(NamedTuple):
    """The site's rows as the run had them."""

    data: Federated
    held_out: Table | None

    @property
    def client(self) -> ClientData:
        return self.data.clients[0]


def deliver_kit(
    kit: Path,
    out: Path | None = None,
    run: str | None = None,
    anyway: bool = False,
    progress: Callable[[int], None] | None = None,
    baselines: bool = True,
) -> Delivered:
    """Write the model of a run (the last one that was answered) below ``out``, by default into the kit.

    ``baselines``: of tables, beside the network trained alone also one with settings of the site's own choice and a
    plain model; joining is then judged against the better of these two.
    """
    torch.set_num_threads(1)  # as in the run, to get the same bits
    read_kit(kit)
    site, out = Site.open(kit), out or kit
    kept = read_kept(site, run)
    rows = rows_of(site, kept)
    state = model_of(kept, rows)
    schema = kept.about.schema or of_samples(kept.agreed.task.classes, tuple(kept.about.terms.shape))
    if rows is None:
        facts = _facts(site.name, kept, None)
        folder = _write(out / "site-model", kept, schema, kept.agreed.method, state, write_card(facts, schema, []))
        return Delivered(folder, kept.about.terms.run, kept.config.methods[0], _progress(kept), None, [CHANGED])
    method, task, plan = kept.agreed
    client, i = replace(rows.client, name=site.name), kept.about.client  # its file may have another name
    recipe = training_of(kept.config, "local")
    own = Made(LocalOnly(), train_alone(task, client, i, plan.seed, plan.rounds, recipe, progress), task, client)
    made = Made(method, state, task, client)
    flaw = flaw_of(client, made.seen, made.p, schema.class_names, made.cut, task.objective)
    refuse(site.name, flaw, anyway)
    others = alone_with(kept.config, rows.data, plan.seed)[0] if baselines and schema.columns else None
    scored = _scored(kept, client, own, made, others)
    measures, y = made.measures, client.test.y.numpy()
    if others is None:
        verdict = judge(measures, y, own.p, made.p, "joined")
    else:
        best, found, _ = others.best
        rival = "tuned network" if best.kind == NETWORK else best.kind
        verdict = judge(measures, y, found, made.p, "joined", f"{rival} of this site alone")
    facts = _facts(site.name, kept, rows)._replace(flaw=flaw or "", verdict=verdict.text)
    groups = () if kept.about.sites is None else kept.about.sites.subgroups
    detailed = [
        with_details(one, client, model.p, model.threshold, schema.class_names, rows.held_out, groups)
        for one, model in (
            (facts, made),
            (facts._replace(method="local", title="training alone", sent=False, flaw=""), own),
        )
    ]
    folder = _write(out / "site-model", kept, schema, method, state, write_card(detailed[0], schema, scored), made.cut)
    card = write_card(detailed[1], schema, scored[:1])
    _write(out / "alone-model", kept, schema, LocalOnly(), own.state, card, own.cut)
    write_held_out(out, rows.held_out, schema, made.p, made.cut, kept.about.sites or Sites())
    return Delivered(folder, kept.about.terms.run, kept.config.methods[0], _progress(kept), verdict, [])


class Made:
    """A model with what it says of the site's own rows."""

    def __init__(self, method: Method, state: Tree, task: Task, client: ClientData) -> None:
        predict = partial(predictions, method, task, state)
        self.state, self.p, self.seen = state, predict(client.test.x), predict(client.train.x)
        self.measures = measures_of(task.objective, task.classes)
        self.threshold = chosen_threshold(self.measures, client, predict)
        if self.threshold is not None:
            self.measures = at_threshold(self.measures, self.threshold.value)

    @property
    def cut(self) -> float | None:
        return None if self.threshold is None else self.threshold.value


def _scored(kept: Kept, client: ClientData, own: Made, made: Made, others: Alone | None) -> list[Scored]:
    """What the card compares: training alone first."""
    seed, name = kept.agreed.plan.seed, kept.config.methods[0]
    found = [scored_one(kept.config, seed, client, "local", own.measures, own.p, own.seen)]
    if name != "local":
        found.append(scored_one(kept.config, seed, client, name, made.measures, made.p, made.seen))
    return found if others is None else [*found, *scored_ways(kept.config, seed, client, others, made.measures)]


def read_kept(site: Site, run: str | None) -> Kept:
    """What the site has of a run; by default of the last one that it answered."""
    chosen = choose_run(site, run)
    about, use = site_result.read_about(site.store, chosen), site_result.read_use(site.store, chosen)
    config = site.with_own_copies(read_config(about.terms.config))
    agreed = agree(about.terms, config)
    if use.rounds == 0:
        return Kept(about, use, config, agreed, agreed.method.init(agreed.task, agreed.plan.seed)[1], {})
    record = site.store.load(chosen, use.rounds, use.digest)
    return Kept(about, use, config, agreed, record.state, record.memory)


def choose_run(site: Site, wanted: str | None) -> str:
    """The last answered run, or the last of a method, or the one whose id begins so."""
    known = site_result.runs_of(site.store)
    if not known:
        raise InputError(f"{site.name} has no model yet", "it has one after its first answered round of a run")
    if wanted is None:
        return known[0]
    methods = {name: _method_of(site, name) for name in known}
    found = [name for name in known if methods[name] == wanted][:1] or [n for n in known if n.startswith(wanted)]
    if len(found) != 1:
        listed = ", ".join(f"{name} ({method})" for name, method in methods.items())
        raise InputError(f"{len(found)} runs of {site.name} are called {wanted!r}", f"runs: {listed}")
    return found[0]


def _method_of(site: Site, run: str) -> str:
    return read_config(site_result.read_about(site.store, run).terms.config).methods[0]


def rows_of(site: Site, kept: Kept) -> Rows | None:
    """None if the rows have changed, or their files are gone."""
    try:
        data, own = site.share(kept.config), site.own(kept.config)
    except FedapaError:
        return None
    if data.fingerprint != kept.about.fingerprint:
        return None
    return Rows(data, None if own is None else own[0].held_out[own[1]])


def model_of(kept: Kept, rows: Rows | None) -> Tree:
    """The state in use: as it was trained, or with what arrived last, as the method is evaluated."""
    method, task, plan = kept.agreed
    if method.evaluated == "after":
        return kept.record
    if rows is None:
        name = kept.config.methods[0]
        raise InputError(f"this site's rows changed, and {name} fits what arrives to them", "restore the files")
    local = Local(task, kept.about.client, kept.use.round, plan.seed, rows.client.train, kept.memory)
    return method.receive(task, kept.record, kept.use.down, local)


def _progress(kept: Kept) -> tuple[int, int]:
    return min(kept.use.round + 1, kept.agreed.plan.rounds), kept.agreed.plan.rounds


def _facts(site: str, kept: Kept, rows: Rows | None) -> Facts:
    method, task, plan = kept.agreed
    known = entry(settings_of(kept.config, kept.config.methods[0])[0])
    account = account_of(method, plan.rounds, simulated=False)
    trained = tested = [0] * max(task.classes, 1)
    if rows is not None:
        trained, tested = (counts_of(part.y, task.classes) for part in (rows.client.train, rows.client.test))
    return Facts(
        site,
        kept.config.methods[0],
        known.title,
        known.stays,
        known.up,
        _progress(kept)[0],
        trained,
        tested,
        {},
        {},
        kept.about.terms.names,
        [] if account is None else account.lines(),
        settings_text(kept.config),
        measures=measures_of(task.objective, task.classes),
    )


def _write(
    folder: Path, kept: Kept, schema: Schema, method: Method, state: Tree, card: str, threshold: float | None = None
) -> Path:
    """In the place of what was there: a model.onnx of another model does not stay."""
    base, settings = settings_of(kept.config, kept.config.methods[0])
    if isinstance(method, LocalOnly):
        base, settings = "local", {}
    about = {
        "rounds": _progress(kept)[0],
        "seed": kept.agreed.plan.seed,
        "data": "own" if kept.about.schema else kept.config.data.source,
        "run": kept.about.terms.run,
        "threshold": threshold,
    }
    site, model = kept.about.terms.names[kept.about.client], kept.config.model.model_dump()
    sites = kept.about.sites or Sites()
    aside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    write_model(make_folder(aside), site, base, settings, model, kept.agreed.task, state, schema, sites, card, about)
    return replace_folder(aside, folder)
