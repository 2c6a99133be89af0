"""Onboarding: a client that joins a finished or running federation later, without retraining the others.

The server adds it to its state (`Method.admit`): with FedAPA, its extractor starts as the mean of all others and its
row of weights as itself alone; with methods of one shared model nothing changes. Then it is visited alone, as in
ordinary rounds. Its uploads change the server only if that keeps a state per client: otherwise the shared model would
become the newcomer's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedapa.analysis.personalized_model import in_use, predictions
from fedapa.analysis.statistics import Floats, Interval
from fedapa.config.experiment import Parts, assemble, load_own, read_config
from fedapa.config.load import settings_of
from fedapa.config.sections import Config
from fedapa.core.tree import Tree, find_fault
from fedapa.data.federated import ClientData
from fedapa.data.schema import Schema, unscaled
from fedapa.data.site_description import Sites
from fedapa.data.sites import Own, described
from fedapa.data.sites import assemble as assemble_sites
from fedapa.errors import InputError, RunError
from fedapa.federation.messages import plain
from fedapa.methods.catalogue import entry
from fedapa.methods.local_only import LocalOnly
from fedapa.methods.method import Method, mixing_weights
from fedapa.rounds.round_log import State
from fedapa.rounds.transport import Record, Request, visit
from fedapa.site.export_models import (
    check_simulated,
    counts_of,
    data_dir_of,
    flaw_of,
    plain_schema,
    refuse,
    sites_of,
)
from fedapa.site.local_training import train_alone
from fedapa.site.measures import Measure, chosen_threshold, measures_of
from fedapa.site.model_card import Facts, privacy_of, write_card
from fedapa.site.site_model import write_model
from fedapa.site.verdict import Verdict, judge
from fedapa.store import checkpoint
from fedapa.store.checkpoint import Checkpoint
from fedapa.store.run_folder import kept_engine
from fedapa.training.task import Task

CLIENT = re.compile(r"[^\W_][\w .-]{0,62}")


class Newcomer(NamedTuple):
    """Scores of a new client on its own test rows, by how its model was made."""

    name: str
    rows: tuple[int, int]
    measures: list[Measure]
    scores: dict[str, dict[str, Interval]]  # by what its model is made of, then by measure
    weights: dict[str, float]  # whose models were mixed for it, where the method says so
    folder: Path
    verdict: Verdict  # whether to use its onboarded model, or the one trained alone beside it


def check_client_name(name: str) -> str:
    """It names a client and a folder, so nothing in it leads elsewhere or breaks a listing."""
    if not CLIENT.fullmatch(name):
        hint = "use letters, digits, blanks, '.', '-' and '_', at most 63, and begin with a letter or digit"
        raise InputError(f"{plain(name, 80)!r} cannot name a client", hint)
    return name


def onboard(
    run: Path,
    name: str,
    file: Path,
    out: Path,
    rounds: int | None = None,
    progress: Callable[[int], None] | None = None,
    anyway: bool = False,
) -> Newcomer:
    """Add one client with its own file to a run; its model and the server's new state go to ``out``."""
    check_client_name(name)
    check_simulated(run)
    config = read_config(run)
    parts = assemble(config, kept_engine(config.run.engine, run))
    point = checkpoint.newest(run / "checkpoints")
    if point is None:
        raise InputError(f"{run} has not played a round yet", "`fedapa resume` goes on with it")
    if parts.task.architectures is not None:
        raise InputError("clients of this run have different models", "onboarding needs one model for all")
    if name in parts.task.names:
        raise InputError(f"there is a client called '{name}' already", "give the new one another --name")
    own = _read(run, name, file, parts)
    client, rounds = own.data.clients[0], parts.plan.rounds if rounds is None else rounds
    task = replace(parts.task.with_client(client.name, len(client.train.y)), vectorise=False)
    server, record = _join(parts.method, task, point, client, parts.plan.seed, rounds, progress)
    method, i, seed = parts.method, task.clients - 1, parts.plan.seed
    grown = Checkpoint(State(point.state.round, server, point.state.last), [*point.records, record])
    models = {
        "alone": (LocalOnly(), train_alone(task, client, i, seed, rounds)),
        "mean model": (LocalOnly(), _mean(task, point)),
        "onboarded": (method, in_use(method, task, grown, i, client, seed)),
    }
    y = client.test.y.numpy()
    p = {label: predictions(how, task, state, client.test.x) for label, (how, state) in models.items() if state}
    measures = measures_of(task.objective, task.classes)
    cuts = {
        label: _cut(measures, client, partial(predictions, how, task, state))
        for label, (how, state) in models.items()
        if state
    }
    scores = {label: {m.name: m.own(y, found) for m in measures} for label, found in p.items()}
    matrix = mixing_weights(method, server)
    weights = {} if matrix is None else dict(zip(task.names, matrix[i].tolist(), strict=True))
    sizes = len(client.train.y), len(client.test.y)
    seen = predictions(method, task, models["onboarded"][1], client.train.x)
    flaw = flaw_of(client, seen, p["onboarded"], own.schemas[0].class_names, cuts["onboarded"], task.objective)
    refuse(name, flaw, anyway)
    verdict = judge(measures, y, p["alone"], p["onboarded"], "onboarded")
    facts = _facts(config, parts, own, task, weights, rounds)._replace(flaw=flaw or "", verdict=verdict.text)
    base, settings = settings_of(config, config.methods[0])
    folder = _write(
        out / "site-model",
        config,
        parts,
        own,
        task,
        models["onboarded"][1],
        (base, settings),
        facts._replace(own=scores["onboarded"]),
        cuts["onboarded"],
    )
    alone = facts._replace(
        method="local", title="training alone", sent=False, own=scores["alone"], weights={}, flaw="", privacy=()
    )
    _write(out / "alone-model", config, parts, own, task, models["alone"][1], ("local", {}), alone, cuts["alone"])
    checkpoint.write(out / "checkpoints", grown)
    return Newcomer(name, sizes, measures, scores, weights, folder, verdict)


def _cut(measures: Sequence[Measure], client: ClientData, predict: Callable[[Tensor], Floats]) -> float | None:
    found = chosen_threshold(measures, client, predict)
    return None if found is None else found.value


def _read(run: Path, name: str, file: Path, parts: Parts) -> Own:
    """The new client's rows by the run's own schema; scaled as its sites are."""
    config = read_config(run)
    if config.sites is None:
        return assemble_sites(Sites({name: str(file)}), parts.plan.seed, agreed=plain_schema(parts))
    sites = described(sites_of(config), data_dir_of(config))
    schema: Schema = load_own(config, parts.plan.seed).schemas[0]
    schema = schema if sites.scaling == "federated" else unscaled(schema)
    alone = replace(sites, files={name: str(file)}, source=None, site_column=None, schema_file=None)
    return assemble_sites(alone, parts.plan.seed, agreed=schema)


def _join(
    method: Method,
    task: Task,
    point: Checkpoint,
    client: ClientData,
    seed: int,
    rounds: int,
    progress: Callable[[int], None] | None,
) -> tuple[Tree, Record]:
    server, i = method.admit(task, point.state.server), task.clients - 1
    keeps_rows = any(server[name].shape != leaf.shape for name, leaf in point.state.server.items())
    record = Record(method.init(task, seed)[1], {})
    for t in range(rounds):
        down = method.send(task, server, i)
        request = Request(point.state.round + t, i, _given(down), train=True, evaluate=False)
        record, reply = visit(method, task, client, record, request, seed)
        if fault := reply.fault or (find_fault(reply.up, reply.up) if reply.up else None):
            raise RunError(f"{client.name}: {fault}", "lower training.lr")
        if keeps_rows and reply.up:
            server = method.absorb(task, server, [i], [down], [reply.up])
        if progress is not None:
            progress(t)
    return server, record


def _given(down: Tree) -> Callable[[], Tree]:
    return lambda: down


def _mean(task: Task, point: Checkpoint) -> Tree:
    """The plain mean of all other clients' models, where every client has a whole one."""
    states = [record.state for record in point.records]
    if not all("theta" in state and "phi" in state for state in states):
        return {}
    return {key: torch.stack([state[key] for state in states]).mean(0) for key in ("theta", "phi")}


def _facts(config: Config, parts: Parts, own: Own, task: Task, weights: dict[str, float], rounds: int) -> Facts:
    client, known = own.data.clients[0], entry(settings_of(config, config.methods[0])[0])
    trained, tested = (counts_of(part.y, own.data.classes) for part in (client.train, client.test))
    return Facts(
        client.name,
        config.methods[0],
        f"{known.title}, joined later,",
        known.stays,
        known.up,
        rounds,
        trained,
        tested,
        {},
        weights,
        task.names,
        privacy_of(parts.method, rounds),
        measures=measures_of(task.objective, task.classes),
        simulated=True,
    )


def _write(
    folder: Path,
    config: Config,
    parts: Parts,
    own: Own,
    task: Task,
    state: Tree,
    method: tuple[str, dict[str, Any]],
    facts: Facts,
    threshold: float | None,
) -> Path:
    schema = own.schemas[0]
    sites = Sites() if config.sites is None else described(sites_of(config), data_dir_of(config))
    about = {"rounds": facts.rounds, "seed": parts.plan.seed, "data": parts.data.name, "threshold": threshold}
    card, model = write_card(facts, schema, []), config.model.model_dump()
    return write_model(folder, facts.site, *method, model, task, state, schema, sites, card, about)
