"""fedapa watch [DIR]"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from pathlib import Path

import click

from fedapa.cli import ui

PORT = 8765
TRIED = 20  # ports after the usual one, where that is taken


@click.command(short_help="Watch runs in the browser, or in the terminal")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@click.option("--tui", is_flag=True, help="Watch in the terminal instead.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), help=f"The port; default {PORT} or the next that is free.")
@click.option("--token", envvar="FEDAPA_TOKEN", help="Access token; generated unless --host is loopback.")
@click.option(
    "--coordinator",
    type=click.Path(file_okay=False, path_type=Path),
    help="A coordinator's folder: shows its sites, too.",
)
def command(
    folder: Path | None, show: bool, tui: bool, host: str, port: int | None, token: str | None, coordinator: Path | None
) -> None:
    """Watch the runs of FOLDER (default: the latest under ./runs) live, or view finished ones.

    FOLDER is a run, a folder of runs, a sweep or the runs of a federation. Nothing is ever written to it. By default
    only you can open the page, and only on this machine (on Linux; elsewhere every local user can). With --host or
    --token, everybody needs the token in the printed address. Ctrl-C ends it.
    """
    from fedapa.cli import common

    folder = folder or common.newest_out()
    if coordinator is not None:
        _check_coordinator(coordinator)
    if tui:
        from fedapa.dashboard import terminal

        terminal.watch(folder)
        return
    _check_installed()
    import secrets

    from fedapa.dashboard import server
    from fedapa.dashboard.access import is_loopback
    from fedapa.errors import InputError

    if token is not None and not token.strip():
        raise InputError("--token is empty", "leave it out, or give a long one that nobody can guess")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    server.plotly_file()
    app = server.make_app(folder, host, token, coordinator=coordinator, checks_user=token is None)
    listener = _listen(host, port)
    address = _address(host, listener.getsockname()[1], token)
    with listener, suppress(KeyboardInterrupt):  # also before the server listens to Ctrl-C
        click.echo(f"watching {folder} at {address}")
        ui.say("Ctrl-C ends it")
        if show:
            click.launch(address)
        server.Server(app).run(sockets=[listener])


def _check_coordinator(folder: Path) -> None:
    from fedapa.cli.coordinator import require_flower

    require_flower()
    from fedapa.federation.registry import Coordinator

    Coordinator(folder)


def _check_installed() -> None:
    from importlib.util import find_spec

    from fedapa.errors import InputError

    missing = [name for name in ("starlette", "uvicorn", "plotly") if find_spec(name) is None]
    if missing:
        hint = "pip install 'fedapa[dashboard]'; or --tui, which needs nothing more"
        raise InputError(f"the page needs {' and '.join(missing)}", hint)


def _listen(host: str, port: int | None) -> socket.socket:
    from fedapa.errors import InputError

    ports = [port] if port is not None else [*range(PORT, PORT + TRIED), 0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for one in ports:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, one))
            listener.listen(64)
            return listener
        except OSError as error:
            listener.close()
            failed = error
            if error.errno != errno.EADDRINUSE:
                break
    raise InputError(f"cannot listen on {host}: {failed.strerror or failed}", "choose another --host or --port")


def _address(host: str, port: int, token: str | None) -> str:
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
