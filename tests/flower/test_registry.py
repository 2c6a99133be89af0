"""Who may take part: names, keys, kits, certificates, and the commands around them. No process is started."""

import json
import os
import random
import stat
import subprocess
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from command import invoke
from fedapa.cli import coordinator as coordinator_cli
from fedapa.cli import site_join as join_cli
from fedapa.errors import InputError
from fedapa.federation import keys, processes
from fedapa.federation.kit import Kit, read_kit, write_kit
from fedapa.federation.registry import Coordinator, Settings, create
from fedapa.federation.site_settings import read_settings
from fedapa.transports.flower import reverse_proxy, server_supervisor, session, site_supervisor
from fedapa.transports.flower.session import build_app


@pytest.fixture
def coordinator(tmp_path):
    made = create(tmp_path / "coordinator", Settings("fed.example.org", 9091, 9443), ["10.0.0.7"], None, None)
    reverse_proxy.write(made)
    return made


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_certificate_carries_every_name_and_is_signed_by_the_authority(coordinator):
    ca = x509.load_pem_x509_certificate(coordinator.ca.read_bytes())
    own = x509.load_pem_x509_certificate(coordinator.certificate.read_bytes())
    own.verify_directly_issued_by(ca)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]


def test_secrets_are_nobody_elses(coordinator, tmp_path):
    coordinator.enrol("amber", tmp_path / "kit")
    for path in (
        coordinator.key,
        coordinator.secret,
        coordinator.folder / "tls" / "ca.key",
        tmp_path / "kit" / "site.key",
    ):
        assert mode(path) == 0o600, path
    assert mode(coordinator.folder) == mode(tmp_path / "kit") == 0o700


def test_an_authority_of_your_own_is_used_and_its_key_not_kept(tmp_path):
    keys.make_authority(tmp_path / "our.crt", tmp_path / "our.key", "us")
    made = create(tmp_path / "c", Settings(), [], tmp_path / "our.crt", tmp_path / "our.key")
    own = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    own.verify_directly_issued_by(x509.load_pem_x509_certificate((tmp_path / "our.crt").read_bytes()))
    assert not (made.folder / "tls" / "ca.key").exists()


def test_a_kit_has_what_a_site_needs(coordinator, tmp_path):
    made = coordinator.enrol("amber", tmp_path / "kit")
    assert read_kit(tmp_path / "kit") == Kit("amber", "fed.example.org:9443", 0)
    private = load_ssh_private_key((tmp_path / "kit" / "site.key").read_bytes(), None)
    assert public_key_to_bytes(private.public_key()).decode() == made.key == coordinator.members()[0].key
    assert (tmp_path / "kit" / "ca.crt").read_bytes() == coordinator.ca.read_bytes()
    assert coordinator.enrol("birch", tmp_path / "kit2").share == 1


def test_with_a_key_of_its_own_the_private_half_never_travels(coordinator, tmp_path):
    public = tmp_path / "site.pub"
    public.write_text(keys.make_site_key(tmp_path / "site.key"))
    coordinator.enrol("amber", tmp_path / "kit", public)
    assert not (tmp_path / "kit" / "site.key").exists()
    with pytest.raises(InputError, match="is or was used by another site"):
        coordinator.enrol("birch", tmp_path / "kit2", public)
    assert not (tmp_path / "kit2").exists()


def test_a_name_is_given_once(coordinator, tmp_path):
    coordinator.enrol("amber", tmp_path / "kit")
    with pytest.raises(InputError, match="the name amber is taken"):
        coordinator.enrol("amber", tmp_path / "kit2")
    coordinator.remove("amber")
    assert coordinator.members() == []
    with pytest.raises(InputError, match="the name amber is taken"):
        coordinator.enrol("amber", tmp_path / "kit2")
    with pytest.raises(InputError, match="no site is called"):
        coordinator.remove("amber")


@pytest.mark.parametrize("name", ["", "a b", "../up", "-x", "x" * 64, "é", "a/b"])
def test_names_that_are_none(coordinator, tmp_path, name):
    with pytest.raises(InputError, match="cannot name a site"):
        coordinator.enrol(name, tmp_path / "kit")


@pytest.mark.parametrize(("content", "said"), [
    ("name = 'a'", "coordinator is missing"), ("nonsense", "is damaged"),
    ("name = 5\ncoordinator = 'x'", "not understood"),
    ("name = 'a'\ncoordinator = 'x'\nshaer = 1", "not understood"), ("name = '../a'\ncoordinator = 'x'", "cannot name"),
    ("name = 'a'\ncoordinator = '--insecure'", "not host:port"),
    ("name = 'a'\ncoordinator = 'x:1'\nshare = -1", "not understood"),
    ('name = "a"\ncoordinator = "x:1\\u001b[2J"', "not host:port"),
])  # fmt: skip
def test_a_damaged_kit_is_told(tmp_path, content, said):
    (tmp_path / "kit.toml").write_text(content)
    with pytest.raises(InputError, match=said):
        read_kit(tmp_path)


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_the_app_that_travels_holds_no_code():
    import io
    import zipfile

    names = zipfile.ZipFile(io.BytesIO(build_app().content)).namelist()
    assert not [name for name in names if name.endswith(".py")]


def test_the_door_lets_only_fleet_calls_through(coordinator):
    text = (coordinator.folder / reverse_proxy.FILE).read_text()
    assert "listen 9443" in text
    assert "register-node" not in text
    assert "control" not in text.replace("Control and runtime calls", "")


@pytest.mark.skipif(
    server_supervisor.find_nginx() is None, reason="nginx is not installed (apt-get install nginx-light)"
)
def test_nginx_takes_the_configuration(coordinator):
    assert server_supervisor.proxy_command(coordinator)[0].endswith("nginx")


def test_a_coordinator_without_a_door_needs_no_nginx(tmp_path, monkeypatch):
    monkeypatch.setattr(server_supervisor, "find_nginx", lambda: None)
    local = create(tmp_path / "local", Settings(proxy_port=0), [], None, None)
    assert [child.name for child in server_supervisor.coordinator_processes(local).children] == ["superlink"]
    assert local.fleet_address == "127.0.0.1:9091"
    open_ = create(tmp_path / "open", Settings(), [], None, None)
    with pytest.raises(InputError, match="nginx is not installed"):
        server_supervisor.coordinator_processes(open_)


def test_flower_is_told_to_keep_quiet(tmp_path):
    write_kit(tmp_path, Kit("amber", "fed.example.org:9443"))
    for name in ("site.key", "ca.crt"):
        (tmp_path / name).write_text("x")
    node, worker, delivery = site_supervisor.site_processes(tmp_path).children
    assert "process" in node.command
    assert "--insecure" not in node.command
    assert processes.QUIET["FLWR_TELEMETRY_ENABLED"] == "0"
    assert processes.QUIET["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert worker.command[1:4] == ["-P", "-m", "fedapa.transports.flower.worker"]
    assert delivery.process is None  # until a run has ended


def test_a_child_that_ends_is_started_again(tmp_path):
    child = processes.Child("short", ["true"], tmp_path / "log", tmp_path, pause=0.0)
    child.start()
    child.process.wait()
    child.look()
    child.pause = 0.0
    child.look()
    assert child.starts == 2
    child.process.wait()
    child.stop()


def test_a_second_join_leaves_the_secret_of_the_first_alone(tmp_path):
    write_kit(tmp_path, Kit("amber", "fed.example.org:9443"))
    for name in ("site.key", "ca.crt"):
        (tmp_path / name).write_text("x")
    first = site_supervisor.site_processes(tmp_path)
    lock = processes.claim(first.pid)
    try:
        first.prepare()
        before = (tmp_path / "secret").read_bytes()
        with pytest.raises(InputError, match=f"already running as process {os.getpid()}"):
            site_supervisor.site_processes(tmp_path).run()
        assert (tmp_path / "secret").read_bytes() == before
        refused = invoke(join_cli.join, str(tmp_path), "--limit", "min_batch=2")
        assert "amber has joined already" in refused.exception.message
        assert read_settings(tmp_path).limits.min_batch == 8
    finally:
        lock.close()
    first.prepare()
    assert (tmp_path / "secret").read_bytes() != before


def test_a_large_log_is_rotated_under_the_hands_of_its_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "LARGEST_LOG", 1000)
    log = tmp_path / "node.log"
    with open(log, "ab", buffering=0) as file:
        for k in range(100):
            file.write(f"line {k:04d} of a long log\n".encode())
            processes.rotate(log)
    assert log.stat().st_size <= 1100
    assert (tmp_path / "node.log.1").stat().st_size <= 1100
    kept = (tmp_path / "node.log.1").read_text() + log.read_text()
    assert "line 0099" in kept
    assert "\0" not in kept


def test_a_pid_of_somebody_else_is_not_ours(tmp_path):
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        (tmp_path / "pid").write_text(f"{sleeper.pid} 12345")
        assert processes.running(tmp_path / "pid") is None
        assert processes.stop(tmp_path / "pid") is False
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def run(command, *words):
    return invoke(command, *words)


def test_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(coordinator_cli.command, "init", "--proxy-port", "0").exit_code == 0
    assert run(coordinator_cli.command, "add-site", "amber").exit_code == 0
    assert (tmp_path / "kits" / "amber" / "site.key").is_file()
    shown = run(coordinator_cli.command, "status", "--format", "json")
    found = json.loads(shown.stdout)
    assert found["up"] is False
    assert [(site["site"], site["state"]) for site in found["sites"]] == [("amber", "unknown")]
    shown = json.loads(run(join_cli.status, "kits/amber", "--format", "json").stdout)
    assert (shown[0]["site"], shown[0]["running"]) == ("amber", False)
    assert run(coordinator_cli.command, "remove-site", "amber").exit_code == 0
    assert [site.removed != "" for site in Coordinator(tmp_path / "coordinator").sites()] == [True]
    again = run(coordinator_cli.command, "init")
    assert isinstance(again.exception, InputError)
    assert "is already a coordinator" in again.exception.message


def test_the_old_name_of_the_proxys_port_is_read_from_a_folder_and_refused_as_an_option(tmp_path):
    create(tmp_path / "coordinator", Settings(proxy_port=9444), [], None, None)
    path = tmp_path / "coordinator" / "coordinator.toml"
    path.write_text(path.read_text().replace("proxy_port", "door"))
    assert Coordinator(tmp_path / "coordinator").settings.proxy_port == 9444
    refused = run(coordinator_cli.command, "init", "--dir", str(tmp_path / "new"), "--door", "0").exception
    assert isinstance(refused, InputError)
    assert (refused.message, refused.hint) == ("no option --door any more", "renamed to --proxy-port")
    assert not (tmp_path / "new").exists()
    nowhere = run(coordinator_cli.command, "status", "--dir", "nowhere")
    assert isinstance(nowhere.exception, InputError)


def test_without_flower_one_line_says_how_to_get_it(monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flwr" else real(name))
    with pytest.raises(InputError, match="need Flower") as missing:
        coordinator_cli.require_flower()
    assert missing.value.hint == "pip install 'fedapa[flower]'"


def test_a_damaged_registry_is_one_line(coordinator, tmp_path):
    coordinator.enrol("amber", tmp_path / "kit")
    path = coordinator.folder / "sites.json"
    whole, chance = path.read_bytes(), random.Random(0)
    for _ in range(300):
        content = bytearray(whole)
        content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(bytes(content[: chance.choice((len(content), chance.randrange(len(content))))]))
        with suppress(InputError):
            assert all(isinstance(site.key, str) for site in coordinator.sites())
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is damaged"):
        coordinator.sites()


@pytest.mark.parametrize("content", ['port = "x"', "port = -1", "host = 5", "proxy_port = true", 'host = "\\u001b[2J"'])
def test_damaged_settings_are_one_line(coordinator, content):
    (coordinator.folder / "coordinator.toml").write_text(content)
    with pytest.raises(InputError, match=r"coordinator\.toml is damaged"):
        Coordinator(coordinator.folder)


def test_states_of_old_runs_are_removed_when_asked(tmp_path):
    write_kit(tmp_path, Kit("amber", "fed.example.org:9443"))
    for run, days in (("aa" * 8, 200), ("bb" * 8, 100), ("cc" * 8, 95)):
        file = tmp_path / "states" / run / "round-000001-0123456789abcdef.safetensors"
        file.parent.mkdir(parents=True)
        file.write_text("x")
        os.utime(file, (time.time() - days * 86_400,) * 2)
    (tmp_path / "states" / "secret").write_text("x")
    (tmp_path / "states" / "notes of mine").mkdir()
    listed = invoke(join_cli.prune, str(tmp_path), "--days", "97").output
    assert listed.count("would remove") == 2
    invoke(join_cli.prune, str(tmp_path), "--days", "97", "--yes")
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == ["cc" * 8, "notes of mine", "secret"]
    invoke(join_cli.prune, str(tmp_path), "--days", "0", "--yes")
    assert (tmp_path / "states" / ("cc" * 8)).exists()  # the newest is in use


def test_a_reply_of_very_many_parts_gives_others_their_turn(monkeypatch):
    """Fetched in one go it would hold every other site's reply up for as long as it takes."""
    fetched = []

    def pull(request):
        fetched.append(request.object_id)
        return SimpleNamespace(object_found=True, object_available=True, object_content=b"x")

    line = object.__new__(session.FlowerSession)
    line.most_bytes, line.outage = 1e9, 1.0
    line._grid = SimpleNamespace(node=None, _runtime_client=SimpleNamespace(PullObject=pull))
    parts = {f"{k:064x}": None for k in range(1000)}
    line._arriving = {"one": session.Arriving("name", parts, 0.0)}
    monkeypatch.setattr(session, "SLICE", -1.0)
    session.TaskIdentity.run_id = 1
    assert line._fetch("one") is None
    assert len(fetched) == 1
    line._fetch("one")
    assert len(set(fetched)) == 2  # it goes on where it was
    line._arriving = {"one": session.Arriving("name", {str(k): None for k in range(session.MOST_PARTS + 1)}, 0.0)}
    monkeypatch.setattr(session.FlowerSession, "_error", lambda self, asked, code, reason: reason)
    assert "parts" in line._fetch("one")
    assert len(fetched) == 2
