"""fedapa coordinator init | add-site | remove-site | new-config | start | status | run | resume | release | stop"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedapa.cli import ui
from fedapa.cli.new_config import new_config
from fedapa.errors import InputError

HOME = Path("coordinator")
folder_option = click.option(
    "--dir",
    "home",
    type=click.Path(file_okay=False, path_type=Path),
    default=HOME,
    show_default=True,
    help="The coordinator's folder.",
)


def _renamed_to(new: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback for the old name of an option."""

    def refuse(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value is not None:
            raise InputError(f"no option {option.opts[0]} any more", f"renamed to {new}")

    return refuse


@click.group(short_help="Coordinate real sites: enrol them, run a config with them")
def command() -> None:
    """Coordinate a federation of real sites over Flower: certificates, who may take part, runs."""


@command.command()
@folder_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Its name or address, as sites see it.")
@click.option("--name", "names", multiple=True, help="Further names or addresses for its certificate.")
@click.option("--port", default=9091, show_default=True, type=click.IntRange(1, 65535), help="SuperLink, local only.")
@click.option(
    "--proxy-port",
    default=9443,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Reverse proxy for sites; 0: no proxy, all sites are on this machine.",
)
@click.option("--door", hidden=True, expose_value=False, callback=_renamed_to("--proxy-port"))
@click.option("--ca-cert", type=click.Path(dir_okay=False, path_type=Path), help="Your own authority, PEM.")
@click.option("--ca-key", type=click.Path(dir_okay=False, path_type=Path), help="Its key, PEM; read once, not kept.")
def init(
    home: Path,
    host: str,
    names: tuple[str, ...],
    port: int,
    proxy_port: int,
    ca_cert: Path | None,
    ca_key: Path | None,
) -> None:
    """Create a coordinator: authority, certificate, registry of sites, and the proxy's configuration."""
    registry = _registry()
    made = registry.create(home, registry.Settings(host, port, proxy_port), list(names), ca_cert, ca_key)
    if proxy_port:
        from fedapa.transports.flower import reverse_proxy

        if not reverse_proxy.write(made):
            ui.say(
                "nginx cannot count half-sent requests by address: apt-get install libnginx-mod-stream, or a firewall"
            )
    ui.say(f"coordinator in {home}; next: fedapa coordinator add-site NAME, fedapa coordinator start")


@command.command("add-site")
@click.argument("name")
@folder_option
@click.option("--kit", type=click.Path(path_type=Path), help="Folder for the kit; default kits/NAME.")
@click.option("--public-key", type=click.Path(dir_okay=False, path_type=Path), help="The site's own key (site key).")
@click.option(
    "--share", type=click.IntRange(0), help="Which part of a partitioned data set is the site's; default: the next."
)
def add_site(name: str, home: Path, kit: Path | None, public_key: Path | None, share: int | None) -> None:
    """Enrol the site NAME and create its kit: name, key, authority, address. Transfer the kit over a secure channel.

    Once it has joined, the site takes part in new runs, and in current runs from their next round on.
    """
    coordinator = _registry().Coordinator(home)
    kit = kit or Path("kits") / name
    coordinator.enrol(name, kit, public_key, share)
    _sync(coordinator)
    ui.say(f"kit in {kit}; there: fedapa site join {shlex.quote(str(kit))}")


@command.command("remove-site")
@click.argument("name")
@folder_option
def remove_site(name: str, home: Path) -> None:
    """Revoke the site NAME: its key is refused from now on, and runs continue without it from their next round."""
    coordinator = _registry().Coordinator(home)
    coordinator.remove(name)
    _sync(coordinator)
    ui.say(f"{name} is removed; what it contributed so far stays in the models of running federations")


command.add_command(new_config)


@command.command()
@folder_option
@click.option("--detach", is_flag=True, help="Run in the background; `coordinator stop` ends it.")
def start(home: Path, detach: bool) -> None:
    """Start the SuperLink and the reverse proxy and keep them running, in the foreground as service managers expect."""
    coordinator = _registry().Coordinator(home)
    from fedapa.federation import processes
    from fedapa.transports.flower import server_supervisor

    supervisor = server_supervisor.coordinator_processes(coordinator)
    if processes.running(supervisor.pid) is not None:
        ui.say("already running")
        return
    if detach:
        command = processes.python("fedapa.cli", "coordinator", "start", "--dir", str(home))
        _detached(command, home / "log" / "start.log")
        _wait(lambda: _is_synced(coordinator), 120, f"see {home}/log")
        return
    import threading

    threading.Thread(target=_keep_synced, args=(coordinator,), daemon=True).start()
    supervisor.run()


@command.command()
@folder_option
def stop(home: Path) -> None:
    """Stop the SuperLink and the reverse proxy. Runs and sites wait until they are back."""
    _registry().Coordinator(home)
    from fedapa.federation import processes
    from fedapa.transports.flower import server_supervisor

    ui.say("stopped" if processes.stop(home / server_supervisor.PID) else "it was not running")


@command.command()
@folder_option
@click.argument("runs", type=click.Path(file_okay=False, path_type=Path), required=False)
@ui.format_option
def status(home: Path, runs: Path | None, form: str) -> None:
    """Sites with online state, last round and refusals; the runs under RUNS with round, accuracy and bytes."""
    coordinator = _registry().Coordinator(home)
    from fedapa.federation import overview
    from fedapa.transports.flower.control import online

    found = overview.overview(coordinator, runs, online(coordinator))
    if form == "json":
        ui.dump(found)
        return
    state = "up" if found["up"] else "down"
    click.echo(f"SuperLink {state} at {coordinator.address}, sites connect to {coordinator.fleet_address}")
    for row in found["alarms"]:
        click.echo(f"ALARM {row['at']} {row['site']}: {row['text']}")
    ui.show(found["sites"], form, title="sites")
    if found["runs"]:
        ui.show(found["runs"], form, title="runs")
    for line in found["events"]:
        click.echo(f"{line['run']} round {line['round']}: {line['kind']}: {line['text']}")


@command.command()
@click.argument("config")
@folder_option
@ui.config_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the runs.")
@ui.format_option
def run(
    config: str,
    home: Path,
    methods: str | None,
    seeds: int | None,
    changes: tuple[str, ...],
    data_dir: str | None,
    out: Path | None,
    form: str,
) -> None:
    """Run every method of CONFIG for every seed with the enrolled sites, one run folder each, and compare them."""
    coordinator = _registry().Coordinator(home)
    from fedapa.cli import common
    from fedapa.config.experiment import lay_out

    wanted = common.read(config, methods, seeds, changes, data_dir)
    out = out or common.default_out(config)
    common.check_writable(out)
    _play(coordinator, lay_out(wanted, out), out, form)


@command.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@folder_option
@ui.format_option
def resume(folder: Path | None, home: Path, form: str) -> None:
    """Continue all unfinished runs of FOLDER (default: the latest under ./runs), bit for bit as if never stopped."""
    coordinator = _registry().Coordinator(home)
    from fedapa.cli import common
    from fedapa.store.run_folder import runs_under

    folder = folder or common.newest_out()
    runs = runs_under(folder)
    if not runs:
        raise InputError(f"{folder} holds no run", "name the folder that `fedapa coordinator run` printed")
    _play(coordinator, runs, folder, form)


@command.command()
@click.argument("name")
@click.argument("folder", type=click.Path(file_okay=False, exists=True, path_type=Path))
@folder_option
def release(name: str, folder: Path, home: Path) -> None:
    """Release the site NAME from quarantine in the stopped run FOLDER. It continues from its last accepted state."""
    _registry().Coordinator(home)
    from fedapa.federation import overview

    overview.release(folder, name)
    ui.say(f"{name} takes part again when the run is resumed")


def _play(coordinator: Any, runs: list[Path], out: Path, form: str) -> None:
    from fedapa.cli import common
    from fedapa.errors import RunError
    from fedapa.transports.flower.control import Control
    from fedapa.transports.flower.session import conduct

    control = Control(coordinator)
    try:
        if not control.is_up():
            hint = "`fedapa coordinator start --detach` starts it"
            raise RunError(f"no SuperLink answers at {coordinator.address}", hint)
        control.sync()
    finally:
        control.close()
    common.execute_all(
        runs, out, form, lambda run, step: conduct(coordinator, run, step, ui.say), "fedapa coordinator resume"
    )
    ui.say(f"runs are in {out}")


def _registry() -> Any:
    """The registry module, or an error that says how to install it."""
    require_flower()
    from fedapa.federation import registry

    return registry


def require_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise InputError("real federations need Flower, which is not installed", "pip install 'fedapa[flower]'")


def _sync(coordinator: Any) -> None:
    """Update a running SuperLink; one that is down is updated when it starts."""
    from fedapa.federation import processes
    from fedapa.transports.flower import server_supervisor

    if processes.running(coordinator.folder / server_supervisor.PID) is None:
        return
    from fedapa.transports.flower.control import Control

    control = Control(coordinator)
    try:
        if control.is_up():
            control.sync()
    finally:
        control.close()


def _keep_synced(coordinator: Any) -> None:
    from fedapa.transports.flower.control import Control

    Control(coordinator).keep_synced()


def _is_synced(coordinator: Any) -> bool:
    from fedapa.transports.flower.control import Control

    control = Control(coordinator)
    try:
        return control.is_up() and all(site.node for site in coordinator.members())
    finally:
        control.close()


def _detached(command: list[str], log: Path) -> None:
    from fedapa.store.atomic_io import make_folder

    make_folder(log.parent)
    with open(log, "ab") as out:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, umask=0o077)


def _wait(ready: Callable[[], bool], seconds: float, hint: str) -> None:
    from fedapa.errors import RunError

    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise RunError(f"not up after {seconds:.0f} s", hint)
        time.sleep(0.3)
