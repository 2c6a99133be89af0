"""fedapa compare DIR"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command(short_help="Compare the runs of a folder")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@ui.comparison_option
def command(folder: Path | None, form: str) -> None:
    """Compare the runs of FOLDER (default: the latest under ./runs), finished or still going.

    Accuracy is pooled over all test samples, before and after local training; a star marks the one that the method's
    paper reports; ± is the standard deviation over seeds. gain/equal/lose counts clients against local training on the
    same allocation, "vs local" is their mean gain in points with the p of a paired Wilcoxon test. KiB is what one
    client receives and sends in one round. --format json adds confidence intervals and every client.
    """
    from fedapa.cli import common

    common.print_comparison(folder or common.newest_out(), form)
