"""fedapa site key | join | status | leave: a site of a real federation"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from fedapa.cli import ui
from fedapa.cli.coordinator import _detached, _wait, require_flower

kit_argument = click.argument("kit", type=click.Path(file_okay=False, path_type=Path))


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def key(folder: Path) -> None:
    """Make this site's key in FOLDER; send site.pub to the coordinator, and put its kit's files beside site.key."""
    require_flower()
    from fedapa.errors import InputError
    from fedapa.federation import keys
    from fedapa.federation.kit import KEY
    from fedapa.store.atomic_io import make_folder

    make_folder(folder)
    if (folder / KEY).exists():
        raise InputError(f"{folder / KEY} exists", "choose another folder")
    (folder / "site.pub").write_text(keys.make_site_key(folder / KEY))
    ui.say(f"send {folder / 'site.pub'} to the coordinator; {folder / KEY} stays here")


@click.command()
@kit_argument
@click.option(
    "--data",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Config that describes this site's data.",
)
@click.option("--share", type=click.IntRange(0), help="Which part of a partitioned data set is this site's.")
@click.option(
    "--allow-model",
    "models",
    multiple=True,
    metavar="FILE.py:NAME",
    help="A model, training loop, objective or augmentation that runs may use; also MODULE:NAME.",
)
@click.option("--allow-method", "methods", multiple=True, metavar="FILE.py:CLASS", help="A method that runs may use.")
@click.option(
    "--allow-seed",
    "seeds",
    multiple=True,
    type=click.IntRange(0),
    metavar="SEED",
    help="By which runs may split this site's rows; default: the first that is asked for.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="min_rows, min_batch, max_lr, max_steps, max_target, max_scored, max_runs, max_questions.",
)
@click.option(
    "--deliver/--no-deliver", default=None, help="Make site-model/ by itself when a run has ended; default: yes."
)
@click.option("--detach", is_flag=True, help="Run in the background; `site leave` ends it.")
def join(
    kit: Path,
    data: Path | None,
    share: int | None,
    models: tuple[str, ...],
    methods: tuple[str, ...],
    seeds: tuple[int, ...],
    limits: tuple[str, ...],
    deliver: bool | None,
    detach: bool,
) -> None:
    """Join the federation with the folder KIT: answer the coordinator, train here, keep this site's states here.

    --data, --share, --allow-model, --allow-method, --allow-seed, --limit and --deliver are saved beside that folder, in
    KIT.settings.toml. When a run has ended, this site's model of it is made here, as by `fedapa site export`.
    """
    require_flower()
    from fedapa import plugins
    from fedapa.errors import InputError
    from fedapa.federation import processes, site_settings
    from fedapa.federation.kit import read_kit
    from fedapa.transports.flower import site_supervisor

    name = read_kit(kit).name
    if (other := processes.running(kit / site_supervisor.PID)) is not None:
        raise InputError(f"{name} has joined already, as process {other}", "`fedapa site leave` ends that")
    site_settings.check_new_kit(kit)
    wanted = site_settings.read_settings(kit).with_limits(limits)
    given: dict[str, Any] = {"data": data and str(data.absolute()), "share": share, "deliver": deliver}
    given["seeds"] = list(seeds) or None
    for kind, names in (("models", models), ("methods", methods)):
        given[kind] = [plugins.anchored(name, Path.cwd()) for name in names] or None
    site_settings.write_settings(
        kit, wanted.model_copy(update={key: value for key, value in given.items() if value is not None})
    )
    if detach:
        _detached(processes.python("fedapa.cli", "site", "join", str(kit)), kit / "log" / "join.log")
        _wait(lambda: processes.running(kit / site_supervisor.PID) is not None, 60, f"see {kit}/log")
        ui.say(f"{name} is joining; fedapa site status {shlex.quote(str(kit))}")
        return
    site_supervisor.site_processes(kit).run()


@click.command()
@kit_argument
@ui.format_option
def status(kit: Path, form: str) -> None:
    """Show whether this site is running, its last run and round, its last error, its model and the states it keeps."""
    require_flower()
    from fedapa.federation import delivery, processes
    from fedapa.federation import site_status as noted
    from fedapa.federation.kit import read_kit
    from fedapa.transports.flower import site_supervisor

    found, facts = read_kit(kit), noted.read(kit)
    states = sorted((kit / "states").glob("*/round-*.safetensors"))
    row = {
        "site": found.name,
        "coordinator": found.coordinator,
        "running": processes.running(kit / site_supervisor.PID) is not None,
        "state": facts.get("state", ""),
        "run": facts.get("run", ""),
        "round": facts.get("round"),
        "fault": facts.get("fault", ""),
        "at": facts.get("at", ""),
        "model": delivery.describe(kit),
        "states": len(states),
        "MB": sum(path.stat().st_size for path in states) / 1e6,
    }
    ui.show([row], form)


@click.command()
@kit_argument
@click.option("--days", type=click.FloatRange(0), default=90.0, show_default=True, help="Days without a write.")
@click.option("--yes", is_flag=True, help="Remove them; without it they are only listed.")
def prune(kit: Path, days: float, yes: bool) -> None:
    """Remove the states of old runs, except the newest. Their models are lost, and those runs cannot continue here."""
    require_flower()
    import shutil

    from fedapa.federation import audit_log
    from fedapa.federation.site_store import Store

    for folder in Store(kit / "states").old_runs(days):
        if yes:
            shutil.rmtree(folder)
            audit_log.append(kit, "pruned", run=folder.name)
        click.echo(f"{'removed' if yes else 'would remove'} {folder}")


@click.command()
@kit_argument
def leave(kit: Path) -> None:
    """Stop taking part. States and kit stay, and `site join` continues from there."""
    require_flower()
    from fedapa.federation import audit_log, processes
    from fedapa.federation.kit import read_kit
    from fedapa.transports.flower import site_supervisor

    name = read_kit(kit).name
    if processes.stop(kit / site_supervisor.PID):
        audit_log.append(kit, "left")
        ui.say(f"{name} has left")
    else:
        ui.say(f"{name} was not running")
    ui.say("for good: ask the coordinator for `fedapa coordinator remove-site`")
