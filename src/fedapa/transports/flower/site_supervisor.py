"""A site's processes: Flower's SuperNode, which talks to the coordinator, the worker that answers for it, and one that
makes the site's model when a run has ended."""

from __future__ import annotations

import secrets
from pathlib import Path

from fedapa.errors import InputError
from fedapa.federation import audit_log, keys
from fedapa.federation.delivery import Delivery
from fedapa.federation.keys import write_secret
from fedapa.federation.kit import CA, KEY, LOCAL, SECRET, read_kit
from fedapa.federation.processes import Child, Supervisor, free_port, options, python
from fedapa.store.atomic_io import make_folder

PID = "site.pid"


def site_processes(folder: Path) -> Supervisor:
    """The supervisor of one site. A SuperNode whose predecessor was killed is refused and ends until that
    one's heartbeat has expired; it is restarted until it is accepted."""
    folder, kit = folder.absolute(), read_kit(folder)
    for name in (KEY, CA):
        if not (folder / name).is_file():
            raise InputError(f"{folder / name} is missing", "put it beside kit.toml")
    port, local = free_port(), folder / LOCAL
    node = python(
        "fedapa.transports.flower.supernode",
        *options(
            superlink=kit.coordinator,
            root_certificates=folder / CA,
            auth_supernode_private_key=folder / KEY,
            isolation="process",
            superexec_auth_secret_file=folder / SECRET,
            host="127.0.0.1",
            port=port,
            ssl_ca_certfile=local / CA,
            ssl_certfile=local / "node.crt",
            ssl_keyfile=local / "node.key",
        ),
    )
    worker = python("fedapa.transports.flower.worker", str(folder), f"127.0.0.1:{port}")
    logs = folder / "log"
    children = [Child("node", node, logs / "node.log", folder), Child("worker", worker, logs / "worker.log", folder)]
    return Supervisor([*children, Delivery(folder, logs / "export.log")], folder / PID, lambda: _renew(folder))


def _renew(folder: Path) -> None:
    """New secrets for every start: the worker's token for the SuperNode, and the certificate that authenticates the
    SuperNode to the worker. Another local user who takes the port during a restart has neither."""
    folder.chmod(0o700)
    audit_log.append(folder, "joined", coordinator=read_kit(folder).coordinator)
    write_secret(folder / SECRET, secrets.token_bytes(32))
    local = make_folder(folder / LOCAL)
    keys.make_authority(local / CA, local / "ca.key", "worker")
    keys.make_server(local / "node.crt", local / "node.key", local / CA, local / "ca.key", ["127.0.0.1"])
    (local / "ca.key").unlink()
