"""The coordinator's config of a run on the sites' own data: the layout to agree on, and the settings of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedapa.config.experiment import load_own
from fedapa.config.load import Change, apply, as_table, check, load
from fedapa.config.sections import Config
from fedapa.data.agreement import fingerprint, layout_of, merged, schema_of
from fedapa.data.schema import Schema, read_schema
from fedapa.data.site_description import RISK
from fedapa.data.site_layout import Layout
from fedapa.data.sources import OWN
from fedapa.errors import InputError
from fedapa.site.describe import METHODS, USUAL_ROUNDS, table_settings

EVERY_ROUND = 1  # of checkpoints: a round of real sites is not played twice
SECTIONS = ("model", "objective", "training", "run", "method")


class Proposed(NamedTuple):
    """A config for the coordinator, what some sites should know, and the hash of the layout in it."""

    text: str
    notes: list[str]
    layout: str


def federation_config(
    sources: Sequence[str],
    methods: str | None = None,
    changes: Sequence[str] = (),
    sites: int | None = None,
    common: bool = False,
    unlike: Sequence[str] = (),
) -> Proposed:
    """TOML text; checked, so that `coordinator run` takes it."""
    settings, schema, notes = _proposal(sources, common, unlike)
    if not schema.classes:
        kind = "survival" if schema.label.startswith(RISK) else "regression"
        settings["objective"] = {"name": kind, **settings.get("objective", {})}
        settings["objective"]["name"] = settings["objective"]["name"].replace("auto", kind)
    raw = {**settings, "data": {"source": OWN}, "layout": _table(layout_of(schema))}
    raw["federation"] = {"min_sites": sites or max(2, len(sources))}
    raw["run"] = {**raw["run"], "checkpoint_every": EVERY_ROUND}
    extra = [] if methods is None else [Change(f"--method {methods}", ("methods",), methods.split(","))]
    apply(raw, [*changes, *extra])
    text = tomli_w.dumps(raw)
    layout = check(raw, text, "the new config").layout
    assert layout is not None
    head = f"# Written by: fedapa coordinator new-config {' '.join(sources)}\n"
    head += "".join(f"# note: {note}\n" for note in notes)
    head += "# The sites bring their own data; each must have the columns and classes of [layout].\n"
    return Proposed(head + text, notes, fingerprint(schema_of(layout)))


def _proposal(sources: Sequence[str], common: bool, unlike: Sequence[str]) -> tuple[dict[str, Any], Schema, list[str]]:
    if all(source.endswith(".json") for source in sources):
        schema, notes = merged({source: read_schema(Path(source)) for source in sources}, common, unlike)
        return {"methods": METHODS, **table_settings(USUAL_ROUNDS, EVERY_ROUND)}, schema, notes
    if len(sources) > 1:
        raise InputError(f"{len(sources)} sources, and not all are proposals", "name one config, or every schema.json")
    config = load(sources[0])
    if config.sites is None:
        hint = "name the sites' schema.json, or a config of `fedapa data inspect`"
        raise InputError(f"{sources[0]} has no section [sites]", hint)
    return _settings(config), load_own(config, config.seeds[0]).schemas[0], []


def _settings(config: Config) -> dict[str, Any]:
    table = as_table(config)
    return {"methods": config.methods, "seeds": [config.seeds[0]]} | {k: table[k] for k in SECTIONS if table.get(k)}


def _table(layout: Layout) -> dict[str, Any]:
    """Without what is empty."""
    found = {key: value for key, value in asdict(layout).items() if value}
    columns = [{key: _listed(v) for key, v in column.items() if v} for column in found.pop("columns", ())]
    return {key: _listed(value) for key, value in found.items()} | ({"columns": columns} if columns else {})


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
