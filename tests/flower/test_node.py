"""The two hangs that are fixed in Flower's SuperNode, on its real state and store: it must not fall silent."""

from types import SimpleNamespace

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from fedapa.transports.flower import supernode

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
