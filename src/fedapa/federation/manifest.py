"""wire.json: every tensor that a site agreed to send, under which terms, and the check that nothing else leaves.

A site writes the file before it joins, from messages that were really made on its own data, and its client sends an
upload only if names, shapes and types are listed. The same tensors can tell much or little: with another rate, batch or
noise they are other messages. So the file also holds every setting that decides what the site computes, and a run that
differs in one of them is refused by its name. The seal is a hash of the file's content: it tells an edited file
from the one that was written, so that a list is changed by a new dry run and not by hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from fedapa.config.experiment import ASIDE
from fedapa.config.load import settings_of, training_of
from fedapa.config.sections import Config
from fedapa.core.hyper_parameters import plain
from fedapa.core.tree import Tree, count_bytes
from fedapa.errors import InputError
from fedapa.federation.messages import Description, Refused, TrainReply
from fedapa.methods.catalogue import make, own_code
from fedapa.methods.privacy import NOT_COVERED, Account
from fedapa.plugins import fingerprint
from fedapa.store.checkpoint import write_json

FORMAT, SEVERAL = "fedapa-wire-2", "fedapa-wires-2"  # of one method; of several, each as if alone
NEW = "make a new dry run before you join"
# Sections that are not pinned: the data and the coordinator's timeouts. The method is pinned as resolved, the layout
# by its hash. A run has one of the seeds that are listed: another one would be another split of the rows.
SEEDS = "seeds"
NOT_PINNED = {"methods", "method", "data", "sites", "layout", "federation", "attack"}
# A description of every field that a site sends beside its tensors.
SAID = {
    "site": "the site's name",
    "fault": "why it cannot take part, or why a training failed, without values, columns or paths",
    "train": "number of train rows",
    "test": "number of test rows",
    "validation": "number of validation rows",
    "classes": "number of classes",
    "shape": "shape of a sample",
    "dtype": "type of a sample",
    "mean": "mean that samples are scaled with, where all sites scale alike",
    "std": "standard deviation that samples are scaled with, where all sites scale alike",
    "target": "count, sum and sum of squares of targets that are numbers",
    "labels": "which classes it has",
    "fingerprint": "hash of its rows, keyed by a secret of the site",
    "native": "whether the native engine is there",
    "layout": "hash of names, kinds, units and codes of its columns and of its classes, in order",
    "run": "the run that it answers",
    "round": "the round that it answers",
    "trained": "whether an upload is enclosed",
    "digest": "hash of the state that the upload came from",
    "before": "sum and count of every score (right answers, losses) on test and validation rows before training",
    "after": "the same after training",
    "train_loss": "sum and count of the loss of the batches that it trained on; nothing where uploads are noised",
    "seconds": "how long the visit took",
    "train_seconds": "how long training took",
}
# What the connection itself tells; the coordinator's audit log keeps some of it.
CONNECTION = {
    "key": "the site's public key, by which Flower knows it",
    "address": "the network address that it connects from",
    "heartbeat": "when it is online, by a sign of life every few seconds",
    "messages": "when every message is fetched and answered, and how large it is",
}


def said() -> dict[str, dict[str, str]]:
    """The fields that this version sends beside the tensors, and when."""
    when = {"once": Description, "every round": TrainReply}
    return {
        **{word: {f.name: SAID[f.name] for f in fields(kind)} for word, kind in when.items()},
        "while joined": dict(CONNECTION),
    }


def pinned(config: Config) -> dict[str, Any]:
    """Every setting of a run of one method that decides what a site computes and sends, by name. New sections and keys
    are among them unless they are listed as harmless."""
    (name,) = config.methods
    base, settings = settings_of(config, name)
    found = config.model_dump(mode="json", exclude=NOT_PINNED)
    found["run"] = {key: value for key, value in found["run"].items() if key not in ASIDE["run"]}
    found["training"] = asdict(training_of(config, name))
    found["method"] = plain(make(base, **settings))
    for section, key in (("model", "name"), ("objective", "name"), ("training", "augment"), ("training", "trainer")):
        found[section][key] = _whatever_its_folder(found[section][key])
    if (own := own_code(base)) is not None:  # another text under the same name is another method
        found["method"]["code"] = fingerprint(own)
    return dict(_flat(json.loads(json.dumps(found))))


def _whatever_its_folder(code: Any) -> Any:
    """Own code in a file by the name and the fingerprint of the file: its folder is another one at every party."""
    if isinstance(code, dict):
        return {key: _whatever_its_folder(name) for key, name in code.items()}
    if isinstance(code, list):
        return [_whatever_its_folder(name) for name in code]
    place, _, name = code.rpartition(":")
    return f"{Path(place).name}:{name} {fingerprint(code)}" if place.endswith(".py") else code


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in sorted(table.items()):
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def listed(tree: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """A message as rows: name, shape, type, bytes."""
    return [
        {"name": name, "shape": list(leaf.shape), "dtype": _type(leaf), "bytes": leaf.numel() * leaf.element_size()}
        for name, leaf in tree.items()
    ]


def agreement(
    site: str,
    method: str,
    exchanges: Sequence[tuple[Tree, Tree]],
    once: Sequence[str],
    noise: Account | None = None,
    terms: Mapping[str, Any] | None = None,
    layout: str = "",
) -> dict[str, Any]:
    """The content of wire.json: the different messages up and down, what else is said, the noise and the terms."""
    ups, downs = ([listed(pair[side]) for pair in exchanges] for side in (1, 0))
    content = {
        "format": FORMAT,
        "site": site,
        "method": method,
        "up": _different(ups),
        "down": _different(downs),
        "bytes_up_per_round": max((count_bytes(up) for _, up in exchanges), default=0),
        "once": list(once),
        "said": said(),
        "terms": dict(terms or {}),
        "layout": layout,
    }
    if noise is not None:
        content["noise"] = json.loads(noise.to_json()) | {"not covered": list(NOT_COVERED)}
    return {**content, "seal": seal(content)}


def together(agreements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of one wire.json for all methods of a run: that of the only one, or all of them by name."""
    if len(agreements) == 1:
        return dict(agreements[0])
    content = {"format": SEVERAL, "methods": {one["method"]: dict(one) for one in agreements}}
    return {**content, "seal": seal(content)}


def seal(content: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in content.items() if key != "seal"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def write(path: Path, content: Mapping[str, Any]) -> None:
    write_json(path, content)


def read(path: Path) -> dict[str, Any]:
    """Read a wire.json; one that was edited is refused."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "`fedapa site dry-run site.toml` writes one"
        raise InputError(f"cannot read {path}: {error.strerror}", hint) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON ({error})", "delete it; fedapa site dry-run site.toml writes one"
        ) from None
    if not isinstance(found, dict) or found.get("format") not in (FORMAT, SEVERAL):
        raise InputError(
            f"{path} is not a wire.json of this version", "delete it; fedapa site dry-run site.toml writes one"
        )
    if found.get("seal") != seal(found):
        hint = "delete it and write a new one: fedapa site dry-run site.toml"
        raise InputError(f"{path} was edited after it was written", hint)
    return found


def check(wire: Mapping[str, Any], method: str, up: Mapping[str, Tensor]) -> None:
    """Refuse an upload with anything that is not listed. A client calls this before it sends."""
    faults = [_fault(up, message) for message in _for_method(wire, method)["up"]]
    if None not in faults:
        reason = faults[0] if faults else "nothing may leave"
        raise Refused(f"not sent: {reason}", "wire.json lists what may leave; a dry run writes a new one")


def _for_method(wire: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """What the site agreed to send for this method."""
    agreed: Mapping[str, Any] = wire["methods"] if wire["format"] == SEVERAL else {wire["method"]: wire}
    if method not in agreed:
        raise Refused(f"the server runs {method}, this site agreed to {', '.join(agreed)}", NEW)
    found: Mapping[str, Any] = agreed[method]
    return found


def check_terms(wire: Mapping[str, Any], config: Config) -> None:
    """Refuse a run with any other setting than the site agreed to, and code that sends more fields."""
    wire = _for_method(wire, config.methods[0])
    if wire["said"] != said():
        raise Refused("this version says other things beside its tensors than wire.json lists", NEW)
    asked, agreed = pinned(config), dict(wire["terms"])
    if set(asked[SEEDS]) <= set(agreed.get(SEEDS, [])):
        agreed[SEEDS] = asked[SEEDS]
    for name in sorted(asked.keys() | agreed.keys(), key=lambda name: (not name.endswith(".is"), name)):
        if (found := asked.get(name)) != (was := agreed.get(name)):
            raise Refused(f"the server wants {name} = {found}, this site agreed to {was}", NEW)


def check_layout(wire: Mapping[str, Any], method: str, layout: str) -> None:
    """Refuse to take part with other columns or classes than those of the dry run."""
    if _for_method(wire, method)["layout"] != layout:
        raise Refused("this site's columns or classes are not those of its dry run", NEW)


def _fault(up: Mapping[str, Tensor], message: Sequence[Mapping[str, Any]]) -> str | None:
    """Why an upload differs from this listed message; None if it does not."""
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
