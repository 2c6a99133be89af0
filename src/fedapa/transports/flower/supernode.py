"""A site's SuperNode: Flower's own, with fixes for five faults that leave a site silent or offline.

A SuperNode takes one request at a time, and sends its reply before it polls for the next one. If a run ends while its
request is fetched, the task stays, and the worker waits for parts that never come. If a worker dies after it began a
task and before it read the request, nobody answers that. If a worker dies while it hands over a reply, the SuperNode
waits for the rest without end. If one heartbeat is answered by an error, such as a 500 of a busy
SuperLink, Flower's thread of heartbeats ends: the site goes on polling, and is offline for good. A heartbeat that is
not answered within five seconds counts as lost, while a poll may take thirty: at a busy SuperLink, sites that go on
polling are offline.

Its local API is for the worker. Flower reads a whole body before it asks for a token, so another user of the machine
could fill its memory: requests of other users are refused before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import uvicorn
from flwr.supercore import heartbeat
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import fleet_http_client, fleet_http_connection
from flwr.supernode import start_client_internal as flower
from flwr.supernode.cli import flower_supernode
from flwr.supernode.nodestate import in_memory_nodestate
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedapa.federation import peer
from fedapa.transports.flower import timing

STALLED = 60.0  # seconds without another part of a reply, from a worker on this machine
_take, _send = flower._pull_and_store_message, flower._push_messages
_answer: Any = in_memory_nodestate.InMemoryNodeState._on_task_tokens_expired


class RunOver(Exception):
    """The run ended meanwhile. Flower says so by an exception that no ``except Exception`` sees."""


def take(*, pull_object: Callable[..., bytes], confirm_message_received: Callable[..., None], **rest: Any) -> Any:
    """Fetch a request; if its run ends meanwhile, treat it as any request that could not be fetched."""
    return _take(pull_object=_plainly(pull_object), confirm_message_received=_plainly(confirm_message_received), **rest)


def _plainly(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*words: Any) -> Any:
        try:
            return call(*words)
        except RunNotRunningException as error:
            raise RunOver("its run is over") from error

    return called


class Arriving:
    """The parts of a reply. A part that does not arrive in time is an error, and the reply is dropped."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._since: float | None = None  # when the missing part was first requested

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, part: str) -> bytes | None:
        content: bytes | None = self._store.get(part)
        if content != b"":
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > STALLED:
            raise TimeoutError("the worker died while it handed its reply over")
        return content


def send(*, object_store: Any, **rest: Any) -> None:
    """Wait for a reply and send it."""
    watched: Any = Arriving(object_store)
    _send(object_store=watched, **rest)


def answer(state: Any, dead: Sequence[Any]) -> None:
    """Answer the request of a worker that died by an error, also if the worker had not read it.

    There is one request at a time, and the last task is its own. An older one was answered before its worker died, or
    stopped reporting: the request that is here now is another worker's.
    """
    last = next(reversed(state.task_store), None)
    if all(task.task_id != last for task in dead):
        return
    with state.lock_msg_store:
        for name, entry in state.msg_store.items():
            if not entry.is_retrieved and not entry.message.metadata.reply_to_message_id:
                entry.is_retrieved = True
                state.record_message_processing_start(name)
        _answer(state, dead)


class HeartbeatSender(heartbeat.HeartbeatSender):
    """Heartbeats that go on after an error, a little later."""

    def __init__(self, beat: Callable[[], bool]) -> None:
        super().__init__(lambda: _tried(beat))


def _tried(beat: Callable[[], bool]) -> bool:
    try:
        return beat()
    except (httpx.HTTPError, RuntimeError):
        return False


def paced(seconds: float) -> None:
    """Sleep; Flower's pause of three seconds between two polls is a setting here."""
    time.sleep(timing.poll() if seconds == 3 else min(seconds, timing.poll()))


def mend() -> None:
    """Put the fixes and this site's pace into Flower's modules."""
    node: Any = flower
    node._pull_and_store_message, node._push_messages = take, send
    node.time = SimpleNamespace(sleep=paced)
    memory: Any = in_memory_nodestate.InMemoryNodeState
    memory._on_task_tokens_expired = answer
    connection: Any = fleet_http_connection
    connection.HeartbeatSender = HeartbeatSender
    modules: list[Any] = [fleet_http_connection, heartbeat, in_memory_corestate]
    for module in modules:
        module.HEARTBEAT_DEFAULT_INTERVAL = timing.heartbeat()
    calls: Any = fleet_http_client
    # A second try still comes before the site is offline.
    calls.HEARTBEAT_CALL_TIMEOUT = timing.heartbeat() / 2


class OwnUser:
    """In front of the local API: refuses another user's request before its body is read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.callers = app, peer.Callers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self.app
        if scope["type"] != "lifespan" and not self.callers.is_us(scope):
            answer = PlainTextResponse("this port is for the site's own user\n", 403, {"connection": "close"})
        await answer(scope, receive, send)


def guard() -> None:
    """Put ``OwnUser`` in front of whatever this process serves."""
    plain: Any = uvicorn.Config
    server: Any = uvicorn
    # With proxy headers a caller could name another caller's connection as its own.
    server.Config = lambda app, **given: plain(OwnUser(app), **{**given, "proxy_headers": False})


def main() -> None:
    mend()
    guard()
    flower_supernode()


if __name__ == "__main__":
    main()
