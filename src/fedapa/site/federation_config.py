"""The coordinator's config of a run on the sites' own data: the layout to agree on, and the settings of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from fedapa.config.experiment import load_own
from fedapa.config.load import Change, apply, as_table, check, load
from fedapa.config.sections import Config
from fedapa.data.agreement import layout_of
from fedapa.data.schema import Schema, read_schema
from fedapa.data.site_layout import Layout
from fedapa.data.sources import OWN
from fedapa.errors import InputError
from fedapa.site.describe import METHODS, USUAL_ROUNDS, table_settings

EVERY_ROUND = 1  # of checkpoints: a round of real sites is not played twice
SECTIONS = ("model", "objective", "training", "run", "method")


def federation_config(source: str, methods: str | None, changes: Sequence[str], sites: int | None) -> str:
    """TOML text; checked, so that `coordinator run` takes it."""
    settings, schema = _proposal(source)
    if not schema.classes:
        settings["objective"] = {"name": "regression", **settings.get("objective", {})}
        settings["objective"]["name"] = settings["objective"]["name"].replace("auto", "regression")
    raw = {**settings, "data": {"source": OWN}, "layout": _table(layout_of(schema))}
    raw["federation"] = {"min_sites": sites or 2}
    raw["run"] = {**raw["run"], "checkpoint_every": EVERY_ROUND}
    extra = [] if methods is None else [Change(f"--method {methods}", ("methods",), methods.split(","))]
    apply(raw, [*changes, *extra])
    text = tomli_w.dumps(raw)
    check(raw, text, "the new config")
    head = f"# Written by: fedapa coordinator new-config {source}\n"
    return f"{head}# The sites bring their own data; each must have the columns and classes of [layout].\n{text}"


def _proposal(source: str) -> tuple[dict[str, Any], Schema]:
    if source.endswith(".json"):
        return {"methods": METHODS, **table_settings(USUAL_ROUNDS, EVERY_ROUND)}, read_schema(Path(source))
    config = load(source)
    if config.sites is None:
        raise InputError(f"{source} has no section [sites]", "name a schema.json, or a config of `fedapa data inspect`")
    return _settings(config), load_own(config, config.seeds[0]).schemas[0]


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
