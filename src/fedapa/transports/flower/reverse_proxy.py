"""Reverse proxy: an nginx configuration that exposes the fleet's calls and nothing else of the SuperLink."""

from __future__ import annotations

from fedapa.federation.registry import Coordinator
from fedapa.store.atomic_io import write_atomically

FILE = "nginx.conf"
# What a node that was enrolled by hand needs. Registering itself is not among it.
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
LARGEST = "64m"  # of one call; a tensor travels in pieces of less


def write(coordinator: Coordinator) -> None:
    write_atomically(coordinator.folder / FILE, configuration(coordinator).encode())


def configuration(coordinator: Coordinator) -> str:
    folder, settings = coordinator.folder.absolute(), coordinator.settings
    return f"""# The only way in from outside. Control and runtime calls have no login of their own: they end here.
pid "{folder}/nginx.pid";
error_log "{folder}/log/nginx.log" warn;
worker_processes 1;
daemon off;

events {{ worker_connections 512; }}

http {{
    access_log off;
    server_tokens off;
    client_max_body_size {LARGEST};
    client_body_buffer_size 4m;
    client_body_temp_path "{folder}/nginx/body";
    proxy_temp_path "{folder}/nginx/proxy";
    fastcgi_temp_path "{folder}/nginx/fastcgi";
    uwsgi_temp_path "{folder}/nginx/uwsgi";
    scgi_temp_path "{folder}/nginx/scgi";
    limit_conn_zone $binary_remote_addr zone=callers:1m;

    server {{
        listen {settings.door} ssl;
        ssl_certificate "{coordinator.certificate.absolute()}";
        ssl_certificate_key "{coordinator.key.absolute()}";
        ssl_protocols TLSv1.3;
        limit_conn callers 64;
        proxy_ssl_trusted_certificate "{coordinator.ca.absolute()}";
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_http_version 1.1;
        proxy_read_timeout 120s;
        proxy_next_upstream off;

        location ~ ^/v1/fleet/({"|".join(CALLS)})$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://127.0.0.1:{settings.port};
        }}
        location = /health {{ proxy_pass https://127.0.0.1:{settings.port}; }}
        location / {{ return 403; }}
    }}
}}
"""
