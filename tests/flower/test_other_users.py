"""Another user of the same machine: reads no files, makes no control calls, watches nothing, is no SuperNode."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from fleet import Direct, config_text, grid, make_sites, over_grid, terms_of
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from hardship import NOBODY, acting_as
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from command import invoke
from fedapa.dashboard.server import Server, make_app
from fedapa.federation import peer, processes
from fedapa.federation.kit import CA, LOCAL, Kit, write_kit
from fedapa.federation.registry import Settings, create
from fedapa.store import atomic_io, run_folder
from fedapa.transports.flower import site_supervisor, superlink, supernode, worker
from fedapa.transports.flower.superlink import Guard

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@contextmanager
def served(app: object, server: uvicorn.Server | None = None) -> Iterator[int]:
    """By the SuperLink's own settings, or by a server of one's own."""
    server = server or uvicorn.Server(
        uvicorn.Config(app, log_level="error", lifespan="off", ws="none", **superlink.SERVER)  # type: ignore[arg-type]
    )
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def asked_by(user: int, host: str, port: int, path: str, stays: bool = True, header: str = "") -> str:
    """The status that another user gets."""
    return acting_as(user, lambda: _status(host, port, path, stays, header))


def _status(host: str, port: int, path: str, stays: bool, header: str) -> bytes:
    words = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, port)) as line:
        line.sendall(words.replace("POST / ", "GET / ").encode())
        return line.recv(100).split()[1] if stays else b"gone"


class Recording:
    """A SuperLink that notes what reaches it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        self.reached.append(scope["path"])
        await PlainTextResponse("done")(scope, receive, send)


@as_root
@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_control_calls_are_for_the_coordinators_user(host: str) -> None:
    link = Recording()
    with served(Guard(link, list)) as port:
        for path in ("/v1/control/start-run", "/v1/control/unregister-node", "/v1/runtime/acquire-task", "/docs"):
            assert asked_by(NOBODY, host, port, path) == "403"
            assert asked_by(0, host, port, path) == "200"
        assert asked_by(NOBODY, host, port, "/v1/fleet/pull-messages") == "401"  # sites sign those
        assert asked_by(NOBODY, host, port, "/v1/fleet/../control/start-run") == "401"
    assert [path for path in link.reached if "control" in path] == [
        "/v1/control/start-run",
        "/v1/control/unregister-node",
    ]


@as_root
def test_what_comes_through_the_proxy_is_no_control_call() -> None:
    """The proxy is a process of the coordinator's user. A path that it reads in another way than the SuperLink does
    must not be taken for a call of that user."""
    with served(Guard(link := Recording(), list)) as port:
        for path in ("/v1/control/start-run", "/v1/control/%2e%2e/fleet/get-run", "/v1/runtime/acquire-task"):
            assert asked_by(0, "127.0.0.1", port, path, header="X-Real-IP: 203.0.113.7\r\n") == "403"
    assert link.reached == []


@contextmanager
def somebody_elses_name(port: int) -> Iterator[str]:
    """A header that names the other end of a connection of ours, which every user can see in the system's table."""
    with closing(socket.create_connection(("127.0.0.1", port))) as ours:
        yield f"X-Forwarded-For: 127.0.0.1:{ours.getsockname()[1]}\r\n"


@as_root
def test_a_caller_does_not_become_us_by_naming_a_connection_of_ours() -> None:
    with served(Guard(link := Recording(), list)) as port, somebody_elses_name(port) as header:
        assert asked_by(NOBODY, "127.0.0.1", port, "/v1/control/start-run", header=header) == "403"
    assert link.reached == []


@as_root
def test_nor_does_a_viewer_of_the_page(tmp_path: Path) -> None:
    app = make_app(tmp_path, checks_user=True)
    with served(app, Server(app)) as port, somebody_elses_name(port) as header:
        assert asked_by(NOBODY, "127.0.0.1", port, "/", header=header) == "403"
        assert asked_by(0, "127.0.0.1", port, "/") == "200"


@as_root
def test_whose_a_connection_is_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of a busy machine is long. The answer belongs to the connection, not to its port."""
    looks: list[object] = []
    monkeypatch.setattr(peer, "is_ours", lambda *ends: looks.append(ends) or True)
    with served(Guard(Recording(), list)) as port, httpx.Client() as client:
        for _ in range(3):
            assert client.post(f"http://127.0.0.1:{port}/v1/control/list-runs").status_code == 200
    assert len(looks) == 1
    monkeypatch.setattr(peer, "is_ours", lambda *ends: False)
    callers, ends = peer.Callers(), {"client": ("127.0.0.1", 5), "server": ("127.0.0.1", 6)}
    assert not callers.is_us(ends)
    monkeypatch.setattr(peer, "is_ours", lambda *ends: True)
    assert not callers.is_us(ends)
    again = ("127.0.0.1", int("5"))  # another connection, from the same port
    assert callers.is_us({**ends, "client": again})


@as_root
def test_a_caller_that_hangs_up_at_once_is_nobody() -> None:
    """The system lists a socket that was closed under root: it must not pass for root's."""
    link = Recording()
    with served(Guard(link, list)) as port:
        for _ in range(20):
            asked_by(NOBODY, "127.0.0.1", port, "/v1/control/start-run", stays=False)
        assert asked_by(0, "127.0.0.1", port, "/health") == "200"
    assert link.reached == ["/health"]


def test_a_socket_that_was_closed_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without luck: a line of the system's table for a closed socket has the number 0 as user and as inode."""
    spelled = [peer._spelled((host, port))[0] for host, port in (("127.0.0.1", 4000), ("127.0.0.1", 9091))]
    monkeypatch.setattr(peer, "TABLES", (tmp_path / "tcp",))
    for inode, user in ((0, None), (77, 0)):
        line = f"0: {spelled[0]} {spelled[1]} 04 00000000:00000000 00:00000000 00000000 0 0 {inode}"
        (tmp_path / "tcp").write_text(f"sl local_address rem_address\n{line}\n")
        assert peer.owner(("127.0.0.1", 4000), ("127.0.0.1", 9091)) == user


def test_where_the_system_does_not_tell_this_machine_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "TABLES", (Path("/proc/net/none"),))
    assert not peer.can_tell()
    with served(Guard(Recording(), list)) as port:
        assert httpx.post(f"http://127.0.0.1:{port}/v1/control/list-runs").status_code == 200


@pytest.mark.skipif(not peer.can_tell(), reason="this system does not tell whose a socket is")
def test_both_ends_of_a_connection_are_ours() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        with near, far:
            assert peer.owner(near.getsockname(), near.getpeername()) == os.geteuid()
            assert peer.owner(far.getsockname(), far.getpeername()) == os.geteuid()
            assert peer.owner(("127.0.0.1", 1), near.getpeername()) is None
    assert peer.owner(near_address := ("127.0.0.1", 9), near_address) is None


@as_root
def test_the_page_of_this_machine_is_for_its_user(tmp_path: Path) -> None:
    with served(make_app(tmp_path, checks_user=True)) as port:
        assert asked_by(NOBODY, "127.0.0.1", port, "/") == "403"
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200


def test_an_empty_token_is_refused(tmp_path: Path) -> None:

    from fedapa.cli.watch import command

    for token in ("", "  "):
        refused = invoke(command, str(tmp_path), "--token", token)
        assert "--token is empty" in str(refused.exception)


# ------------------------------------------------------------------------------------------------------------- files


@pytest.fixture
def open_handed() -> Iterator[None]:
    """A user whose files are for all."""
    before = os.umask(0)
    yield
    os.umask(before)


def readable_by_others(folder: Path) -> list[Path]:
    """What another user can reach and read, below a folder."""
    found = []
    for path in [folder, *folder.rglob("*")]:
        inside = path.relative_to(folder.parent).parents
        is_closed = any((folder.parent / one).stat().st_mode & 0o077 == 0 for one in inside if one != Path("."))
        if not is_closed and path.stat().st_mode & 0o077:
            found.append(path.relative_to(folder.parent))
    return found


@pytest.mark.usefixtures("open_handed")
def test_states_checkpoints_runs_and_kits_are_their_owners(tmp_path: Path) -> None:
    coordinator = create(tmp_path / "coordinator", Settings(), [], None, None)
    coordinator.enrol("amber", tmp_path / "kits" / "amber")
    terms, run = terms_of(config_text(rounds=1, participation=(1.0, 1.0))), tmp_path / "runs" / "one"
    run_folder.create(run, terms.config)
    sites = make_sites(tmp_path / "sites")
    over_grid(grid(Direct(sites), terms), terms, run)
    assert readable_by_others(tmp_path / "coordinator") == []
    assert readable_by_others(tmp_path / "kits") == []
    assert readable_by_others(tmp_path / "runs") == []
    for site in sites:
        assert readable_by_others(site / "states") == []
    for path in (run / "run.db", *run.glob("checkpoints/*"), *(tmp_path / "sites").rglob("*.safetensors")):
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("open_handed")
def test_what_is_made_to_be_shown_is_for_all(tmp_path: Path) -> None:
    atomic_io.write_atomically(tmp_path / "report.html", b"", atomic_io.PUBLIC)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o666


@pytest.mark.usefixtures("open_handed")
def test_children_keep_their_files_to_themselves(tmp_path: Path) -> None:
    child = processes.Child("short", ["touch", str(tmp_path / "made")], tmp_path / "log" / "x.log", tmp_path)
    child.start()
    assert child.process is not None
    child.process.wait()
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o700


def test_children_have_room_for_many_connections(tmp_path: Path) -> None:
    """Every local user can open connections to a port: with the usual 1,024 they would soon be used up."""
    log, limits = tmp_path / "log" / "x.log", resource.getrlimit(resource.RLIMIT_NOFILE)
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, limits[1]), limits[1]))
        processes.spawn([sys.executable, "-c", code], log, tmp_path).wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert int(log.read_text()) == min(processes.MOST_FILES, limits[1])


# ------------------------------------------------------------------------------------------ the SuperNode's own port


@as_root
def test_another_user_hands_the_supernode_no_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower reads all of a body, however large, before it asks for a token."""
    monkeypatch.setattr(uvicorn, "Config", uvicorn.Config)
    supernode.guard()
    config = uvicorn.Config(link := Recording(), log_level="error", lifespan="off", ws="none")
    with served(link, uvicorn.Server(config)) as port, somebody_elses_name(port) as header:
        for words in ("", header):
            assert asked_by(NOBODY, "127.0.0.1", port, "/v1/runtime/push-object", header=words) == "403"
        assert link.reached == []
        assert asked_by(0, "127.0.0.1", port, "/v1/runtime/push-object") == "200"


def test_flower_alone_reads_a_body_before_it_asks_who_sends_it() -> None:
    """Once this fails, the guard in front of the SuperNode is needed for connections alone."""
    parts = [{"type": "http.request", "body": bytes(100), "more_body": left > 0} for left in (2, 1, 0)]
    app = create_app(state_factory=NodeStateFactory(ObjectStoreFactory()), superexec_auth_secret=bytes(32))
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": (path := "/v1/runtime/push-object")}
    scope |= {"raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "https"}
    scope |= {"headers": [(b"content-type", b"application/protobuf")], "client": ("127.0.0.1", 5), "server": None}

    async def receive() -> dict[str, object]:
        return parts.pop(0)

    async def send(message: dict[str, object]) -> None:
        return

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert parts == []


def test_a_stranger_at_the_supernodes_port_is_not_taken_for_it(tmp_path: Path) -> None:
    write_kit(tmp_path, Kit("amber", "fed.example.org:9443"))
    for name in ("site.key", "ca.crt"):
        (tmp_path / name).write_text("x")
    supervisor = site_supervisor.site_processes(tmp_path)
    supervisor.prepare()
    local = tmp_path / LOCAL
    assert not (local / "ca.key").exists()
    trust = ssl.create_default_context(cadata=worker.trusted(tmp_path).decode())
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("task"))])
    with served_tls(app, local / "node.crt", local / "node.key") as port:
        assert httpx.get(f"https://127.0.0.1:{port}/", verify=trust).text == "task"
        supervisor.prepare()  # the next start: the one of before is a stranger now
        trust = ssl.create_default_context(cadata=worker.trusted(tmp_path).decode())
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"https://127.0.0.1:{port}/", verify=trust)
    assert str(local / "node.crt") in supervisor.children[0].command
    assert (local / CA).is_file()


@contextmanager
def served_tls(app: object, certificate: Path, key: Path) -> Iterator[int]:
    port = processes.free_port()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            port=port,
            log_level="error",
            lifespan="off",
            ws="none",  # type: ignore[arg-type]
            ssl_certfile=certificate,
            ssl_keyfile=str(key),
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield port
    finally:
        server.should_exit = True
        thread.join()
