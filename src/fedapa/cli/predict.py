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
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    help="Of two classes: the probability from which a row counts as the last one; default: the model's own.",
)
def command(model: Path, file: Path, out: Path | None, form: str, threshold: float | None) -> None:
    """Predict every row of FILE with the site-model folder MODEL: its line, the class, a probability per class.

    Of two classes, the class is the likelier one, or where the model was made with a threshold of its own for a rare
    class, the last one from that probability on; a note says so.

    MODEL may also be the folder that holds site-model/: a site's kit, or what `export` wrote.

    FILE is a table with the columns that the model was trained on (no label needed, other columns are ignored),
    an .npz file with an array x, an image, or a folder of images.
    """
    from fedapa.errors import InputError
    from fedapa.site.export_models import prediction_text
    from fedapa.site.measures import decided
    from fedapa.site.site_model import model_folder, read_model
    from fedapa.store.checkpoint import write_atomically

    if not file.exists():
        raise InputError(f"{file} does not exist", "check the name and the folder")
    found = read_model(model_folder(model))
    p, names, odd = found.predict(file)
    names_of = found.schema.class_names
    if threshold is not None and len(names_of) != 2:
        raise InputError(f"--threshold is for two classes, this model has {len(names_of) or 'numbers'}", "leave it out")
    cut = found.threshold if threshold is None else threshold
    if cut is not None:
        whose = "the threshold of this model" if threshold is None else "--threshold"
        odd = [*odd, f"a row counts as {names_of[-1]} from a probability of {cut:.3g} on ({whose})"]
    for line in odd:
        ui.say(f"note: {line}")
    what = "line" if found.schema.columns else "sample"
    if form == "json":
        best = decided(p, cut).tolist() if names_of else []
        text = _json(names, names_of, p.tolist(), best, what)
    else:
        text = prediction_text(names, found.schema, p, what, cut)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_atomically(out, text.encode())
        ui.say(f"{len(names)} predictions in {out}")


def _json(names: list[str], classes: tuple[str, ...], p: list[list[float]], best: list[int], what: str) -> str:
    import json

    if not classes:
        rows: list[dict[str, object]] = [{what: name, "value": row[0]} for name, row in zip(names, p, strict=True)]
    else:
        rows = [
            {what: name, "class": classes[k], "probabilities": dict(zip(classes, row, strict=True))}
            for name, row, k in zip(names, p, best, strict=True)
        ]
    return json.dumps(rows, indent=2) + "\n"
