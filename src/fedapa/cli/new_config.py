"""fedapa coordinator new-config"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command("new-config", short_help="Write the config of a run on the sites' own data")
@click.argument("sources", nargs=-1, required=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="federation.toml", show_default=True)
@click.option("--method", "methods", help="Methods, separated by commas.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key: --set run.rounds=10.")
@click.option("--sites", type=click.IntRange(1), help="Sites that must be online for the run to start; default: all.")
@click.option("--common", is_flag=True, help="Leave out columns that not every proposal has.")
@click.option("--unlike", metavar="A,B", help="Columns whose codes may have nothing in common at two sites.")
def new_config(
    sources: tuple[str, ...],
    out: Path,
    methods: str | None,
    changes: tuple[str, ...],
    sites: int | None,
    common: bool,
    unlike: str | None,
) -> None:
    """Write a config for `coordinator run` from SOURCES: the schema.json of every site, or one config with [sites].

    It holds the layout that every site must have: the columns that all propose, with the codes and classes of all of
    them. Proposals that contradict each other are refused, and what differs is named. Its settings suit small tables,
    or are those of the config. Nothing in it names a file.

    Give it to the sites. Each accepts it by `fedapa site dry-run site.toml --run FILE`, which fails where its own file
    differs, shows what would leave, and holds the site to this layout and these settings.
    """
    from fedapa.errors import InputError
    from fedapa.site.federation_config import federation_config

    if out.exists():
        raise InputError(f"{out} exists", "choose another --out")
    found = federation_config(sources, methods, changes, sites, common, unlike.split(",") if unlike else ())
    out.write_text(found.text, encoding="utf-8")
    for note in found.notes:
        ui.say(f"note: {note}")
    ui.say(f"layout {found.layout[:12]}, of {len(sources)} source{'s' if len(sources) > 1 else ''}, written to {out}")
    ui.say(f"next, at every site: fedapa site dry-run site.toml --run {out}; then here: fedapa coordinator run {out}")
