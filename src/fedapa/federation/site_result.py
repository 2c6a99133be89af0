"""What a site keeps of a run beside its states, so that its model can be made there, alone and at any time.

about.json              the run's terms, the site's number in it, and how its rows become numbers
in-use.safetensors      which state is in use after the last request that was answered, and what arrived with that
                        request, where the method is used as it arrives

ended                   there once the last round was answered

All are written before the answer is sent. So a site that was killed, that left, or whose coordinator is gone has the
model of its last answered request.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter

from fedapa.core.tree import Tree
from fedapa.data import schema as schemas
from fedapa.data.schema import Schema
from fedapa.data.site_description import Sites
from fedapa.errors import FedapaError, InputError
from fedapa.federation import messages
from fedapa.federation.kit import ENDED, IN_USE
from fedapa.federation.messages import Disclosed, Terms, TrainRequest, Unsound
from fedapa.federation.site_store import Store, reason_of
from fedapa.store.atomic_io import make_folder, write_atomically, write_json
from fedapa.store.checkpoint import read_tree, write_tree

ABOUT = "about.json"
DOWN, WORDS = "down/", "words"
SITES = TypeAdapter(Sites)


@dataclass(frozen=True)
class About:
    terms: Terms
    client: int
    fingerprint: str  # of the rows; it does not leave the site
    schema: Schema | None = None  # None: samples of a shipped data set
    sites: Sites | None = None  # how the site's files are written


class InUse(NamedTuple):
    """The state after ``rounds`` rounds is in use; with ``down`` installed in it, where there is some."""

    round: int  # of the last request that was answered
    rounds: int  # 0: the common start
    digest: str
    down: Tree


def write_about(store: Store, about: About) -> None:
    content = {
        "terms": asdict(about.terms),
        "client": about.client,
        "fingerprint": about.fingerprint,
        "schema": None if about.schema is None else schemas.to_json(about.schema),
        "sites": None if about.sites is None else SITES.dump_python(about.sites, mode="json"),
    }
    try:
        write_json(make_folder(store.place(about.terms.run)) / ABOUT, content)
    except FedapaError as error:
        raise Disclosed(f"cannot write what was agreed: {reason_of(error)}", "is the disk full?") from error


def read_about(store: Store, run: str) -> About:
    path = store.place(run) / ABOUT
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        schema = None if found["schema"] is None else schemas.from_json(found["schema"], str(path))
        sites = None if found["sites"] is None else SITES.validate_python(found["sites"])
        terms = messages.read(Terms, found["terms"])
        return About(terms, int(found["client"]), str(found["fingerprint"]), schema, sites)
    except OSError as error:
        hint = "name another run with --run; runs of older versions did not keep what it takes"
        raise InputError(f"cannot read {path}: {error.strerror}", hint) from None
    except (ValueError, KeyError, TypeError, RecursionError, Unsound) as error:
        raise InputError(f"{path} is damaged: {error}", "restore the kit's folder from a backup") from None


def note_use(store: Store, run: str, use: InUse, rounds: int) -> None:
    """Which state is in use after an answer; ``rounds`` are those of the run."""
    words = torch.tensor(list(json.dumps([use.round, use.rounds, use.digest]).encode()), dtype=torch.uint8)
    tree = {WORDS: words, **{f"{DOWN}{name}": leaf for name, leaf in use.down.items()}}
    try:
        write_tree(make_folder(store.place(run)) / IN_USE, tree)
        if use.round >= rounds - 1 and not (ended := store.place(run) / ENDED).exists():
            write_atomically(ended, b"")
    except FedapaError as error:
        raise Disclosed(f"cannot write which model is in use: {reason_of(error)}", "is the disk full?") from error


def read_use(store: Store, run: str) -> InUse:
    path = store.place(run) / IN_USE
    if not path.is_file():
        raise InputError(f"this site has answered no request of run {run} yet", "name another run with --run")
    tree = read_tree(path)
    round, rounds, digest = json.loads(bytes(tree.pop(WORDS).tolist()))
    return InUse(round, rounds, digest, {name.removeprefix(DOWN): leaf for name, leaf in tree.items()})


def use_of(is_as_it_arrives: bool, ask: TrainRequest, down: Tree, saved: str) -> InUse:
    """What is in use after a request; ``saved`` is the digest of the state that its training made, if it trained."""
    if is_as_it_arrives:
        return InUse(ask.round, ask.accepted, ask.digest, down)
    return InUse(ask.round, ask.round + 1 if saved else ask.accepted, saved or ask.digest, {})


def runs_of(store: Store) -> list[str]:
    """The runs with a model, the one that was answered last first."""
    found = [path for path in store.folder.glob(f"*/{IN_USE}") if (path.parent / ABOUT).is_file()]
    return [path.parent.name for path in sorted(found, key=lambda path: -path.stat().st_mtime)]
