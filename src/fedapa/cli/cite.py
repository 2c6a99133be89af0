"""fedapa cite METHOD"""

from __future__ import annotations

import click

from fedapa.cli import ui


@click.command(short_help="How to cite a method")
@click.argument("method")
@ui.format_option
def command(method: str, form: str) -> None:
    """Print the BibTeX entry of the paper behind METHOD."""
    import json

    from fedapa.errors import InputError
    from fedapa.methods.catalogue import entry
    from fedapa.methods.papers import PAPERS

    key = entry(method).paper
    if not key:
        raise InputError(f"{method} is plain local training, no paper introduced it", "cite what you compare it with")
    paper = PAPERS[key]
    click.echo(json.dumps({"key": key, **paper._asdict()}, indent=2) if form == "json" else paper.bibtex(key))
