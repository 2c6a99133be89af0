"""fedapa cp PRESET FILE"""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Copy a preset into a file of your own")
@click.argument("preset")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def command(preset: str, file: Path, force: bool) -> None:
    """Write the shipped PRESET to FILE with every default, ready to be edited and run; - is standard output."""
    from fedapa.config import presets
    from fedapa.config.load import dump, load
    from fedapa.errors import InputError

    if preset not in presets.names():
        load(preset)  # explains what is there instead
        raise InputError(f"{preset} is a file, not a preset", "`fedapa ls presets` lists them")
    is_stdout = str(file) == "-"
    text = f"# {presets.title(preset)}\n# fedapa run {preset if is_stdout else file}\n\n{dump(load(preset))}"
    if is_stdout:
        click.echo(text, nl=False)
        return
    if file.exists() and not force:
        raise InputError(f"{file} exists", "choose another name, or --force")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}", "choose another file") from None
    click.echo(f"wrote {file}; run it with: fedapa run {file}")
