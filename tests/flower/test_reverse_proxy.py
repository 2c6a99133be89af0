"""Nobody in who does not belong: a real SuperLink behind a real nginx, and everybody whom they must refuse."""

import os
import shutil
import ssl
from base64 import b64encode
from dataclasses import replace
from http.client import HTTPSConnection

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from federation import Federation, fedapa, wait
from fleet import client_digests, in_process, server_digest
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.control_pb2 import UnregisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from hardship import NOBODY, acting_as
from recorder import Call, Recorder

from fedapa.core.tree import digest
from fedapa.federation import keys, peer, processes
from fedapa.federation.enrolment import read_agreement
from fedapa.federation.kit import read_kit, write_kit
from fedapa.federation.registry import Coordinator
from fedapa.federation.remote_transport import _from_record
from fedapa.store import checkpoint, run_db
from fedapa.transports.flower import server_supervisor
from fedapa.transports.flower.control import Control
from fedapa.transports.flower.session import FlowerSession, build_app

pytestmark = [  # also in `make test`: attacks are tried at every change
    pytest.mark.federation,
    pytest.mark.skipif(
        server_supervisor.find_nginx() is None, reason="nginx is not installed (apt-get install nginx-light)"
    ),
]
CONTROL = ("list-runs", "list-nodes", "start-run", "register-node", "unregister-node", "stop-run")
RUNTIME = ("acquire-task", "pull-task-input", "push-messages", "get-nodes")


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("house"), proxy_port=processes.free_port())
    for share, name in enumerate(("birch", "cedar")):  # the two that take part for real, as the only ones
        kit = made.folder / "kits" / name
        write_kit(kit, replace(read_kit(kit), share=share))
    try:
        made.spawn("coordinator", "start")
        wait(lambda: all(site.node for site in Coordinator(made.folder / "coordinator").members()))
        yield made
    finally:
        made.close()


@pytest.fixture
def coordinator(house):
    return Coordinator(house.folder / "coordinator")


def key_of(house, name):
    return load_ssh_private_key((house.folder / "kits" / name / "site.key").read_bytes(), None)


OPEN: list[FleetHttpClient] = []


@pytest.fixture(autouse=True)
def hang_up():
    yield
    while OPEN:
        OPEN.pop().close()


def caller(coordinator, *interceptors, ca=None, address=None):
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    ca, address = (ca or coordinator.ca).read_bytes(), address or coordinator.fleet_address
    client = FleetHttpClient.from_server_address(address, False, ca, [version, *interceptors])
    OPEN.append(client)
    return client


def trust(coordinator):
    return ssl.create_default_context(cafile=str(coordinator.ca))


def signed(key):
    return NodeAuthHttpInterceptor(key, key.public_key())


def activate(client, key):
    return client.ActivateNode(
        ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30)
    )


def deactivate(client, node):
    """A run would wait for a site that is online and does not answer."""
    client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def node_of(coordinator, name):
    return next(site.node for site in coordinator.members() if site.name == name)


def online(house):
    control = Control(house.coordinator)
    try:
        return {node.name for node in control.nodes() if node.status == "online"}
    finally:
        control.close()


def bring(house, *names):
    """Until these sites are online: tests may run alone, or in any order."""
    missing = set(names) - online(house)
    house.join(sorted(missing))
    wait(lambda: set(names) <= online(house))


def post(coordinator, path, **kwargs):
    url = f"https://{coordinator.fleet_address}{path}"
    return httpx.post(
        url, content=b"", headers={"content-type": "application/protobuf"}, verify=trust(coordinator), **kwargs
    )


def is_the_doors(answer):
    """nginx's own page: the call never reached the SuperLink, whatever that would have said."""
    return answer.status_code in (400, 403) and "<center>nginx</center>" in answer.text


def test_a_site_works_through_the_reverse_proxy(house):
    """A real SuperNode and its worker: messages and tensors pass both ways."""
    bring(house, "birch")
    sets = ("run.rounds=2", "federation.min_sites=1", "federation.rejoin=3.0")
    run = house.run("through", "--method", "fedavg", *(word for change in sets for word in ("--set", change)))
    assert run.wait(600) == 0
    (row,) = house.status("through")["runs"]
    assert (row["status"], row["round"], row["sites"]) == ("finished", 2, 1)
    assert row["MB"] > 0


def test_an_enrolled_key_comes_in(house, coordinator):
    key = key_of(house, "amber")
    client = caller(coordinator, signed(key))
    assert activate(client, key).node_id == node_of(coordinator, "amber")
    assert client.SendNodeHeartbeat(
        SendNodeHeartbeatRequest(node=Node(node_id=node_of(coordinator, "amber")), heartbeat_interval=30)
    ).success
    deactivate(client, node_of(coordinator, "amber"))


def test_an_unregistered_key_does_not(coordinator):
    key = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(httpx.HTTPStatusError):
        activate(caller(coordinator, signed(key)), key)


def test_nobody_registers_himself(coordinator):
    key = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(httpx.HTTPStatusError) as refused:
        caller(coordinator, signed(key)).RegisterNode(
            RegisterNodeFleetRequest(public_key=public_key_to_bytes(key.public_key()))
        )
    assert refused.value.response.status_code == 403


def test_nor_does_anybody_past_the_reverse_proxy(coordinator):
    """The SuperLink itself knows the registry's keys and takes no others."""
    key = ec.generate_private_key(ec.SECP384R1())
    client = caller(coordinator, signed(key), address=coordinator.address)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(key.public_key())))
    assert refused.value.response.status_code in (401, 403, 412)
    with pytest.raises(httpx.HTTPStatusError):
        activate(client, key)


def test_no_key_is_no_entry(house, coordinator):
    with pytest.raises(httpx.HTTPStatusError) as refused:
        activate(caller(coordinator), key_of(house, "amber"))
    assert refused.value.response.status_code == 401


def test_an_authority_of_ones_own_does_not_help(house, coordinator, tmp_path):
    """Neither does a site talk to a coordinator whose certificate is signed by somebody else."""
    keys.make_authority(tmp_path / "ca.crt", tmp_path / "ca.key", "impostor")
    key = key_of(house, "amber")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        activate(caller(coordinator, signed(key), ca=tmp_path / "ca.crt"), key)


def test_plain_http_is_not_spoken(coordinator):
    assert httpx.post(f"http://{coordinator.fleet_address}/v1/fleet/pull-messages").status_code == 400


def test_one_sites_key_does_not_speak_for_another(house, coordinator):
    client = caller(coordinator, signed(key_of(house, "birch")))
    other = Node(node_id=node_of(coordinator, "amber"))
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.PullMessages(PullMessagesRequest(node=other))
    assert refused.value.response.status_code == 401


class Replayed:
    """The headers of a call that was made some time ago."""

    def __init__(self, key, stamp):
        signature = b64encode(sign_message(key, stamp.encode())).decode()
        public = b64encode(public_key_to_bytes(key.public_key())).decode()
        self.headers = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: public,
            TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: signature,
        }

    def intercept(self, context, call_next):
        context.request.headers.update(self.headers)
        return call_next(context)


def test_a_message_of_yesterday_is_refused(house, coordinator):
    stale = Replayed(key_of(house, "amber"), "2025-01-01T00:00:00+00:00")
    with pytest.raises(httpx.HTTPStatusError) as refused:
        caller(coordinator, stale).PullMessages(PullMessagesRequest(node=Node(node_id=node_of(coordinator, "amber"))))
    assert refused.value.response.status_code == 401


def test_an_old_message_with_a_new_date_is_refused(house, coordinator):
    from flwr.supercore.date import now

    forged = Replayed(key_of(house, "amber"), "2025-01-01T00:00:00+00:00")
    forged.headers[TIMESTAMP_HEADER] = now().isoformat()
    with pytest.raises(httpx.HTTPStatusError) as refused:
        caller(coordinator, forged).PullMessages(PullMessagesRequest(node=Node(node_id=node_of(coordinator, "amber"))))
    assert refused.value.response.status_code == 401


UPLOAD = ("push-messages", "push-object", "confirm-message-received")


def test_repeated_byte_for_byte_an_upload_changes_nothing(house, coordinator):
    """Somebody inside the TLS connection repeats all that a site ever sent, between its calls and, once, in the middle
    of an upload. That one is held up and asked for again; the run is the undisturbed one, bit for bit."""
    tape = Recorder(coordinator)
    answers, held, repeated = list[httpx.Response](), list[Call](), [0]

    def repeat_all(call):
        sent = [old for old in tape.calls if old.name in UPLOAD]
        if call.name == "pull-messages" and len(sent) > repeated[-1]:  # the site is done with what it had to send
            repeated.append(len(sent))
            answers.extend(tape.say(old) for old in sent)

    def repeat_at_once(call):
        uploads = sum(old.name == "push-messages" for old in tape.calls)
        if call.name == "push-messages" and uploads == 3 and not held:  # of the second round; first it told what it has
            held.append(call)
            answers.append(tape.say(call))

    tape.before, tape.after = repeat_all, repeat_at_once
    kit = house.folder / "kits" / "cedar"
    write_kit(kit, replace(read_kit(kit), coordinator=tape.address))
    try:
        bring(house, "birch", "cedar")
        sets = ("run.rounds=2", "data.clients=2", "federation.min_sites=2", "federation.rejoin=15.0")
        run = house.run("replayed", *(word for change in sets for word in ("--set", change)))
        assert run.wait(600) == 0
        folder = house.folder / "replayed" / "fedapa-seed0"
        found, terms = checkpoint.newest(folder / "checkpoints"), read_agreement(folder).terms
        undisturbed = in_process(terms)
        assert terms.names == ["birch", "cedar"]
        assert digest(found.state.server) == server_digest(undisturbed)
        assert [_from_record(record).digest for record in found.records] == client_digests(undisturbed)
        with run_db.reading(folder / "run.db") as db:
            assert run_db.events(db) == []
            assert [row[0] for row in db.execute("SELECT trained FROM round ORDER BY round")] == [2, 2]
        assert held
        assert len(repeated) > 3
        late = [tape.say(call) for call in tape.calls if call.name in UPLOAD]  # the run is over
        assert {answer.status_code for answer in late} == {403}
    finally:
        fedapa("site", "leave", "kits/cedar", cwd=house.folder)
        tape.close()


@pytest.mark.parametrize("path", [
    *(f"/v1/control/{call}" for call in CONTROL), *(f"/v1/runtime/{call}" for call in RUNTIME),
    "/docs", "/openapi.json", "/", "/v1/fleet/register-node", "/v1/fleet/unregister-node",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/pull-messages/../../control/list-runs", "//v1/control/list-runs", "/V1/control/list-runs",
    "/v1/fleet%2f..%2fcontrol/list-runs",
])  # fmt: skip
def test_control_and_runtime_end_at_the_reverse_proxy(coordinator, path):
    answer = post(coordinator, path)
    assert is_the_doors(answer), (answer.status_code, answer.text[:200])
    assert answer.status_code == 403 or "%" in path


def test_fleet_calls_are_posted_or_nothing(coordinator):
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        url = f"https://{coordinator.fleet_address}/v1/fleet/pull-messages"
        assert is_the_doors(httpx.request(method, url, verify=trust(coordinator))), method


def test_the_superlink_listens_on_the_loopback_address_alone(coordinator):
    """Any other address of this machine is as good as one from outside."""
    with pytest.raises(httpx.ConnectError, match="refused"):
        httpx.get(f"https://127.0.0.2:{coordinator.settings.port}/health", verify=trust(coordinator))
    assert httpx.get(f"https://{coordinator.address}/health", verify=trust(coordinator)).status_code == 200


def test_unsigned_fleet_calls_end_at_the_superlink(coordinator):
    assert post(coordinator, "/v1/fleet/pull-messages").status_code == 401


def test_tasks_are_not_handed_out_without_the_secret(coordinator):
    """Not even on the coordinator's own machine."""
    url = f"https://{coordinator.address}/v1/runtime/acquire-task"
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    body = AcquireTaskRequest(supported_task_types=["flwr-serverapp"]).SerializeToString()
    answer = httpx.post(url, content=body, headers={"content-type": "application/protobuf"}, verify=trust(coordinator))
    assert answer.status_code in (401, 403)


def test_more_than_the_door_takes_is_refused(house, coordinator):
    url = f"https://{coordinator.fleet_address}/v1/fleet/push-object"
    assert httpx.post(url, content=bytes(65 * 2**20), verify=trust(coordinator), timeout=120).status_code == 413


def test_a_site_that_somebody_else_unregistered_comes_back_by_itself(house, coordinator):
    before, control = node_of(coordinator, "amber"), Control(coordinator)
    control._client.UnregisterNode(UnregisterNodeRequest(node_id=before))
    control.close()
    wait(lambda: node_of(coordinator, "amber") != before)
    key = key_of(house, "amber")
    client = caller(coordinator, signed(key))
    assert activate(client, key).node_id == node_of(coordinator, "amber")
    deactivate(client, node_of(coordinator, "amber"))


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_runs_of_somebody_else_are_skipped(coordinator):
    """120 of them kept ours from beginning."""
    control = Control(coordinator)
    theirs = [control.start_run(build_app()) for _ in range(5)]
    control.close()
    session = FlowerSession(coordinator)
    try:
        assert TaskIdentity.run_id not in theirs
        session.nodes()  # raises SessionLost where the run is not ours
    finally:
        session.close(False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_local_user_makes_no_control_calls(coordinator):
    """Not even by naming a connection of ours, as the system's table shows them to everybody."""
    with httpx.Client(verify=trust(coordinator)) as ours:
        assert ours.get(f"https://{coordinator.address}/health").status_code == 200
        far = f":{coordinator.settings.port:04X}"
        ports = {
            int(near.rpartition(":")[2], 16) for near, end, _, inode in peer._sockets() if inode and end.endswith(far)
        }
        assert ports
        for header in ({}, *({"X-Forwarded-For": f"127.0.0.1:{port}"} for port in ports)):
            assert acting_as(NOBODY, lambda header=header: list_runs(coordinator, header)) == "403"
            assert acting_as(0, lambda header=header: list_runs(coordinator, header)) == "200"


def list_runs(coordinator, headers):
    line = HTTPSConnection(coordinator.address, context=ssl._create_unverified_context(), timeout=60)
    line.request("POST", "/v1/control/list-runs", b"", {"content-type": "application/protobuf", **headers})
    return str(line.getresponse().status).encode()


def test_a_revoked_site_is_refused(house, coordinator):
    key = key_of(house, "dune")
    client = caller(coordinator, signed(key))
    node = activate(client, key).node_id
    fedapa("coordinator", "remove-site", "dune", cwd=house.folder)
    with pytest.raises(httpx.HTTPStatusError):
        activate(client, key)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.PullMessages(PullMessagesRequest(node=Node(node_id=node)))
    assert refused.value.response.status_code == 401
    again = fedapa("coordinator", "add-site", "dune", "--kit", "kits/dune2", cwd=house.folder, check=False)
    assert again.returncode == 2
    assert "names are never reused" in again.stderr


def test_a_site_with_a_strange_kit_does_not_start(house, tmp_path):
    kit = tmp_path / "kit"
    shutil.copytree(house.folder / "kits" / "amber", kit)
    (kit / "site.key").unlink()
    done = fedapa("site", "join", kit, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "site.key is missing" in done.stderr
