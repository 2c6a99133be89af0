"""fedapa site: what one site does"""

from __future__ import annotations

import click

from fedapa.cli import site_join as joined
from fedapa.cli.site_dry_run import dry_run
from fedapa.cli.site_export import export, schema


@click.group(short_help="What a site does: see what would leave it, take part, take its model")
def command() -> None:
    """Commands for a site: see what would leave it, join a real federation, take its model, leave it."""


for verb in (schema, dry_run, joined.key, joined.join, joined.status, export, joined.prune, joined.leave):
    command.add_command(verb)
