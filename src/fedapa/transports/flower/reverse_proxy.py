"""Reverse proxy: an nginx configuration that exposes the fleet's calls and nothing else of the SuperLink."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from fedapa.federation.registry import Coordinator
from fedapa.store.atomic_io import write_atomically

FILE = "nginx.conf"
# The calls that an enrolled node needs. Self-registration is not among them.
CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "pull-object",
    "push-object",
    "confirm-message-received",
)
LARGE = ("push-messages", "push-object")  # calls with large bodies; a tensor travels in pieces of 5 MB
LARGEST, SMALL = "8m", "64k"
CONNECTIONS = 8192  # at a time, half-sent requests until their timeout; each takes up to four of nginx's own
CONNECTIONS_PER_ADDRESS = 512  # counted from the first byte on, by nginx's stream module; several sites may share one
REQUESTS_PER_ADDRESS = 256  # at a time, each counted once its header was read
INNER = "nginx/http.sock"  # where the stream hands connections to the HTTP server: a socket that only its owner reaches
LONGEST_SOCKET = 100  # bytes of a Unix socket's path that every system takes
KEPT = 64  # connections to the SuperLink: a new one for each call would cost it a TLS handshake each


def find_nginx() -> str | None:
    return shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


def stream_module() -> str | None:
    """The directive that loads nginx's stream module, empty if it is built in; None if there is none."""
    nginx = find_nginx()
    if nginx is None:
        return None
    built = subprocess.run([nginx, "-V"], capture_output=True, text=True, check=False).stderr
    folder = re.search(r"--modules-path=(\S+)", built)
    module = Path(folder[1] if folder else "", "ngx_stream_module.so")
    if folder and module.is_file():
        return f'load_module "{module}";\n'
    return "" if "--with-stream " in f"{built} " else None


def inner_socket(coordinator: Coordinator) -> Path:
    return coordinator.folder.absolute() / INNER


def write(coordinator: Coordinator) -> bool:
    """Write the file; returns whether connections are counted per address."""
    module = stream_module() if len(os.fsencode(inner_socket(coordinator))) <= LONGEST_SOCKET else None
    write_atomically(coordinator.folder / FILE, configuration(coordinator, module).encode())
    return module is not None


def configuration(coordinator: Coordinator, module: str | None) -> str:
    """``module`` loads the stream module, which counts connections before it hands them to the HTTP server."""
    folder, settings = coordinator.folder.absolute(), coordinator.settings
    listen, address, caller = f"{settings.proxy_port} ssl", "$binary_remote_addr", "$remote_addr"
    if module is not None:
        listen = f'"unix:{inner_socket(coordinator)}" ssl proxy_protocol'
        address = caller = "$proxy_protocol_addr"
    return f"""# The only way in from outside. Control and runtime calls have no login of their own and are refused.
{module or ""}pid "{folder}/nginx.pid";
error_log "{folder}/log/nginx.log" warn;
worker_processes 1;
worker_rlimit_nofile {8 * CONNECTIONS};
daemon off;

events {{ worker_connections {4 * CONNECTIONS}; }}

http {{
    access_log off;
    server_tokens off;
    client_max_body_size {SMALL};
    client_header_timeout 10s;
    client_body_timeout 20s;
    send_timeout 30s;
    keepalive_timeout 60s;
    reset_timedout_connection on;
    client_header_buffer_size 2k;
    large_client_header_buffers 4 8k;
    client_body_temp_path "{folder}/nginx/body";
    proxy_temp_path "{folder}/nginx/proxy";
    fastcgi_temp_path "{folder}/nginx/fastcgi";
    uwsgi_temp_path "{folder}/nginx/uwsgi";
    scgi_temp_path "{folder}/nginx/scgi";
    limit_conn_zone {address} zone=callers:10m;

    upstream superlink {{
        server 127.0.0.1:{settings.port};
        keepalive {KEPT};
        keepalive_timeout 60s;
    }}

    server {{
        listen {listen};
        ssl_certificate "{coordinator.certificate.absolute()}";
        ssl_certificate_key "{coordinator.key.absolute()}";
        ssl_protocols TLSv1.3;
        limit_conn callers {REQUESTS_PER_ADDRESS};
        proxy_request_buffering off;  # the SuperLink asks for a signature before it reads a body: nothing is kept here
        proxy_set_header X-Real-IP {caller};
        proxy_set_header Host 127.0.0.1;
        proxy_set_header Connection "";
        proxy_ssl_trusted_certificate "{coordinator.ca.absolute()}";
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_http_version 1.1;
        proxy_read_timeout 120s;
        proxy_next_upstream off;

        location ~ ^/v1/fleet/({"|".join(call for call in CALLS if call not in LARGE)})$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://superlink;
        }}
        location ~ ^/v1/fleet/({"|".join(LARGE)})$ {{
            limit_except POST {{ deny all; }}
            client_max_body_size {LARGEST};
            proxy_pass https://superlink;
        }}
        location = /health {{ proxy_pass https://superlink; }}
        location / {{ return 403; }}
    }}
}}
{"" if module is None else _stream(coordinator)}"""


def _stream(coordinator: Coordinator) -> str:
    """Connections count from their first byte on, whatever is sent in them."""
    return f"""
stream {{
    access_log off;
    limit_conn_zone $binary_remote_addr zone=connections:10m;
    limit_conn_log_level info;

    server {{
        listen {coordinator.settings.proxy_port};
        limit_conn connections {CONNECTIONS_PER_ADDRESS};
        proxy_pass "unix:{inner_socket(coordinator)}";
        proxy_protocol on;
        proxy_timeout 150s;  # longer than the HTTP server's own
    }}
}}
"""
