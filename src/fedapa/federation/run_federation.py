"""A run over real sites: ask for their data, agree on the terms, run the round loop, write the run folder."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from fedapa import sinks
from fedapa.config.experiment import config_hash
from fedapa.config.load import as_table
from fedapa.config.sections import Config
from fedapa.core.tree import DTYPES
from fedapa.data.federated import target_scale
from fedapa.data.sources import OWN
from fedapa.errors import InputError, RunError
from fedapa.federation import enrolment
from fedapa.federation.enrolment import NEVER, Agreement, Enrolment, Members, places, read_agreement
from fedapa.federation.messages import Description, Terms
from fedapa.federation.registry import Enrolled
from fedapa.federation.remote_transport import POLL, RemoteTransport, Session, SessionLost
from fedapa.federation.site_agent import agree
from fedapa.rounds import loop
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.loop import Context
from fedapa.rounds.upload_limits import Limits
from fedapa.simulation import Progress, Result, play
from fedapa.store.run_folder import CONFIG, lock
from fedapa.store.run_settings import EXPERIMENT

AGREE = "agree on a layout: `fedapa site schema` at one site, then `fedapa coordinator new-config`"


def play_over(
    session: Session,
    members: Members,
    config: Config,
    folder: Path,
    progress: Progress | None = None,
) -> Result:
    """Run or resume a run folder; ``members`` are the current members of the federation."""
    with lock(folder):  # of two processes that start at once, one is refused
        agreement = read_agreement(folder)
        if agreement is None:
            text = (folder / CONFIG).read_text(encoding="utf-8")
            agreement = make_agreement(session, members(), config, text)
            enrolment.write_agreement(folder, agreement)
    wanted = config.federation
    membership = Enrolment(session, members, folder, agreement, wanted.late_sites, wanted.max_share)
    terms, described = agreement.first()
    method, task, plan = agree(terms)
    begin = loop.start(method, task, plan.seed)
    labels = [frozenset(found.labels) for found in described]
    sample = torch.zeros(terms.shape, dtype=DTYPES[described[0].dtype])
    limits = Limits(wanted.max_growth, wanted.max_ratio, labels, wanted.min_cosine)
    expected = Expected(method, task, sample, limits)
    tests = [(found.test, found.validation) for found in described]
    transport = RemoteTransport(
        session, terms, lambda: places(members(), transport.terms.names), wanted, tests, task.objective.scores
    )
    meta = {
        "label": config.methods[0],
        "seed": str(plan.seed),
        "rounds": str(plan.rounds),
        "evaluated": method.evaluated,
        "partition": hashlib.sha256("".join(found.fingerprint for found in described).encode()).hexdigest()[:16],
        "source": OWN if described[0].layout else config.data.source,
        "config": config_hash(config),
        EXPERIMENT: json.dumps(as_table(config)),
        "federation": terms.run,
    }
    rows = [enrolment.newcomer(found).row(i) for i, found in enumerate(described)]
    run = config.run
    told = sinks.Started(folder.name, folder, sinks.flat(as_table(config)))
    with sinks.logging(run.log, told, task.objective.scores, progress) as hear:
        return play(
            Context(method, task, transport, plan, expected),
            begin,
            rows,
            folder,
            meta,
            run.checkpoint_every,
            hear,
            run.mmap_above_mb,
            membership,
        )


def make_agreement(session: Session, sites: Sequence[Enrolled], config: Config, text: str) -> Agreement:
    """Ask every site for its data. Sites that do not come online within the rejoin timeout are left out of the run."""
    if not sites:
        raise InputError("no site is enrolled", "`fedapa coordinator add-site NAME` makes a kit for one")
    found = ask_all(session, sites, config, text)
    for description in found:
        if description.fault:
            raise RunError(f"site {description.site} cannot take part: {description.fault}", "fix that, or remove it")
    if len(found) < max(config.federation.min_sites, 1):
        hint = "`fedapa coordinator status` shows who is online; start the others, or lower federation.min_sites"
        raise RunError(f"{len(found)} of {len(sites)} sites are online", hint)
    first = found[0]
    for other in found[1:]:
        if difference := enrolment.differ(first, other):
            raise RunError(difference, AGREE if first.layout != other.layout else "")
    if fault := enrolment.oversized(found, config.federation.max_share):
        raise RunError(fault, "if it has: raise federation.max_share; otherwise remove the site")
    if fault := enrolment.outside(found, None if config.layout is None else config.layout.target_range):
        raise RunError(fault, "ask that site, or remove it")
    engine = config.run.engine
    if engine in ("auto", "vmap"):
        engine = "native" if engine == "auto" and all(d.native for d in found) else "torch"
    terms = Terms(
        secrets.token_hex(16),
        text,
        [d.site for d in found],
        [d.train for d in found],
        engine,
        first.classes,
        first.shape,
        first.mean,
        first.std,
        [] if first.classes else list(target_scale([(d.target[0], d.target[1], d.target[2]) for d in found])),
    )
    return Agreement(terms, found, [0] * len(found), [NEVER] * len(found))


def ask_all(session: Session, sites: Sequence[Enrolled], config: Config, text: str) -> list[Description]:
    """Sites that are online have a round's timeout to answer; the others have the rejoin timeout."""
    begin, wanted = time.monotonic(), config.federation
    open_: dict[str, Enrolled] = {}
    found: dict[str, Description] = {}
    while len(found) < len(sites):
        if time.monotonic() - begin > (max(wanted.rejoin, wanted.round_timeout) if open_ else wanted.rejoin):
            break
        try:
            nodes = session.nodes()
            asked = {site.name for site in open_.values()} | found.keys()
            for site in sites:
                if site.name not in asked and site.node in nodes and nodes[site.node].online:
                    open_[session.push(enrolment.question(site, text))] = site
            for message in session.pull(list(open_)) if open_ else ():
                owner = open_.pop(message.reply_to, None)
                if owner is not None and not enrolment.is_away(message):  # asked again if its answer was cut off
                    found[owner.name] = enrolment.described_by(owner, message)
        except SessionLost:
            session.renew()
            open_.clear()
        time.sleep(POLL)
    return [found[site.name] for site in sites if site.name in found]
