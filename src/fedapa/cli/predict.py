"""fedapa predict SITE-MODEL FILE"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command(short_help="Use a site's model on new rows")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the CSV there instead.")
@click.option("--format", "form", type=click.Choice(["csv", "json"]), default="csv", help="How to print it.")
def command(model: Path, file: Path, out: Path | None, form: str) -> None:
    """Predict every row of FILE with the site-model folder MODEL: its line, the class, a probability per class.

    MODEL may also be the folder that holds site-model/: a site's kit, or what `export` wrote.

    FILE is a table with the columns that the model was trained on (no label needed, other columns are ignored),
    an .npz file with an array x, an image, or a folder of images.
    """
    from fedapa.errors import InputError
    from fedapa.site.export_models import prediction_text
    from fedapa.site.site_model import model_folder, read_model
    from fedapa.store.checkpoint import write_atomically

    if not file.exists():
        raise InputError(f"{file} does not exist", "check the name and the folder")
    found = read_model(model_folder(model))
    p, names, odd = found.predict(file)
    for line in odd:
        ui.say(f"note: {line}")
    what = "line" if found.schema.columns else "sample"
    if form == "json":
        text = _json(names, found.schema.class_names, p.tolist(), what)
    else:
        text = prediction_text(names, found.schema, p, what)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_atomically(out, text.encode())
        ui.say(f"{len(names)} predictions in {out}")


def _json(names: list[str], classes: tuple[str, ...], p: list[list[float]], what: str) -> str:
    import json

    rows = [
        {what: name, "value": row[0]}
        if not classes
        else {what: name, "class": classes[row.index(max(row))], "probabilities": dict(zip(classes, row, strict=True))}
        for name, row in zip(names, p, strict=True)
    ]
    return json.dumps(rows, indent=2) + "\n"
