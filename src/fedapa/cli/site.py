"""fedapa site: what one site does"""

from __future__ import annotations

import click

from fedapa.cli.dry_run import dry_run


@click.group(short_help="What a site does: see what would leave it")
def command() -> None:
    """What one site does: see what would leave it before anything does."""


command.add_command(dry_run)
