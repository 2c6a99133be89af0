"""The coordinator's SuperLink: Flower's own, behind two checks that Flower does not make.

*Who is calling?* Flower's open-source build has no login for control and runtime calls, and the loopback address is
open to every user of the machine. So they are refused unless the caller's socket belongs to the user who runs the
SuperLink, or to root. Where the system does not show the owner of a socket, all local users are trusted.

*Is it signed?* A call of the fleet must carry the signature of an enrolled key before its body is read, so
strangers cannot fill disk or memory. A key that is used from two addresses, or by a second node for long, raises an
alarm.

Flower never registers a key again that was unregistered. Here it does: the coordinator's registry alone says which keys
are members, so a site that somebody else unregistered can come back.
"""

from __future__ import annotations

import binascii
import datetime
import sys
import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, NodeStatus
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.state.schema.linkstate_models import Node as NodeModel
from flwr.superlink.cli import flower_superlink
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedapa.errors import FedapaError
from fedapa.federation import audit_log, peer
from fedapa.federation.registry import Coordinator, Enrolled

_create_node = SqlLinkState.create_node
FLEET, ACTIVATE = "/v1/fleet/", "/v1/fleet/activate-node"
ADDRESS = "x-real-ip"  # set by the reverse proxy, whose calls are the fleet's; trusted only from this user's processes
RECENT = 90.0  # seconds within which two addresses are two machines; a node calls every few seconds
STALE = 180.0  # seconds after which a killed node's heartbeat has surely expired: its successor is let in before
QUIET = 3600.0  # seconds between two alarms about one site
SERVER: dict[str, Any] = {
    "timeout_keep_alive": 75,  # seconds; longer than the reverse proxy keeps a connection: it would use a closed one
    "proxy_headers": False,  # else a caller could name another caller's connection as its own
}


class Guard:
    """In front of the SuperLink. ``members`` are the enrolled sites; ``alarm`` is called when two use one key."""

    def __init__(
        self,
        app: ASGIApp,
        members: Callable[[], list[Enrolled]],
        alarm: Callable[[str, str], None] = lambda site, text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app, self.members, self.watch, self.callers = app, members, Watch(alarm, clock), peer.Callers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        path = str(scope["path"])
        if path.startswith(FLEET):
            await self._fleet(path, scope, receive, send)
        elif path == "/health" or (ADDRESS not in Headers(scope=scope) and self.callers.is_us(scope)):
            await self.app(scope, receive, send)
        else:
            await _refuse("this call is for the coordinator's own user", 403)(scope, receive, send)

    async def _fleet(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        site = signer(Headers(scope=scope), self.members())
        if site is None:
            await _refuse("no signature of an enrolled site", 401)(scope, receive, send)
            return
        address = self._address(scope)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.watch.note(site.name, address, path == ACTIVATE, message["status"] < 400)
            await send(message)

        await self.app(scope, receive, noting)

    def _address(self, scope: Scope) -> str:
        given = Headers(scope=scope).get(ADDRESS)
        return given if given and self.callers.is_us(scope) else str((scope.get("client") or ("?", 0))[0])


def signer(headers: Headers, members: list[Enrolled]) -> Enrolled | None:
    """The member whose key signed a call, by Flower's rules; None if no member did."""
    try:
        public = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        site = next((site for site in members if site.key.encode() == public), None)
        if site is None:
            return None
        stamp = headers[TIMESTAMP_HEADER]
        age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(stamp)).total_seconds()
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        is_recent = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        is_signed = verify_signature(bytes_to_public_key(public), stamp.encode("ascii"), signature)
        return site if is_recent and is_signed else None
    except (KeyError, ValueError, TypeError, UnicodeError, binascii.Error, UnsupportedAlgorithm):
        return None


def _refuse(text: str, status: int) -> PlainTextResponse:
    return PlainTextResponse(f"{text}\n", status, {"connection": "close"})  # the rest of its body is not read


@dataclass
class Seen:
    """What is known of a site from its calls."""

    address: str
    at: float
    refused_since: float | None = None  # since when a second node has been asking and is refused
    refused_at: float = 0.0
    alarmed: float | None = None


@dataclass
class Watch:
    """Detects a key that two machines use: from two addresses at one time, or by a node that is refused for minutes."""

    alarm: Callable[[str, str], None]
    clock: Callable[[], float]
    seen: dict[str, Seen] = field(default_factory=dict)

    def note(self, site: str, address: str, is_start: bool, is_fine: bool) -> None:
        now = self.clock()
        entry = self.seen.setdefault(site, Seen(address, now))
        if entry.address != address and now - entry.at < RECENT:
            self._raise(site, entry, f"its key is used from {entry.address} and from {address}")
        if is_start and is_fine:
            entry.refused_since = None
        elif is_start:
            if entry.refused_since is None or now - entry.refused_at > RECENT:  # it had given up
                entry.refused_since = now
            entry.refused_at = now
            if now - entry.refused_since > STALE:
                self._raise(site, entry, f"a second node with its key has asked in vain from {address} for minutes")
        if is_fine:
            entry.address, entry.at = address, now

    def _raise(self, site: str, entry: Seen, text: str) -> None:
        now = self.clock()
        if entry.alarmed is None or now - entry.alarmed > QUIET:
            entry.alarmed = now
            self.alarm(site, text)


def remembered(coordinator: Coordinator) -> Callable[[], list[Enrolled]]:
    """The enrolled sites, read again only when the registry changed: a hundred sites make many calls a second."""
    known: tuple[object, list[Enrolled]] = (object(), [])

    def members() -> list[Enrolled]:
        nonlocal known
        stamp = coordinator.stamp()  # before reading: a change meanwhile is seen at the next call
        if known[0] != stamp:
            known = stamp, coordinator.members()
        return known[1]

    return members


def sound_alarm(folder: Path, site: str, text: str) -> None:
    """Write an alarm to the audit log, which `coordinator status` shows; a full disk must not stop the SuperLink."""
    print(f"ALARM: {site}: {text}", file=sys.stderr, flush=True)
    try:
        audit_log.append(folder, "alarm", site=site, text=f"{text}; was its kit stolen? remove-site ends it")
    except FedapaError as error:
        print(error.message, file=sys.stderr, flush=True)


def create_node(state: Any, owner_aid: str, owner_name: str, public_key: bytes, *rest: Any, **named: Any) -> int:
    """Register a key; what is left of it from before it was unregistered is deleted."""
    is_former = NodeModel.public_key == public_key, NodeModel.status == NodeStatus.UNREGISTERED
    with state.session() as session:
        session.query(NodeModel).filter(*is_former).delete()
    return int(_create_node(state, owner_aid, owner_name, public_key, *rest, **named))


def main() -> None:
    """Arguments: the coordinator's folder, then Flower's own."""
    folder = Path(sys.argv.pop(1))
    state: Any = SqlLinkState
    state.create_node = create_node
    run: Any = uvicorn.run

    def alarm(site: str, text: str) -> None:
        sound_alarm(folder, site, text)

    members = remembered(Coordinator(folder))
    uvicorn.run = lambda app, **given: run(Guard(app, members, alarm), **{**given, **SERVER})
    flower_superlink()


if __name__ == "__main__":
    main()
