"""fedapa cp PRESET FILE"""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Copy a preset into a file of your own")
@click.argument("preset")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def command(preset: str, file: Path, force: bool) -> None:
    """Write the shipped PRESET to FILE with every default, ready to be edited and run."""
    from fedapa.config import presets
    from fedapa.config.load import dump, load
    from fedapa.errors import InputError

    if preset not in presets.names():
        load(preset)  # explains what is there instead
        raise InputError(f"{preset} is a file, not a preset", "`fedapa ls presets` lists them")
    if file.exists() and not force:
        raise InputError(f"{file} exists", "choose another name, or --force")
    try:
        file.write_text(f"# {presets.title(preset)}\n# fedapa run {file}\n\n{dump(load(preset))}", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}", "choose another file") from None
    click.echo(f"wrote {file}; run it with: fedapa run {file}")
