"""The faults that are fixed in Flower's SuperNode, on its real state and store: it must not fall silent."""

import threading
from datetime import timedelta
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common import constant
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.supercore import heartbeat
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_client, fleet_http_connection
from flwr.supernode import start_client_internal as flower
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from fedapa.errors import InputError
from fedapa.transports.flower import supernode, timing

RUN = SimpleNamespace(run_id=7, fab_hash="", series_id=3, primary_task_type=TaskType.CLIENT_APP)


class Place:
    """A SuperNode's memory, and one request that is on its way to it."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN.run_id, 1, 1
        stores = ObjectStoreFactory()
        self.state, self.store = NodeStateFactory(stores).state(), stores.store()
        self.state.store_run(RUN)
        self.request = named(Message(RecordDict(), 100, MessageType.TRAIN, ttl=60))

    def take(self, how, pull_object, confirm=lambda *_: None):
        return how(
            state=self.state, object_store=self.store, node_config={},
            receive=lambda: (remove_content_from_message(self.request), get_object_tree(self.request)),
            get_run=None, get_fab=None, pull_object=pull_object, confirm_message_received=confirm,
            trusted_entities=None,
        )  # fmt: skip

    def parts(self, _, name):
        return get_all_nested_objects(self.request)[name].deflate()

    def read(self):
        return self.state.get_messages_legacy(is_reply=False)

    def later(self, monkeypatch, seconds):
        """The state's clock shows so many seconds more than at the start."""
        monkeypatch.setattr(in_memory_corestate, "now", lambda: now() + timedelta(seconds=seconds))

    def tasks(self):
        """What a worker would be given."""
        return [task.task_id for task in self.state.get_tasks() if self.state.claim_task(task.task_id)]


def named(message):
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def run_ended(*_):
    raise RunNotRunningException


@pytest.fixture
def place():
    return Place()


@pytest.mark.parametrize("late", [False, True], ids=["while its parts come", "when all are there"])
def test_a_request_whose_run_ends_while_it_is_fetched_is_forgotten(place, late):
    assert place.take(supernode.take, place.parts if late else run_ended, run_ended) is None
    assert place.tasks() == []
    assert place.state.get_messages_legacy() == []


def test_flower_alone_keeps_its_task(place):
    """Once this fails, the fix is not needed any more."""
    assert place.take(flower._pull_and_store_message, run_ended) is None
    assert len(place.tasks()) == 1


def test_any_other_request_arrives(place):
    assert place.take(supernode.take, place.parts) == RUN.run_id
    assert len(place.tasks()) == 1
    assert len(place.state.get_messages_legacy()) == 1


@pytest.mark.parametrize("whole", [False, True])
def test_a_reply_that_its_worker_does_not_hand_over_is_dropped(place, whole, monkeypatch):
    now, sent = [0.0], []
    monkeypatch.setattr(flower.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(supernode.time, "monotonic", lambda: now[0])
    reply = named(Message(RecordDict(), reply_to=place.request))
    place.state.store_message(remove_content_from_message(reply))
    missing = set(place.store.preregister(RUN.run_id, get_object_tree(reply)))
    assert missing
    for name, part in get_all_nested_objects(reply).items() if whole else ():
        place.store.put(name, part.deflate())
    supernode.send(
        state=place.state, object_store=place.store, send=lambda *_: (missing, "session"),
        push_object=lambda run, session, name, content: sent.append(name),
    )  # fmt: skip
    assert (set(sent) == missing) if whole else (sent == [] and now[0] >= supernode.STALLED)
    assert place.state.get_messages_legacy() == []


DIES = {
    "with the task": lambda place, task: None,
    "before it reads the request": lambda place, task: place.state.activate_task(task),
    "after it read it": lambda place, task: place.state.activate_task(task) and place.read(),
}


@pytest.mark.parametrize("moment", DIES)
def test_the_request_of_a_worker_that_dies_is_answered_or_given_to_the_next(place, moment, monkeypatch):
    """kill -9 between two calls of a worker: the next one answers, or the coordinator hears that it must ask again."""
    mended(monkeypatch)
    place.take(supernode.take, place.parts)
    (task,) = place.tasks()
    DIES[moment](place, task)
    place.later(monkeypatch, 90)
    replies = place.state.get_messages_legacy(is_reply=True)
    if moment == "with the task":
        assert replies == []
        assert place.tasks() == [task]
        assert place.read()
    else:
        assert [reply.metadata.reply_to_message_id for reply in replies] == [place.request.metadata.message_id]
        assert replies[0].has_error()
        assert place.tasks() == []


def test_flower_alone_forgets_a_request_that_nobody_read(place, monkeypatch):
    """Once this fails, the fix is not needed any more. A run waited ten minutes for the site."""
    place.take(supernode.take, place.parts)
    (task,) = place.tasks()
    place.state.activate_task(task)
    place.later(monkeypatch, 90)
    assert place.state.get_messages_legacy(is_reply=True) == []
    assert place.tasks() == []


@pytest.mark.parametrize("read", [False, True])
def test_a_worker_that_died_once_its_reply_was_sent_costs_the_next_request_nothing(place, read, monkeypatch):
    mended(monkeypatch)
    place.take(supernode.take, place.parts)
    (first,) = place.tasks()
    place.state.activate_task(first)
    place.state.delete_messages(message_ids=[place.request.metadata.message_id])  # answered, and its reply was sent
    place.request = named(Message(RecordDict(), 100, MessageType.TRAIN, ttl=70))
    place.take(supernode.take, place.parts)
    place.later(monkeypatch, 50)
    (second,) = place.tasks()
    if read:
        place.state.activate_task(second)
        assert place.read()
    place.later(monkeypatch, 70)
    assert place.state.get_messages_legacy(is_reply=True) == []
    assert place.state.get_tasks(task_ids=[first])[0].status.sub_status == "failed"


class Busy:
    """A SuperLink that answers the first heartbeats with an error."""

    def __init__(self, *errors):
        self.errors, self.heard = list(errors), threading.Event()

    def beat(self):
        if self.errors:
            raise self.errors.pop(0)
        self.heard.set()
        return True


def status(code):
    request = httpx.Request("POST", "https://nowhere/v1/fleet/send-node-heartbeat")
    return httpx.HTTPStatusError(str(code), request=request, response=httpx.Response(code, request=request))


@pytest.mark.parametrize("error", [status(500), status(413), RuntimeError("it does not recognize this SuperNode")])
def test_heartbeats_go_on_after_an_error(error):
    link = Busy(error)
    sender = supernode.HeartbeatSender(link.beat)
    sender.start()
    assert link.heard.wait(10)
    sender.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_flower_alone_ends_its_heartbeats_for_good():
    """Once this fails, the fix is not needed any more. 18 of 100 sites went offline like this."""
    link = Busy(status(500))
    sender = heartbeat.HeartbeatSender(link.beat)
    sender.start()
    sender._thread.join(10)
    assert not sender.is_running
    assert not link.heard.is_set()


def heartbeat_timeout(monkeypatch):
    """Seconds that a heartbeat of Flower's client may take."""
    found = []
    monkeypatch.setattr(FleetHttpClient, "_unary_unary", lambda self, **call: found.append(call["timeout"]))
    FleetHttpClient.__new__(FleetHttpClient).SendNodeHeartbeat(SendNodeHeartbeatRequest())
    return found[0]


@pytest.mark.parametrize("pace", ["10", "30"])
def test_two_heartbeats_may_be_slow_before_a_site_is_offline(monkeypatch, pace):
    """14 of 100 sites were offline now and then, and polled meanwhile, because heartbeats took more than 5 s."""
    monkeypatch.setenv("FEDAPA_NODE_HEARTBEAT", pace)
    mended(monkeypatch)
    longest = heartbeat_timeout(monkeypatch)
    pause = (float(pace) - constant.HEARTBEAT_CALL_TIMEOUT) * (constant.HEARTBEAT_BASE_MULTIPLIER + 0.1)
    assert pause + longest + 1.0 + longest < constant.HEARTBEAT_PATIENCE * float(pace)
    assert longest >= float(pace) / 2


def test_flower_alone_gives_up_a_heartbeat_long_before_a_poll(monkeypatch):
    """Once this fails, the fix is not needed any more."""
    assert heartbeat_timeout(monkeypatch) == 5


def mended(monkeypatch):
    restored(monkeypatch)
    supernode.mend()


def restored(monkeypatch):
    """What ``mend`` changes is as before after a test."""
    for module, names in (
        (flower, ("_pull_and_store_message", "_push_messages", "time")),
        (fleet_http_connection, ("HeartbeatSender", "HEARTBEAT_DEFAULT_INTERVAL")),
        (heartbeat, ("HEARTBEAT_DEFAULT_INTERVAL",)),
        (in_memory_corestate, ("HEARTBEAT_DEFAULT_INTERVAL",)),
        (fleet_http_client, ("HEARTBEAT_CALL_TIMEOUT",)),
        (InMemoryNodeState, ("_on_task_tokens_expired",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))


def test_the_pace_of_a_node_is_a_setting_of_its_site(monkeypatch):
    assert (timing.poll(), timing.heartbeat()) == (3.0, 30.0)
    monkeypatch.setenv("FEDAPA_NODE_POLL", "0.5")
    monkeypatch.setenv("FEDAPA_NODE_HEARTBEAT", "12")
    assert (timing.poll(), timing.heartbeat()) == (0.5, 12.0)
    slept = []
    monkeypatch.setattr(supernode.time, "sleep", slept.append)
    supernode.paced(3)
    supernode.paced(0.2)
    assert slept == [0.5, 0.2]
    for word in ("5", "nan", "soon", "1801"):
        monkeypatch.setenv("FEDAPA_NODE_HEARTBEAT", word)
        with pytest.raises(InputError, match="FEDAPA_NODE_HEARTBEAT is"):
            timing.heartbeat()
