"""The coordinator's SuperLink: Flower's own, whose control and runtime calls only the coordinator's user may make.

Flower's open-source build has no login for them, and the address of this machine is open to every user of it. So every
call but those of the fleet, which are signed by the sites' keys, is refused unless its socket belongs to the user who
runs the SuperLink, or to root. Where the system does not say whose a socket is, all users of the machine are trusted.
"""

from __future__ import annotations

from typing import Any

import uvicorn
from flwr.superlink.cli import flower_superlink
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedapa.federation import peer


class OwnerOnly:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse("this call is for the coordinator's own user\n", 403)(scope, receive, send)


def _is_allowed(scope: Scope) -> bool:
    path = str(scope.get("path", ""))
    is_fleets = scope["type"] == "http" and (path == "/health" or path.startswith("/v1/fleet/"))
    return is_fleets or peer.asks_for_itself(scope)


def main() -> None:
    run: Any = uvicorn.run
    uvicorn.run = lambda app, **settings: run(OwnerOnly(app), **settings)
    flower_superlink()


if __name__ == "__main__":
    main()
