"""The coordinator's processes: Flower's SuperLink on the loopback address, and the reverse proxy for sites."""

from __future__ import annotations

import os
import subprocess

from fedapa.errors import InputError
from fedapa.federation.processes import Child, Supervisor, options, python
from fedapa.federation.registry import Coordinator
from fedapa.store.atomic_io import make_folder
from fedapa.transports.flower import reverse_proxy
from fedapa.transports.flower.reverse_proxy import find_nginx

PID = "coordinator.pid"


def coordinator_processes(coordinator: Coordinator) -> Supervisor:
    folder = coordinator.folder.absolute()
    link = python(
        "fedapa.transports.flower.superlink",
        str(folder),
        *options(
            host="127.0.0.1",
            port=coordinator.settings.port,
            ssl_certfile=coordinator.certificate.absolute(),
            ssl_keyfile=coordinator.key.absolute(),
            ssl_ca_certfile=coordinator.ca.absolute(),
            enable_supernode_auth=True,
            database=coordinator.database.absolute(),
            isolation="process",
            superexec_auth_secret_file=coordinator.secret.absolute(),
            disable_runtime_dependency_installation=True,
        ),
    )
    children = [Child("superlink", link, folder / "log" / "superlink.log", folder)]
    if coordinator.settings.proxy_port:
        log, left = folder / "log" / "proxy.log", reverse_proxy.inner_socket(coordinator)
        children.append(Child("proxy", proxy_command(coordinator), log, folder, left))
    return Supervisor(children, folder / PID)


def proxy_command(coordinator: Coordinator) -> list[str]:
    nginx = find_nginx()
    if nginx is None:
        install = "apt-get install nginx-light libnginx-mod-stream"
        hint = f"{install}; or `coordinator init --proxy-port 0` if all sites are on this machine"
        raise InputError("nginx is not installed, and sites connect through it", hint)
    folder = coordinator.folder.absolute()
    for name in ("nginx", "log"):
        make_folder(folder / name)
    if not (folder / reverse_proxy.FILE).exists():
        reverse_proxy.write(coordinator)
    command = [nginx, "-c", str(folder / reverse_proxy.FILE), "-e", str(folder / "log" / "nginx.log")]
    if os.geteuid() == 0:  # else its workers run as nobody, who may not enter this folder
        command += ["-g", "user root;"]
    tried = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise InputError(
            f"nginx rejected {folder / reverse_proxy.FILE}: {tried.stderr.strip()[:500]}",
            "fix that file, or remove it: the next start writes it",
        )
    return command
