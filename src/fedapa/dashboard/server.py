"""The web server: pages, data as JSON, and a stream that says when something changed."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fedapa.dashboard import views
from fedapa.dashboard.access import Gate
from fedapa.dashboard.answers import Answers
from fedapa.dashboard.board import FRESH, Board, Snapshot
from fedapa.errors import FedapaError, InputError

PAGES = ("overview", "clients", "collaboration", "compare", "events", "config")
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = ("app.css", "app.js", "charts.js", "dom.js", "pages.js", "icon.svg")
SHARE = 0.01  # of one core: what looking at files that change all the time may take at most
HEARTBEAT = 15.0  # seconds; a line that keeps the connection open
MOST_VIEWERS = 64


class Poller:
    """Looks at the folder for all viewers together, and only while there are any."""

    def __init__(self, board: Board, every: float = FRESH) -> None:
        self.board, self.every = board, every
        self.viewers: set[asyncio.Queue[int | None]] = set()

    async def run(self) -> None:
        version = (await asyncio.to_thread(self.board.look)).version  # before the first viewer comes
        while True:
            spent = 0.0
            if self.viewers:
                now, spent = await asyncio.to_thread(self._look)
                if now is not None and now.version != version:
                    version = now.version
                    for viewer in self.viewers:
                        viewer.put_nowait(version)
            await asyncio.sleep(max(self.every, spent / SHARE))

    def _look(self) -> tuple[Snapshot | None, float]:
        """And how long that took; a folder that cannot be read at this moment is looked at again in the next one."""
        began, now = time.thread_time(), None
        with suppress(OSError, sqlite3.Error, FedapaError):
            now = self.board.look(self.every / 2)
        return now, time.thread_time() - began

    async def stream(self) -> AsyncIterator[str]:
        """Versions of the folder, the present one first; what changes while we look for that is not missed."""
        heard: asyncio.Queue[int | None] = asyncio.Queue()
        self.viewers.add(heard)
        try:
            now = await asyncio.to_thread(self.board.look)
            yield f"retry: 1000\ndata: {now.version}\n\n"
            while True:
                try:
                    news = await asyncio.wait_for(heard.get(), HEARTBEAT)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if news is None:
                    return
                yield f"data: {news}\n\n"
        finally:
            self.viewers.discard(heard)

    def close(self) -> None:
        """The server goes: viewers are told to look for it again."""
        for viewer in self.viewers:
            viewer.put_nowait(None)


def make_app(
    folder: Path,
    host: str = "127.0.0.1",
    token: str | None = None,
    every: float = FRESH,
    coordinator: Path | None = None,
    checks_user: bool = False,
) -> Starlette:
    board, answers = Board(folder, coordinator), Answers()
    poller = Poller(board, every)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(poller.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def stream(request: Request) -> Response:
        if len(poller.viewers) >= MOST_VIEWERS:
            return JSONResponse({"error": "too many viewers"}, 503)
        return StreamingResponse(poller.stream(), media_type="text/event-stream")

    def data(view: Callable[[Snapshot, Request], views.View]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            now, asked = board.look(), f"{request.url.path}?{request.url.query}"
            try:
                found = answers.get(now.version, asked, lambda: _encoded(view(now, request)))
            except InputError as error:
                return JSONResponse({"error": error.message, "hint": error.hint}, 404)
            return Response(found, media_type="application/json")

        return answer

    known = {
        "overview": lambda now, request: views.overview(board, now),
        "clients": lambda now, request: views.clients(now, _run(request)),
        "client": lambda now, request: views.client(now, _run(request), _number(request, "client") or 0),
        "weights": lambda now, request: views.weights(
            now, _run(request), _number(request, "round"), request.query_params.get("like", "")
        ),
        "course": lambda now, request: views.course(now, _run(request)),
        "compare": lambda now, request: views.compare(
            now, request.query_params.getlist("run"), request.query_params.get("against", "local")
        ),
        "events": lambda now, request: views.events(now, request.query_params.get("run")),
        "config": lambda now, request: views.config(now, _run(request)),
    }
    routes = [
        Route("/", _page),
        *(Route(f"/{name}", _page) for name in PAGES),
        *(Route(f"/static/{name}", _static(name)) for name in FILES),
        Route("/static/plotly.js", _plotly),
        Route("/api/stream", stream),
        *(Route(f"/api/{name}", data(view)) for name, view in known.items()),
    ]
    gate = Middleware(Gate, host=host, token=token, checks_user=checks_user)
    app = Starlette(routes=routes, lifespan=lifespan, middleware=[gate])
    app.state.poller = poller
    return app


def _encoded(view: views.View) -> bytes:
    return json.dumps(views.plain(view), separators=(",", ":")).encode()


def _run(request: Request) -> str:
    return request.query_params.get("run", "")


def _number(request: Request, key: str) -> int | None:
    word = request.query_params.get(key, "")
    return int(word) if word.isascii() and word.isdigit() and len(word) < 10 else None


def _asset(name: str) -> bytes:
    return resources.files(__package__).joinpath("static", name).read_bytes()


def _page(request: Request) -> Response:
    return Response(_asset("index.html"), media_type="text/html")


def _static(name: str) -> Callable[[Request], Response]:
    kind = KINDS[Path(name).suffix]
    return lambda request: Response(_asset(name), media_type=kind, headers={"Cache-Control": "no-cache"})


def _plotly(request: Request) -> Response:
    return FileResponse(plotly_file(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


def plotly_file() -> Path:
    """plotly.js as the plotly package brings it; the package itself is not loaded."""
    spec = find_spec("plotly")
    places = (spec.submodule_search_locations if spec else None) or []
    for place in places:
        if (path := Path(place) / "package_data" / "plotly.min.js").is_file():
            return path
    raise InputError("plotly is not installed", "pip install 'fedapa[dashboard]'")


class Server(uvicorn.Server):
    """Open streams are closed when it ends, not waited for."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="error",
                access_log=False,
                timeout_graceful_shutdown=2,
                server_header=False,
                proxy_headers=False,  # else a caller could name another caller's connection as its own
                ws="none",
            )
        )
        self._poller: Poller = app.state.poller

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ctrl-C, once or often, is the usual end of it and no failure."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._poller.close()
        await super().shutdown(sockets)
