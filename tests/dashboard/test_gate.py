"""Nobody else gets in: every way that is not the user's own browser is refused or harmless."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the dashboard is not installed: pip install 'fedapa[dashboard]'")

from starlette.testclient import TestClient

from fedapa.dashboard.access import is_loopback
from fedapa.dashboard.server import FILES, PAGES, make_app
from made_runs import make_run

HOME = "http://127.0.0.1:8765"
TOKEN = "a-long-secret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs" / "fedapa-seed0", "fedapa", [[1, 2], [3, 4]], weights=True)
    (tmp_path / "secret.toml").write_text("password = 1")
    return tmp_path / "runs"


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(make_app(folder), base_url=HOME) as found:
        yield found


def test_the_owner_gets_everything_with_a_strict_policy(client: TestClient) -> None:
    paths = ["/", *(f"/{page}" for page in PAGES), *(f"/static/{name}" for name in FILES), "/static/plotly.js"]
    for path in [*paths, "/api/overview", "/api/clients?run=fedapa-seed0"]:
        answer = client.get(path)
        assert answer.status_code == 200, path
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"  # an address may hold the token
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert path.startswith("/static") or answer.headers["cache-control"] == "no-store"
    page = client.get("/").text
    assert "<script>" not in page
    assert " onclick" not in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[", "localhost@evil"]
)
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/api/overview", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "LOCALHOST:8765", "[::1]:8765"])
def test_names_of_this_machine_are_welcome(client: TestClient, host: str) -> None:
    assert client.get("/api/overview", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
def test_another_site_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/overview", headers=headers).status_code == 403
    assert "access-control-allow-origin" not in client.get("/api/overview").headers


def test_our_own_page_and_a_followed_link_are_let_in(client: TestClient) -> None:
    assert client.get("/api/overview", headers={"Origin": HOME, "Sec-Fetch-Site": "same-origin"}).status_code == 200
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/clients", headers=visit).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/overview").status_code == 405


def test_elsewhere_everybody_needs_the_token(folder: Path) -> None:
    app = make_app(folder, "192.0.2.7", TOKEN)
    with TestClient(app, base_url="http://192.0.2.7", follow_redirects=False) as client:
        for path in ("/", "/api/overview", "/static/app.js", "/api/stream", "/?token=wrong", "/?token="):
            assert client.get(path).status_code == 401, path
        assert client.get("/", headers={"Cookie": "fedapa=wrong"}).status_code == 401
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
        assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        answer = client.get(f"/clients?run=a&token={TOKEN}&sort=b")
        assert (answer.status_code, answer.headers["location"]) == (303, "/clients?run=a&sort=b")
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert client.get("/api/overview").status_code == 200  # by the cookie


def test_the_way_from_the_token_leads_to_this_server(folder: Path) -> None:
    for path in ("//evil.example/", "/\\evil.example/", "///evil.example"):
        app = make_app(folder, "192.0.2.7", TOKEN)
        with TestClient(app, base_url="http://192.0.2.7", follow_redirects=False) as client:
            answer = client.get(f"http://192.0.2.7{path}?token={TOKEN}")
            assert (answer.status_code, answer.headers["location"][:2]) == (303, "/e"), path


def test_which_hosts_are_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.7", "localhost.evil.example", "")))


@pytest.mark.parametrize(
    "name", ["../secret.toml", "..", "/etc", "fedapa-seed0/../../", "fedapa-seed0\0", "", "%2e%2e"]
)
def test_names_that_lead_elsewhere_are_no_runs(client: TestClient, name: str) -> None:
    for view in ("clients", "client", "weights", "course", "config", "events", "compare"):
        answer = client.get(f"/api/{view}", params={"run": name})
        assert answer.status_code == 404, view
        assert "password" not in answer.text


@pytest.mark.parametrize(
    "path", ["/static/../board.py", "/static/%2e%2e/board.py", "/static/index.html", "/secret.toml"]
)
def test_only_named_files_are_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("word", ["-1", "9999999999999", "x", "²", "1e3", ""])
def test_odd_numbers_are_harmless(client: TestClient, word: str) -> None:
    assert client.get("/api/weights", params={"run": "fedapa-seed0", "round": word}).json()["round"] == 2
    assert client.get("/api/client", params={"run": "fedapa-seed0", "client": word}).status_code == 200
