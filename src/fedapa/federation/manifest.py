"""wire.json: every tensor that a site agreed to send, and the check that nothing else leaves.

A site writes the file before it joins, from messages that were really made on its own data, and its client sends an
upload only if names, shapes and types are listed. The seal is a hash of the file's content: it tells an edited file
from the one that was written, so that a list is changed by a new dry run and not by hand.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedapa.core.tree import Tree, count_bytes
from fedapa.errors import InputError
from fedapa.methods.privacy import NOT_COVERED, Account
from fedapa.store.checkpoint import write_json

FORMAT = "fedapa-wire-1"


class Refused(InputError):
    """The client will not send this."""


def listed(tree: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """A message as rows: name, shape, type, bytes."""
    return [
        {"name": name, "shape": list(leaf.shape), "dtype": _type(leaf), "bytes": leaf.numel() * leaf.element_size()}
        for name, leaf in tree.items()
    ]


def agreement(
    site: str, method: str, exchanges: Sequence[tuple[Tree, Tree]], once: Sequence[str], noise: Account | None = None
) -> dict[str, Any]:
    """The content of wire.json: the different messages up and down, what leaves once at enrolment, the noise."""
    ups, downs = ([listed(pair[side]) for pair in exchanges] for side in (1, 0))
    content = {
        "format": FORMAT,
        "site": site,
        "method": method,
        "up": _different(ups),
        "down": _different(downs),
        "bytes_up_per_round": max((count_bytes(up) for _, up in exchanges), default=0),
        "once": list(once),
    }
    if noise is not None:
        content["noise"] = json.loads(noise.to_json()) | {"not covered": list(NOT_COVERED)}
    return {**content, "seal": seal(content)}


def seal(content: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in content.items() if key != "seal"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def write(path: Path, content: Mapping[str, Any]) -> None:
    write_json(path, content)


def read(path: Path) -> dict[str, Any]:
    """A wire.json that nobody has touched since it was written."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "`fedapa site dry-run site.toml` writes one"
        raise InputError(f"cannot read {path}: {error.strerror}", hint) from None
    except ValueError as error:
        raise InputError(
            f"{path} is not JSON ({error})", "delete it; fedapa site dry-run site.toml writes one"
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path} is not a wire.json", "delete it; fedapa site dry-run site.toml writes one")
    if found.get("seal") != seal(found):
        hint = "delete it and write a new one: fedapa site dry-run site.toml"
        raise InputError(f"{path} was edited after it was written", hint)
    return found


def check(wire: Mapping[str, Any], method: str, up: Mapping[str, Tensor]) -> None:
    """Refuse an upload that holds anything which is not listed; a client calls this before it sends."""
    check_method(wire, method)
    faults = [_fault(up, message) for message in wire["up"]]
    if None not in faults:
        reason = faults[0] if faults else "nothing may leave"
        raise Refused(f"not sent: {reason}", "wire.json lists what may leave; a dry run writes a new one")


def check_method(wire: Mapping[str, Any], method: str) -> None:
    if wire["method"] != method:
        raise Refused(
            f"the server plays {method}, this site agreed to {wire['method']}", "make a new dry run before you join"
        )


def check_noise(wire: Mapping[str, Any], noise: Account | None) -> None:
    """Refuse a run whose uploads are protected less than the site agreed to: less noise, or more rounds of it."""
    if noise is None:
        return
    agreed = wire.get("noise") or {"noise": math.inf, "rounds": 0}  # written before noise was listed
    for what, found, worse in (
        ("noise", noise.noise, noise.noise < agreed["noise"]),
        ("rounds", noise.rounds, noise.rounds > agreed["rounds"]),
    ):
        if worse:
            hint = "epsilon would be larger; make a new dry run before you join"
            raise Refused(f"the server wants {what} = {found:g}, this site agreed to {agreed[what]:g}", hint)


def _fault(up: Mapping[str, Tensor], message: Sequence[Mapping[str, Any]]) -> str | None:
    """Why an upload is not this listed message."""
    allowed = {row["name"]: row for row in message}
    for name, leaf in up.items():
        if name not in allowed:
            return f"{name} is not listed"
        for what, found in (("shape", list(leaf.shape)), ("dtype", _type(leaf))):
            if found != allowed[name][what]:
                return f"{name} has {what} {found}, listed is {allowed[name][what]}"
    return None


def _type(leaf: Tensor) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def _different(messages: Sequence[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = []
    for message in messages:
        if message not in found:
            found.append(message)
    return found
