"""Reverse proxy: an nginx configuration that exposes the fleet's calls and nothing else of the SuperLink."""

from __future__ import annotations

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
CONNECTIONS = 8192  # half-sent requests count until their timeout; each needs some KB
PER_ADDRESS = 256  # requests at a time; several sites may share an address
KEPT = 64  # connections to the SuperLink: a new one for each call would cost it a TLS handshake each


def write(coordinator: Coordinator) -> None:
    write_atomically(coordinator.folder / FILE, configuration(coordinator).encode())


def configuration(coordinator: Coordinator) -> str:
    folder, settings = coordinator.folder.absolute(), coordinator.settings
    return f"""# The only way in from outside. Control and runtime calls have no login of their own and are refused.
pid "{folder}/nginx.pid";
error_log "{folder}/log/nginx.log" warn;
worker_processes 1;
worker_rlimit_nofile {2 * CONNECTIONS};
daemon off;

events {{ worker_connections {CONNECTIONS}; }}

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
    limit_conn_zone $binary_remote_addr zone=callers:10m;

    upstream superlink {{
        server 127.0.0.1:{settings.port};
        keepalive {KEPT};
        keepalive_timeout 60s;
    }}

    server {{
        listen {settings.proxy_port} ssl;
        ssl_certificate "{coordinator.certificate.absolute()}";
        ssl_certificate_key "{coordinator.key.absolute()}";
        ssl_protocols TLSv1.3;
        limit_conn callers {PER_ADDRESS};
        proxy_request_buffering off;  # the SuperLink asks for a signature before it reads a body: nothing is kept here
        proxy_set_header X-Real-IP $remote_addr;
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
"""
