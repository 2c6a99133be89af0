"""Who gets in: the right Host, no foreign Origin, a token where others can reach the port; and what pages may do."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedapa.federation import peer

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
# Plotly sets style attributes on what it draws; scripts come from files of this server alone.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """In front of everything; a request that does not belong here never reaches a page."""

    def __init__(
        self, app: ASGIApp, host: str = "127.0.0.1", token: str | None = None, checks_user: bool = False
    ) -> None:
        self.app, self.token, self.checks_user, self.callers = app, token, checks_user, peer.Callers()
        self.names = None if host in ("0.0.0.0", "::") else LOOPBACK | {host.lower()}
        mark = hashlib.sha256((token or "").encode()).hexdigest()[:8]
        self.cookie = f"fedapa-{mark}"  # servers on other ports have cookies of their own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nothing here speaks anything else
        answer = self._refusal(Request(scope))
        await (answer or self.app)(scope, receive, _with_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        if not self._is_host_ours(request.headers.get("host", "")):
            return PlainTextResponse("this name is not this server's\n", 403)
        if not _is_origin_ours(request):
            return PlainTextResponse("requests from other sites are refused\n", 403)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this server only shows\n", 405)
        if self.token is not None:
            return self._ask_for_token(request)
        if not self._is_this_user(request):
            return PlainTextResponse("another user's: ask them to start it with --token\n", 403)
        return None

    def _is_this_user(self, request: Request) -> bool:
        """Without a token the port of this machine is for the user who opened it."""
        return not self.checks_user or self.callers.is_us(request.scope)

    def _is_host_ours(self, header: str) -> bool:
        try:
            name = urlsplit(f"//{header}").hostname
        except ValueError:
            return False
        return name is not None and (self.names is None or name in self.names)

    def _ask_for_token(self, request: Request) -> Response | None:
        """By a cookie; the first visit brings it in the address, which then forgets it."""
        if self._is_right(request.cookies.get(self.cookie, "")):
            return None
        scheme, _, word = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_right(word):
            return None
        if not self._is_right(request.query_params.get("token", "")):
            return PlainTextResponse("open the address that `fedapa watch` printed: it has the token\n", 401)
        rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "token"])
        path = "/" + request.url.path.lstrip("/\\")  # two slashes would lead to another server
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(self.cookie, self.token or "", httponly=True, samesite="lax")
        return answer

    def _is_right(self, word: str) -> bool:
        return hmac.compare_digest(word.encode(), (self.token or "").encode())


def _is_origin_ours(request: Request) -> bool:
    """A browser says where a request comes from; what is no browser says nothing."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        return False
    is_visit = request.headers.get("sec-fetch-mode") == "navigate"
    return is_visit or request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sending
