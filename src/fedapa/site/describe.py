"""A config for a site's data, written from what an inspection found."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w

from fedapa.data.site_description import Sites
from fedapa.data.sites import Own
from fedapa.site.inspection import Inspection, held_out_share, rare_last
from fedapa.training.settings import Training

RATE, BATCH, STEPS = 0.02, 16, 400  # at this rate, tables of a few hundred rows are learned in about so many steps
RISK_SET = 64  # rows of a batch that are compared with each other, of times until an event
FEWEST_ROUNDS, MOST_ROUNDS = 10, 100
USUAL_ROUNDS = 20  # where the number of rows is not known
METHODS = ["local", "fedavg", "fedper", "fedapa"]


def config_text(found: Inspection, folder: Path, said: str, repeats: int = 10) -> str:
    """A whole config: what was found as comments, then the section [sites] and settings that suit the tables."""
    usual, own = Sites(), {}
    for key, value in vars(found.sites).items():
        if value != getattr(usual, key) and value is not None:
            own[key] = _plain(value)
    if found.own is not None:
        if not found.sites.validation and (share := held_out_share(found.own)):
            own["validation"] = share
        if found.sites.classes is None and (order := rare_last(found.own)):
            own["classes"] = order
    own["files"] = {name: _beside(file, folder) for name, file in found.sites.files.items()}
    content: dict[str, Any] = {
        "methods": METHODS,
        "seeds": list(range(repeats)),
        "sites": own,
        **_objective(found),
        **table_settings(rounds_for(found.own), checkpoint_every=100),
    }
    if found.sites.event is not None:
        content["training"]["batch"] = RISK_SET
    comments = [f"# Written by: {said}", *(f"# note: {note}" for note in found.notes)]
    for problem in found.problems:
        comments += [f"# problem: {problem.message}", f"#   {problem.hint}"]
    text = re.sub(r"\[\n((?:    [^\n]*,\n)+)\]", _on_one_line, tomli_w.dumps(content))
    return "\n".join(" ".join(line.splitlines()) for line in comments) + "\n" + text


def table_settings(rounds: int, checkpoint_every: int) -> dict[str, Any]:
    """Sections that suit small tables, for a simulation and for a federation alike."""
    run = {"rounds": rounds, "participation": 1.0, "evaluate_every": 5, "checkpoint_every": checkpoint_every}
    training = {"lr": RATE, "batch": BATCH, "drop_last": False, "keep_momentum": False}
    return {"model": {"name": "mlp"}, "training": training, "run": run}


def _objective(found: Inspection) -> dict[str, Any]:
    if found.sites.event is not None:
        return {"objective": {"name": "survival"}}
    if found.target == "number":
        return {"objective": {"name": "regression"}}
    return {} if found.score is None else {"objective": {"score": found.score}}


def rounds_for(own: Own | None) -> int:
    """As many that the middle site takes the wanted number of steps: small tables need more rounds."""
    rows = [] if own is None else [len(client.train.y) for client in own.data.clients]
    if not rows:
        return USUAL_ROUNDS
    steps = Training.epochs * max(1.0, median(rows) / BATCH)
    return int(min(max(round(STEPS / steps), FEWEST_ROUNDS), MOST_ROUNDS))


def _on_one_line(found: re.Match[str]) -> str:
    """Short lists are read more easily in one line."""
    line = " ".join(part.strip() for part in found.group(1).splitlines()).rstrip(",")
    return f"[{line}]" if len(line) < 100 else found.group(0)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple | list) else value


def _beside(file: str, folder: Path) -> str:
    path, base = Path(file).absolute(), folder.absolute()
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
