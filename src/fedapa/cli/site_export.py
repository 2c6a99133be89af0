"""fedapa site export | schema: a site's model out of its kit, and what it proposes to agree on"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui
from fedapa.cli.coordinator import require_flower


@click.command(short_help="Make this site's model from its own states")
@click.argument("kit", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--run", metavar="METHOD|ID", help="Which run, by its method or the beginning of its id; default: the last."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder; default the kit itself.")
@click.option("--deliver-anyway", "anyway", is_flag=True, help="Also a model that predicts one class for all rows.")
@click.option("--no-baselines", is_flag=True, help="Do not tune a network and a plain model beside it.")
@click.option("--onnx", is_flag=True, help="Also write model.onnx (needs the extra 'onnx').")
@ui.format_option
def export(
    kit: Path, run: str | None, out: Path | None, anyway: bool, no_baselines: bool, onnx: bool, form: str
) -> None:
    """Write this site's model of a federation to OUT/site-model, from the states in KIT alone.

    A site that has joined does this by itself when a run has ended. Needs no coordinator: it also works when that is
    gone, after a crash, and after this site left. The same recipe trained at this site alone goes to OUT/alone-model.
    The card compares both, and of tables also a network tuned on held-out rows and a plain model. Nothing leaves the
    site.
    """
    require_flower()
    from fedapa.errors import RunError
    from fedapa.federation.messages import Disclosed
    from fedapa.site.kit_export import deliver_kit
    from fedapa.site.onnx_export import check_onnx, write_onnx

    if onnx:
        check_onnx()
    with ui.progress() as bar:
        task = bar.add_task("training alone", total=None, note="")
        try:
            found = deliver_kit(kit, out, run, anyway, lambda t: bar.advance(task), not no_baselines)
        except Disclosed as error:  # of the site's store
            raise RunError(error.message, error.hint or "restore the kit's folder from a backup") from error
    if onnx:
        write_onnx(found.folder)
    for note in found.notes:
        ui.say(f"note: {note}")
    done, rounds = found.rounds
    if done < rounds:
        ui.say(f"note: this is the model after {done} of {rounds} rounds")
    if form == "json":
        gain = None if found.verdict is None else found.verdict.gain._asdict()
        use, text = (None, None) if found.verdict is None else (found.verdict.use, found.verdict.text)
        verdict = {"use": use, "gain": gain, "text": text}
        about = {"run": found.run, "method": found.method, "rounds": found.rounds, "notes": found.notes}
        ui.dump({"folder": found.folder, **about, "verdict": verdict})
        return
    if found.verdict is not None:
        click.echo(f"verdict: {found.verdict.text}")
    ui.say(f"{found.method}, run {found.run}: written to {found.folder}")


@click.command(short_help="Write the schema that this site proposes to agree on")
@click.argument("config")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="schema.json", show_default=True)
@ui.format_option
def schema(config: str, out: Path, form: str) -> None:
    """Write names, kinds, units and codes of the columns and classes of CONFIG's data, and no value of any row.

    Look at it, then send it to the coordinator, who makes the run's config of all sites' proposals: `fedapa coordinator
    new-config`. Of that config, this writes the agreed schema.
    """
    from fedapa.cli import common
    from fedapa.data import schema as schemas
    from fedapa.data.agreement import fingerprint, schema_of
    from fedapa.site.export_models import agreed_schema
    from fedapa.store.atomic_io import write_json

    wanted = common.read(config, None, None, (), None)
    layout = wanted.layout if wanted.sites is None else None
    found = schemas.unscaled(agreed_schema(wanted)) if layout is None else schema_of(layout)
    write_json(out, schemas.to_json(found))
    rows = [
        {"column": c.name, "kind": c.kind, "unit": c.unit, "codes": ", ".join(c.levels), "may be missing": c.indicator}
        for c in found.columns
    ]
    if form == "json":
        ui.dump({"schema": schemas.to_json(found), "hash": fingerprint(found)})
        return
    if rows:
        ui.show(rows, form, title=f"label {found.label}: {', '.join(found.class_names) or 'numbers'}")
    sent, named = "send it to the coordinator if it may be known there", "name it as schema_file in [sites]"
    ui.say(f"layout {fingerprint(found)[:12]}, written to {out}; {sent if layout is None else named}")
