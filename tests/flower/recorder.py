"""Somebody in the middle with the coordinator's own TLS key: hears every call of a site, and can repeat it."""

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import httpx

from fedapa.federation.registry import Coordinator

HOP = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}


class Call(NamedTuple):
    """One signed call, as it came out of the TLS connection."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Sites hang up as they like."""


class Recorder:
    """Passes a site's calls on to the proxy; ``before`` and ``after`` hear of each, and may repeat any."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.calls, self._lock = list[Call](), threading.Lock()
        self.before: Callable[[Call], None] = lambda call: None
        self.after: Callable[[Call], None] = lambda call: None
        trust = ssl.create_default_context(cafile=str(coordinator.ca))
        self._proxy = httpx.Client(base_url=f"https://{coordinator.fleet_address}", verify=trust, timeout=60)
        self._server = Quiet(("127.0.0.1", 0), _handler(self))
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(coordinator.certificate, coordinator.key)
        self._server.socket = own.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def say(self, call: Call) -> httpx.Response:
        """The same bytes under the same signature, once (more)."""
        return self._proxy.post(call.path, content=call.body, headers=call.headers)

    def hear(self, call: Call) -> httpx.Response:
        with self._lock:  # one after another: what is repeated lies between two known calls
            self.before(call)
            answer = self.say(call)
            self.calls.append(call)
            self.after(call)
        return answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._proxy.close()


def _handler(recorder: Recorder) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            kept = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            answer = recorder.hear(Call(self.path, kept, body))
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in HOP | {"content-encoding"}:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            return

    return Handler
