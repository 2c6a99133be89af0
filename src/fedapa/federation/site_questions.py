"""Which questions about its rows a site answers: those of one split, so many different ones, and so many scores.

The seed of a run decides which rows are for training. Sums over the train rows of many splits can be solved for single
rows, and a row that is for training under one seed is scored under another. So a site keeps to the first seed that it
was asked for, unless its wire.json or its settings list others. Every config that rows are read for is a question.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from fedapa.errors import FedapaError, InputError
from fedapa.federation.messages import Disclosed, Refused, digest_of
from fedapa.federation.site_settings import CHANGE
from fedapa.federation.site_store import reason_of
from fedapa.store.atomic_io import make_folder, write_json

FILE, SCORED = "questions.json", "scored.json"  # beside the states of all runs; among those of one
ALLOW = "the site can allow it: fedapa site join KIT --allow-seed SEED, once for every seed"


def check_scored(run: Path, round: int, request: str, most: int) -> None:
    """Refuse to score more than ``most`` models in a round: each score is an answer about test rows. An honest run asks
    for one; a resumed one asks again, for another where other sites took part."""
    path = run / SCORED
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        scored = [str(name) for name in found.get(str(round), [])]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise Disclosed("what this site has scored in this run cannot be read", "start a new run") from error
    if request[:16] in scored:
        return
    if len(scored) >= most:
        said = f"this site has scored {len(scored)} models in round {round + 1}, its limit max_scored"
        raise Refused(said, CHANGE)
    _write(path, {**found, str(round): [*scored, request[:16]]})


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        write_json(make_folder(path.parent) / path.name, content)
    except FedapaError as error:
        raise Disclosed(f"cannot write what it was asked: {reason_of(error)}", "is the disk full?") from error


class Answered(NamedTuple):
    seeds: dict[str, int]  # the seed that a config at the site was first split by
    asked: list[str]  # hashes of the configs that rows were read for


class Questions:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def check(self, text: str, most: int, seed: int, own: Path | None, allowed: Collection[int]) -> None:
        """Refuse one question more than ``most``, and another split of the rows that the config ``own`` describes. It
        is noted before it is answered."""
        found = self._read()
        seeds, asked = dict(found.seeds), [*found.asked]
        if own is not None:
            seeds |= self._kept(seeds, seed, _mark(own), allowed)
        if (question := digest_of(text)[:32]) not in asked:
            if len(asked) >= most:
                said = (
                    f"this site has answered {len(asked)} different questions about its rows, its limit max_questions"
                )
                raise Refused(said, CHANGE)
            asked.append(question)
        if (noted := Answered(seeds, asked)) != found:
            _write(self.path, noted._asdict())

    def _kept(self, seeds: dict[str, int], seed: int, mark: str, allowed: Collection[int]) -> dict[str, int]:
        """The seed to note for this config, once this one may be used."""
        known = {*allowed, *([seeds[mark]] if mark in seeds else [])}
        if known and seed not in known:
            listed = ", ".join(map(str, sorted(known)))
            raise Refused(f"the run wants seed {seed}, this site splits its rows by seed {listed} alone", ALLOW)
        return {} if known else {mark: seed}

    def _read(self) -> Answered:
        if not self.path.is_file():
            return Answered({}, [])
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            seeds = {str(mark): int(seed) for mark, seed in found["seeds"].items()}
            return Answered(seeds, [str(name) for name in found["asked"]])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            said = "what this site was asked before cannot be read"
            raise Disclosed(said, f"the site restores {FILE} in its kit's states from a backup") from error


def _mark(own: Path) -> str:
    """Tells configs at the site apart. Only the site writes them, so an edited one may be split anew."""
    try:
        return hashlib.sha256(str(own).encode() + b"\0" + own.read_bytes()).hexdigest()[:32]
    except OSError as error:
        raise InputError(f"cannot read {own}: {error.strerror}", "join again with --data") from None
