"""fedapa export RUN --client I"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command(name="export", short_help="Take a client's model out of a run")
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
@click.option("--client", required=True, metavar="NAME", help="The client's number or name.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder; default RUN/clients/NAME.")
@click.option(
    "--deliver-anyway", "anyway", is_flag=True, help="Also export a model that predicts one class for all rows."
)
@click.option("--onnx", is_flag=True, help="Also write model.onnx (needs the extra 'onnx').")
def command(run: Path, client: str, out: Path | None, anyway: bool, onnx: bool) -> None:
    """Write a client's model of the finished run RUN to OUT/site-model.

    `fedapa predict` needs nothing but that folder.
    """
    from fedapa.config.experiment import assemble, read_config
    from fedapa.errors import InputError
    from fedapa.site.export_models import check_simulated, deliver, folder_names
    from fedapa.site.onnx_export import check_onnx, write_onnx

    if onnx:
        check_onnx()
    check_simulated(run)
    names = [one.name for one in assemble(read_config(run)).data.clients]
    if client not in names and not (client.isdigit() and int(client) < len(names)):
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise InputError(f"there is no client '{client}'", f"clients: {shown}")
    i = names.index(client) if client in names else int(client)
    folder = deliver(run, i, out or run / "clients" / folder_names(names)[i], anyway=anyway)
    if onnx:
        write_onnx(folder)
    ui.say(f"written to {folder}")
