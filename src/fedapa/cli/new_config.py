"""fedapa coordinator new-config"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command("new-config", short_help="Write the config of a run on the sites' own data")
@click.argument("source")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="federation.toml", show_default=True)
@click.option("--method", "methods", help="Methods, separated by commas.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key: --set run.rounds=10.")
@click.option("--sites", type=click.IntRange(1), help="Sites that must be online for the run to start.")
def new_config(source: str, out: Path, methods: str | None, changes: tuple[str, ...], sites: int | None) -> None:
    """Write a config for `coordinator run` from SOURCE: a site's schema.json, or a config with a section [sites].

    It holds the layout that every site must have, and settings that suit small tables, or those of SOURCE. Nothing in
    it names a file. Give it to the sites: `fedapa site dry-run site.toml --run FILE` shows what would leave there.
    """
    from fedapa.errors import InputError
    from fedapa.site.federation_config import federation_config

    if out.exists():
        raise InputError(f"{out} exists", "choose another --out")
    text = federation_config(source, methods, changes, sites)
    out.write_text(text, encoding="utf-8")
    ui.say(f"written to {out}; give it to the sites, then: fedapa coordinator run {out}")
