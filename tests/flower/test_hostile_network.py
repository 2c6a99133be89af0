"""Strangers at the reverse proxy, and a kit that somebody else has, too: the real nginx before a SuperLink of straw."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import uvicorn
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from command import invoke
from fedapa.cli import coordinator as coordinator_cli
from fedapa.errors import InputError
from fedapa.federation import audit_log, processes
from fedapa.federation.processes import Child
from fedapa.federation.registry import Coordinator, Settings, create
from fedapa.transports.flower import reverse_proxy, server_supervisor
from fedapa.transports.flower.superlink import QUIET, RECENT, STALE, Guard, Watch, remembered, signer, sound_alarm

STRANGERS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")  # other addresses than that of the sites
no_nginx = pytest.mark.skipif(server_supervisor.find_nginx() is None, reason="nginx is not installed")


class Straw:
    """Counts what reaches it, bodies included."""

    def __init__(self) -> None:
        self.calls, self.bytes, self.caller = 0, 0, ""

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        self.calls += 1
        self.caller = Headers(scope=scope).get("x-real-ip", "")
        self.bytes += len(await Request(scope, receive).body())
        await PlainTextResponse("done")(scope, receive, send)


class House(NamedTuple):
    coordinator: Coordinator
    kit: Path
    link: Straw
    door: Child

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.coordinator.ca))

    def post(self, call: str, content: bytes, signed: bool = True) -> int:
        headers = signature(self.kit) if signed else {}
        url = f"https://{self.coordinator.fleet_address}/v1/fleet/{call}"
        return httpx.post(url, content=content, headers=headers, verify=self.trust, timeout=30).status_code

    def half_send(self, lines: ExitStack, count: int, strangers: int = 1) -> int:
        """Connections that strangers open and send half a header on; returns how many the proxy held."""
        held = 0
        for k in range(count):
            address = "127.0.0.1", self.coordinator.settings.proxy_port
            plain = lines.enter_context(socket.create_connection(address, 5, (STRANGERS[k % strangers], 0)))
            with suppress(OSError):  # refused: the connection ends in the handshake
                line = lines.enter_context(self.trust.wrap_socket(plain, server_hostname="127.0.0.1"))
                line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                held += 1
        return held

    def spooled(self) -> int:
        return sum(path.stat().st_size for path in (self.coordinator.folder / "nginx").rglob("*") if path.is_file())


def signature(kit: Path, at: str = "") -> dict[str, str]:
    key = load_ssh_private_key((kit / "site.key").read_bytes(), None)
    stamp = at or now().isoformat()
    signed = sign_message(key, stamp.encode("ascii"))  # type: ignore[arg-type]
    public = public_key_to_bytes(key.public_key())  # type: ignore[arg-type]
    return {
        "flwr-public-key": b64encode(public).decode(),
        "flwr-signature": b64encode(signed).decode(),
        "flwr-timestamp": stamp,
    }


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with opened(tmp_path_factory.mktemp("house")) as made:
        yield made


@contextmanager
def opened(folder: Path) -> Iterator[House]:
    settings = Settings("127.0.0.1", processes.free_port(), processes.free_port())
    coordinator, link = create(folder / "coordinator", settings, [], None, None), Straw()
    coordinator.enrol("amber", folder / "kit")
    reverse_proxy.write(coordinator)
    server = uvicorn.Server(
        uvicorn.Config(
            Guard(link, coordinator.members),
            port=settings.port,
            log_level="error",
            lifespan="off",
            ws="none",
            ssl_certfile=coordinator.certificate,
            ssl_keyfile=str(coordinator.key),
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    _, door = server_supervisor.coordinator_processes(coordinator).children
    assert isinstance(door, Child)
    door.start()
    try:
        end = time.monotonic() + 30
        while not server.started or not _listens(settings.proxy_port):
            assert time.monotonic() < end
            time.sleep(0.05)
        yield House(coordinator, folder / "kit", link, door)
    finally:
        door.stop()
        server.should_exit = True
        thread.join()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@no_nginx
def test_half_sent_requests_do_not_block_the_reverse_proxy(house: House) -> None:
    with ExitStack() as lines:
        house.half_send(lines, 700, len(STRANGERS))  # 510 did
        assert house.post("pull-messages", b"x") == 200
        text = (house.coordinator.folder / reverse_proxy.FILE).read_text()
        assert "client_header_timeout 10s" in text  # and they are not held for long


@no_nginx
@pytest.mark.skipif(reverse_proxy.stream_module() is None, reason="nginx has no stream module (libnginx-mod-stream)")
def test_one_address_cannot_hold_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy with room for 100 connections of 20 an address, and a stranger who opens 450 and finishes no header."""
    monkeypatch.setattr(reverse_proxy, "CONNECTIONS", 100)
    monkeypatch.setattr(reverse_proxy, "CONNECTIONS_PER_ADDRESS", 20)
    with opened(tmp_path) as house, ExitStack() as lines:
        assert house.half_send(lines, 450) == 20
        assert house.post("pull-messages", b"x") == 200


@no_nginx
@pytest.mark.skipif(reverse_proxy.stream_module() is None, reason="nginx has no stream module (libnginx-mod-stream)")
def test_a_proxy_that_was_killed_comes_back(tmp_path: Path) -> None:
    """kill -9 leaves its socket behind, and a worker that has the port."""
    with opened(tmp_path) as house:
        first = house.door.process
        assert first is not None
        first.kill()
        first.wait()
        assert reverse_proxy.inner_socket(house.coordinator).is_socket()
        house.door.look()
        house.door.pause = 0.0
        house.door.look()
        end = time.monotonic() + 30
        while not _listens(house.coordinator.settings.proxy_port):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert house.post("pull-messages", b"x") == 200
        assert house.door.process is not None
        assert house.door.process.poll() is None


@no_nginx
def test_a_configuration_that_was_removed_is_written_anew(house: House) -> None:
    """So a coordinator of an older version, or one made before nginx's module was there, gets today's limits."""
    path = house.coordinator.folder / reverse_proxy.FILE
    path.write_text("nothing;")
    with pytest.raises(InputError, match="nginx rejected") as refused:
        server_supervisor.proxy_command(house.coordinator)
    assert "remove it" in (refused.value.hint or "")
    path.unlink()
    server_supervisor.proxy_command(house.coordinator)
    assert path.read_text() == reverse_proxy.configuration(house.coordinator, reverse_proxy.stream_module())


def test_without_the_stream_module_the_http_server_listens_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reverse_proxy, "stream_module", lambda: None)
    coordinator = create(tmp_path / "coordinator", Settings(proxy_port=9443), [], None, None)
    assert not reverse_proxy.write(coordinator)
    text = (coordinator.folder / reverse_proxy.FILE).read_text()
    assert "listen 9443 ssl;" in text
    assert "stream {" not in text
    assert "proxy_protocol" not in text


@no_nginx
@pytest.mark.parametrize("module", [True, False])
def test_the_superlink_hears_where_a_call_comes_from(
    module: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By either way in: a stolen kit is noticed by its address. What a caller says of itself does not count."""
    if not module:
        monkeypatch.setattr(reverse_proxy, "stream_module", lambda: None)
    with opened(tmp_path) as house:
        route = httpx.HTTPTransport(verify=house.trust, local_address=STRANGERS[0])
        url = f"https://{house.coordinator.fleet_address}/v1/fleet/pull-messages"
        with httpx.Client(transport=route) as client:
            answer = client.post(url, content=b"x", headers=signature(house.kit) | {"X-Real-IP": "10.0.0.1"})
        assert (answer.status_code, house.link.caller) == (200, STRANGERS[0])


@no_nginx
def test_half_sent_bodies_of_strangers_end_at_once(house: House) -> None:
    port, before = house.coordinator.settings.proxy_port, house.link.calls
    address = ("127.0.0.1", port)
    with house.trust.wrap_socket(socket.create_connection(address), server_hostname="127.0.0.1") as line:
        line.settimeout(10)
        line.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\nabc")
        assert line.recv(100).split()[1] == b"401"
    assert house.link.calls == before


@no_nginx
def test_bodies_without_a_key_are_neither_kept_nor_passed_on(house: House) -> None:
    body, before = bytes(7 * 2**20), house.link.bytes
    most = 0
    for _ in range(10):
        with suppress(httpx.WriteError):  # told before it had sent all
            assert house.post("push-object", body, signed=False) == 401
        most = max(most, house.spooled())
    assert (house.link.bytes, most) == (before, 0)


@no_nginx
@pytest.mark.parametrize(
    ("call", "size", "status"),
    [
        ("push-object", 6 * 2**20, 200),
        ("push-object", 9 * 2**20, 413),
        ("push-messages", 6 * 2**20, 200),
        ("pull-messages", 2**10, 200),
        ("pull-messages", 2**17, 413),
        ("send-node-heartbeat", 2**17, 413),
    ],
)
def test_a_site_may_send_much_where_that_is_needed(house: House, call: str, size: int, status: int) -> None:
    before = house.link.bytes
    assert house.post(call, bytes(size)) == status
    assert house.link.bytes - before == (size if status == 200 else 0)
    assert house.spooled() == 0


@no_nginx
def test_a_signature_of_yesterday_or_of_a_stranger_is_none(house: House, tmp_path: Path) -> None:
    url = f"https://{house.coordinator.fleet_address}/v1/fleet/pull-messages"
    mine = signature(house.kit)
    for wrong in (
        mine | {"flwr-timestamp": "2026-01-01T00:00:00+00:00"},
        mine | {"flwr-signature": mine["flwr-public-key"]},
        mine | {"flwr-public-key": "!"},
        {key: value for key, value in mine.items() if key != "flwr-signature"},
    ):
        assert httpx.post(url, content=b"x", headers=wrong, verify=house.trust).status_code == 401


def test_signatures_by_hand(tmp_path: Path) -> None:
    """Without nginx: of a member and of now, or it is none."""
    coordinator = create(tmp_path / "coordinator", Settings(proxy_port=0), [], None, None)
    coordinator.enrol("amber", tmp_path / "kit")
    mine = signature(tmp_path / "kit")
    members = coordinator.members()
    assert signer(Headers(mine), members) == members[0]
    assert signer(Headers(mine), []) is None
    old = (now() - timedelta(hours=1)).isoformat()
    assert signer(Headers(signature(tmp_path / "kit", old)), members) is None
    assert signer(Headers(mine | {"flwr-timestamp": now().isoformat()}), members) is None  # signed something else


def test_a_removed_site_is_no_member_from_its_next_call_on(tmp_path: Path) -> None:
    """The registry is read again only when it changed, and then it is."""
    coordinator = create(tmp_path / "coordinator", Settings(proxy_port=0), [], None, None)
    members, read = remembered(coordinator), list[int]()
    assert members() == []
    coordinator.enrol("amber", tmp_path / "amber")
    coordinator.enrol("birch", tmp_path / "birch")
    assert [site.name for site in members()] == ["amber", "birch"]
    known, coordinator.sites = coordinator.sites, lambda: read.append(1) or known()  # type: ignore[method-assign]
    for _ in range(5):
        members()
    assert read == []
    Coordinator(tmp_path / "coordinator").remove("amber")  # another process
    assert [site.name for site in members()] == ["birch"]


# --------------------------------------------------------------------------------------------------------- a stolen kit


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def raised() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def watch(raised: list[tuple[str, str]]) -> tuple[Watch, Time]:
    clock = Time()
    return Watch(lambda site, text: raised.append((site, text)), clock), clock


def test_one_key_at_two_addresses_is_an_alarm(watch: tuple[Watch, Time], raised: list[tuple[str, str]]) -> None:
    seen, clock = watch
    for _ in range(5):
        seen.note("amber", "10.0.0.1", False, True)
        clock.now += 3
    assert raised == []
    for _ in range(5):
        seen.note("amber", "10.6.6.6", True, False)  # it is refused, and its try is noticed
        seen.note("amber", "10.0.0.1", False, True)
    assert raised == [("amber", "its key is used from 10.0.0.1 and from 10.6.6.6")]  # once
    clock.now += QUIET + 1
    seen.note("amber", "10.0.0.1", False, True)
    seen.note("amber", "10.6.6.6", True, False)
    assert len(raised) == 2


def test_a_site_that_moves_or_restarts_is_none(watch: tuple[Watch, Time], raised: list[tuple[str, str]]) -> None:
    seen, clock = watch
    seen.note("amber", "10.0.0.1", True, True)
    clock.now += RECENT + 1
    seen.note("amber", "10.0.0.2", True, True)
    for _ in range(20):  # killed: its successor is refused for up to a minute
        clock.now += 3
        seen.note("amber", "10.0.0.2", True, False)
    seen.note("amber", "10.0.0.2", True, True)
    clock.now += 10 * STALE
    seen.note("amber", "10.0.0.2", True, False)
    clock.now += 3
    seen.note("amber", "10.0.0.2", True, True)
    seen.note("amber", "10.0.0.2", True, False)  # it is told to leave while it waits
    clock.now += 86_400
    seen.note("amber", "10.0.0.2", True, False)  # and comes back after a power cut
    assert raised == []


def test_a_second_node_behind_the_same_address_is_an_alarm(
    watch: tuple[Watch, Time], raised: list[tuple[str, str]]
) -> None:
    """Whoever came first is let in; the other one asks in vain, and that does not end."""
    seen, clock = watch
    for _ in range(int(STALE / 3) + 3):
        seen.note("amber", "10.0.0.1", False, True)
        seen.note("amber", "10.0.0.1", True, False)
        clock.now += 3
    assert [site for site, _ in raised] == ["amber"]


def test_status_shows_alarms(tmp_path: Path) -> None:
    create(tmp_path / "coordinator", Settings(proxy_port=0), [], None, None)
    sound_alarm(tmp_path / "coordinator", "amber", "its key is used from 10.0.0.1 and from 10.6.6.6")
    words = ["status", "--dir", str(tmp_path / "coordinator")]
    shown = invoke(coordinator_cli.command, *words).output
    assert "ALARM" in shown
    assert "amber: its key is used from 10.0.0.1 and from 10.6.6.6; was its kit stolen?" in shown
    told = json.loads(invoke(coordinator_cli.command, *words, "--format", "json").output)
    assert [row["site"] for row in told["alarms"]] == ["amber"]
    audit_log.verify(tmp_path / "coordinator")
