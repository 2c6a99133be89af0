"""fedapa report [DIR]"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command(short_help="Make one HTML page about the runs of a folder")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The page. [default: FOLDER/report.html]")
@click.option("--figures", type=click.Path(file_okay=False, path_type=Path), help="Folder for figures as SVG and PDF.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
def command(folder: Path | None, out: Path | None, figures: Path | None, show: bool) -> None:
    """Make one self-contained HTML page about the runs of FOLDER (default: the latest under ./runs).

    Runs may be finished or not; those that failed or cannot be read are named. The page has a summary, tables
    beside the paper's numbers, convergence, gains of every client over Local, FedAPA's weights, the partition, bytes,
    time, config, versions and citations; it needs no network and prints well.
    """
    from fedapa.cli import common
    from fedapa.report import page

    folder = folder or common.newest_out()
    out = out or folder / "report.html"
    common.check_writable(out.parent)
    with ui.progress() as bar:
        task = bar.add_task("figures", total=None, note="")
        files = page.write(
            folder, out, figures, lambda what, done, total: bar.update(task, completed=done, total=total, note=what)
        )
    click.echo(f"the report is in {out}")
    if figures is not None:
        ui.say(f"{len(files) - 1} figures are in {figures}")
    if show:
        click.launch(str(out))
