"""Noised uploads of a site: each is counted, drawn once, kept beside its state, and then sent.

Two noisings of one update reveal more than one. So a repeated request is answered by the bytes that were kept, also
after a crash or a restart. A site answers at most as many different requests of a run as the run has rounds, because
epsilon was computed for that many. The order is: count the request, draw the upload, keep it, send it. A training that
fails is an answer, too: with weights of its choice a coordinator makes it fail if and only if a row has some value.
After a crash at any point, all that was sent is counted, and nothing that was sent is drawn again uncounted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedapa.core.tree import Tree, digest
from fedapa.federation.messages import Disclosed, TrainReply, TrainRequest
from fedapa.federation.site_store import UPLOAD
from fedapa.store.atomic_io import make_folder, write_json
from fedapa.store.checkpoint import read_tree, write_tree

COUNTED = "releases.json"
Upload = tuple[TrainReply, Tree | None]


def request_of(ask: TrainRequest, down: Tree) -> str:
    """Identifies a request: it is the same if state, round and model from the server are."""
    return hashlib.sha256(f"{ask.round} {ask.accepted} {ask.digest} {digest(down)}".encode()).hexdigest()


class Releases:
    """The uploads of one run at one site: at most ``most`` different requests, all under one ``config``."""

    def __init__(self, place: Path, config: str, most: int) -> None:
        self.place, self.most = place, most
        self._config = hashlib.sha256(config.encode()).hexdigest()

    def answer(self, ask: TrainRequest, down: Tree, draw: Callable[[], Upload]) -> Upload:
        """The upload kept for this request, else a new one from ``draw``, counted before it is drawn and then kept."""
        request, (counted, begun) = request_of(ask, down), self._counted()
        path = self.place / UPLOAD.format(ask.round + 1, request[:16])
        if not path.is_file():
            if request != begun:  # else nothing has left for it: it failed or was killed before the upload was kept
                self._check_room(counted)
                counted, begun = [*counted, request], request
                self._count(counted, begun)
            write_tree(path, _to_tree(*draw()))
        if begun == request:
            self._count(counted)
        return _from_tree(read_tree(path))  # from the disk the first time, too: the same order and bytes

    def _check_room(self, counted: list[str]) -> None:
        if len(counted) >= self.most:
            raise Disclosed(
                f"this site has answered {len(counted)} requests in this run, as many as epsilon was promised for",
                "start a new run; it spends a new epsilon",
            )

    def _counted(self) -> tuple[list[str], str]:
        """Requests that an answer may have left for, one twice if it was drawn twice; and one that was begun."""
        path = self.place / COUNTED
        if not path.is_file():
            return [], ""
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            config, requests = found["config"], [str(name) for name in found["requests"]]
            begun = str(found.get("begun", ""))
        except (OSError, ValueError, KeyError, TypeError) as error:
            said = "the count of this site's uploads cannot be read"
            raise Disclosed(said, "it sends no more uploads in this run") from error
        if config != self._config:
            raise Disclosed("the run's config changed after this site's first noised upload", "start a new run")
        return requests, begun

    def _count(self, requests: list[str], begun: str = "") -> None:
        write_json(make_folder(self.place) / COUNTED, {"config": self._config, "requests": requests, "begun": begun})


def _to_tree(answer: TrainReply, up: Tree | None) -> Tree:
    words = torch.tensor(list(json.dumps(asdict(answer)).encode()), dtype=torch.uint8)
    return {"answer": words, **{f"up/{name}": leaf for name, leaf in (up or {}).items()}}


def _from_tree(tree: Tree) -> Upload:
    answer = TrainReply(**json.loads(bytes(tree["answer"].tolist())))
    if not answer.trained:
        return answer, None
    return answer, {name.removeprefix("up/"): leaf for name, leaf in tree.items() if name != "answer"}
