"""A run over real sites: ask who has what, agree on the terms, play the one loop over the grid, write it all down."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from flwr.app import Message, MessageType, RecordDict

from fedapa.config.experiment import read_config
from fedapa.config.schema import Config
from fedapa.errors import InputError, RunError
from fedapa.flower import letters
from fedapa.flower.letters import Description, Question, Terms
from fedapa.flower.pack import DTYPES, Unsound
from fedapa.flower.registry import Coordinator, Enrolled
from fedapa.flower.session import FlowerSession
from fedapa.flower.site import agree
from fedapa.flower.transport import AWAY, POLL, Grid, Lost, Patience, Session
from fedapa.run import loop
from fedapa.run.checkpoint import write_json
from fedapa.run.folder import CONFIG
from fedapa.run.guard import Limits
from fedapa.run.simulate import Progress, Result, play

AGREED = "federation.json"


@dataclass(frozen=True)
class Agreement:
    """What was agreed when a run began; it holds for all of its life."""

    terms: Terms
    descriptions: list[Description]


def conduct(
    coordinator: Coordinator, folder: Path, progress: Progress | None = None, say: Callable[[str], None] | None = None
) -> Result:
    """Run, or continue, what a run folder's config says, with the sites of this coordinator."""
    config = read_config(folder)
    session = FlowerSession(
        coordinator, say or (lambda text: None), most_bytes=1.5 * config.federation.max_upload_mb * 2**20
    )
    finished = False
    try:
        where = partial(places, coordinator)
        result = play_over(session, coordinator.members(), where, config, folder, progress)
        finished = True
    finally:
        session.close(finished)
    return result


def play_over(
    session: Session,
    sites: Sequence[Enrolled],
    where: Callable[[Sequence[str]], Sequence[int | None]],
    config: Config,
    folder: Path,
    progress: Progress | None = None,
) -> Result:
    """The same over any session; ``where`` finds the nodes of sites by name."""
    agreement = read_agreement(folder)
    if agreement is None:
        text = (folder / CONFIG).read_text(encoding="utf-8")
        agreement = make_agreement(session, sites, config, text)
        write_json(folder / AGREED, asdict(agreement))
    terms, described = agreement.terms, agreement.descriptions
    method, task, plan = agree(terms)
    begin = loop.start(method, task, plan.seed)
    wanted = config.federation
    labels = [frozenset(found.labels) for found in described]
    sample = torch.zeros(terms.shape, dtype=DTYPES[described[0].dtype])
    like = loop.Expected(method, task, sample, Limits(wanted.max_growth, labels))
    tests = [(found.test, found.validation) for found in described]
    transport = Grid(session, terms, lambda: where(terms.names), patience(config), tests)
    meta = {
        "label": config.methods[0],
        "seed": str(plan.seed),
        "rounds": str(plan.rounds),
        "evaluated": method.evaluated,
        "partition": hashlib.sha256("".join(found.fingerprint for found in described).encode()).hexdigest()[:16],
        "source": config.data.source,
        "federation": terms.run,
    }
    rows = [
        (i, found.site, found.train, found.test, found.validation, _flags(found)) for i, found in enumerate(described)
    ]
    run = config.run
    return play(
        method, task, transport, plan, begin, like, rows, folder, meta, run.checkpoint_every, progress,
        run.mmap_above_mb,
    )  # fmt: skip


def patience(config: Config) -> Patience:
    f = config.federation
    return Patience(
        f.round_timeout, f.rejoin, f.retries, f.min_replies, f.quorum_timeout, f.quarantine_after,
        f.max_upload_mb * 2**20,
    )  # fmt: skip


def places(coordinator: Coordinator, names: Sequence[str]) -> list[int | None]:
    """Flower's number for every site of a run; None for one that was removed."""
    known = {site.name: site.node for site in coordinator.members()}
    return [known.get(name) for name in names]


def read_agreement(folder: Path) -> Agreement | None:
    path = folder / AGREED
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        described = [letters.read(Description, row) for row in found["descriptions"]]
        return Agreement(letters.read(Terms, found["terms"]), described)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}", "restore it, or run again in a new folder") from None


def make_agreement(session: Session, sites: Sequence[Enrolled], config: Config, text: str) -> Agreement:
    """Ask every site what it has; whoever is not there within the time for rejoining is not part of this run."""
    if not sites:
        raise InputError("no site is enrolled", "`fedapa coordinator add-site NAME` makes a kit for one")
    found = ask_all(session, sites, config, text)
    for description in found:
        if description.fault:
            raise RunError(
                f"site {description.site} cannot take part: {description.fault[:500]}", "mend that, or remove it"
            )
    if len(found) < max(config.federation.min_sites, 1):
        hint = "`fedapa coordinator status` shows who is online; start the others, or lower federation.min_sites"
        raise RunError(f"{len(found)} of {len(sites)} sites are there", hint)
    first = found[0]
    for other in found[1:]:
        for name in ("classes", "shape", "dtype", "mean", "std"):
            if (one := getattr(first, name)) != (two := getattr(other, name)):
                raise RunError(f"the data differ in {name}: {one} at {first.site}, {two} at {other.site}")
    engine = config.run.engine
    if engine in ("auto", "vmap"):
        engine = "native" if engine == "auto" and all(d.native for d in found) else "torch"
    terms = Terms(
        secrets.token_hex(16), text, [d.site for d in found], [d.train for d in found], engine, first.classes,
        first.shape, first.mean, first.std,
    )  # fmt: skip
    return Agreement(terms, found)


def ask_all(session: Session, sites: Sequence[Enrolled], config: Config, text: str) -> list[Description]:
    """Whoever is online has the time of a round for it; the others have the time for rejoining."""
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
                    content = RecordDict({"question": letters.write(Question(site.name, text))})
                    message = Message(content, site.node, MessageType.QUERY, ttl=3600.0)
                    open_[session.push(message)] = site
            for message in session.pull(list(open_)) if open_ else ():
                owner = open_.pop(message.metadata.reply_to_message_id, None)
                if owner is not None and not is_away(message):  # whose answer was cut off is asked again
                    found[owner.name] = _described(owner, message)
        except Lost:
            session.renew()
            open_.clear()
        time.sleep(POLL)
    return [found[site.name] for site in sites if site.name in found]


def is_away(message: Message) -> bool:
    """Flower's word for a node that went away, or ours for an answer that stopped on the way."""
    return message.has_error() and message.error.code == AWAY


def _described(site: Enrolled, message: Message) -> Description:
    if message.has_error():
        raise RunError(f"site {site.name} failed: {str(message.error.reason)[:300]}", "see its log")
    try:
        found = letters.read(Description, message.content.get("description"))
    except Unsound as error:
        raise RunError(
            f"site {site.name} does not say what it has: {error}", "is its fedapa of another version?"
        ) from None
    sound = found.site == site.name and (
        found.fault
        or (
            found.dtype in ("uint8", "float32") and 0 < len(found.shape) <= 4 and min(found.shape) > 0
            and found.train > 0 and found.test >= 0 and found.validation >= 0 and found.classes > 0
            and set(found.labels) <= set(range(found.classes))
        )
    )  # fmt: skip
    if not sound:
        raise RunError(f"site {site.name} describes itself as what it cannot be", "see its log")
    return found


def _flags(found: Description) -> str:
    """Which classes a site has; how many of each it does not tell."""
    return ",".join(str(int(k in found.labels)) for k in range(found.classes))
