"""From a site's kit to its model: made at the site from its own states, with no coordinator and no other site.

site-model/       the model of the last answered request of a run
alone-model/      the same recipe trained at the site alone, to compare and to fall back to
held-out.csv      the test rows, and predictions.csv what the model says about them; of tables
"""

from __future__ import annotations

from collections.abc import Callable
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
from fedapa.site.export_models import counts_of, flaw_of, prediction_text, refuse, settings_text, table_text
from fedapa.site.export_models import schema_of_samples as of_samples
from fedapa.site.local_training import train_alone
from fedapa.site.measures import measures_of
from fedapa.site.model_card import Facts, write_card
from fedapa.site.silo_scores import Scored
from fedapa.site.site_model import write_model
from fedapa.site.verdict import Verdict, judge
from fedapa.store.atomic_io import make_folder, write_atomically
from fedapa.training.local import Local

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
) -> Delivered:
    """Write the model of a run (the last one that was answered) below ``out``, by default into the kit."""
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
    client, i = rows.client, kept.about.client
    alone = train_alone(task, client, i, plan.seed, plan.rounds, training_of(kept.config, "local"), progress)
    p = predictions(method, task, state, client.test.x)
    mine = predictions(LocalOnly(), task, alone, client.test.x)
    flaw = flaw_of(client, predictions(method, task, state, client.train.x), p, schema.class_names)
    refuse(site.name, flaw, anyway)
    measures, y = measures_of(task.objective), client.test.y.numpy()
    verdict = judge(measures, y, mine, p, "joined")
    share = len(y) / (len(y) + len(client.train.y))
    scored = [
        Scored(name, plan.seed, site.name, len(y), share, {m.name: m.of(y, found) for m in measures})
        for name, found in (("local", mine), (kept.config.methods[0], p))
    ]
    facts = _facts(site.name, kept, rows)._replace(
        flaw=flaw or "", verdict=verdict.text, own={m.name: m.own(y, p) for m in measures}, measures=measures
    )
    folder = _write(out / "site-model", kept, schema, method, state, write_card(facts, schema, scored))
    own = facts._replace(
        method="local", title="training alone", sent=False, own={m.name: m.own(y, mine) for m in measures}
    )
    _write(out / "alone-model", kept, schema, LocalOnly(), alone, write_card(own, schema, scored[:1]))
    if rows.held_out is not None:
        names = [str(line) for line in rows.held_out.lines]
        write_atomically(out / "held-out.csv", table_text(rows.held_out).encode())
        write_atomically(out / "predictions.csv", prediction_text(names, schema, p).encode())
    return Delivered(folder, kept.about.terms.run, kept.config.methods[0], _progress(kept), verdict, [])


def read_kept(site: Site, run: str | None) -> Kept:
    """What the site has of a run; by default of the last one that it answered."""
    chosen = choose_run(site, run)
    about, use = site_result.read_about(site.store, chosen), site_result.read_use(site.store, chosen)
    config, agreed = read_config(about.terms.config), agree(about.terms)
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
        measures=measures_of(task.objective),
    )


def _write(folder: Path, kept: Kept, schema: Schema, method: Method, state: Tree, card: str) -> Path:
    base, settings = settings_of(kept.config, kept.config.methods[0])
    if isinstance(method, LocalOnly):
        base, settings = "local", {}
    about = {
        "rounds": _progress(kept)[0],
        "seed": kept.agreed.plan.seed,
        "data": "own" if kept.about.schema else kept.config.data.source,
        "run": kept.about.terms.run,
    }
    site, model = kept.about.terms.names[kept.about.client], kept.config.model.model_dump()
    sites = kept.about.sites or Sites()
    make_folder(folder)
    return write_model(folder, site, base, settings, model, kept.agreed.task, state, schema, sites, card, about)
