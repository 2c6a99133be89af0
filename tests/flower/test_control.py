"""The coordinator's calls to its SuperLink where somebody else makes calls there, too."""

from types import SimpleNamespace

import httpx
import pytest
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.object_store import ObjectStoreFactory

from fedapa.errors import RunError
from fedapa.transports.flower import control, session, superlink
from fedapa.transports.flower.control import Control
from fedapa.transports.flower.session import FlowerSession


class Ended(Exception):
    """Ends a loop without end."""


def test_members_are_registered_again_and_again(monkeypatch):
    """At its start the SuperLink does not answer yet; later somebody else may unregister a site."""
    done, slept = [], []

    def sync():
        done.append(len(done))
        if len(done) == 1:
            raise httpx.ConnectError("refused")
        if len(done) == 4:
            raise OSError("no space left")
        if len(done) == 6:
            raise Ended

    monkeypatch.setattr(control.time, "sleep", slept.append)
    kept = Control.__new__(Control)
    kept.sync = sync
    with pytest.raises(Ended):
        kept.keep_synced(every=10.0)
    assert slept == [0.5, 10.0, 10.0, 10.0, 10.0]


@pytest.fixture
def state():
    made = SqlLinkState(":memory:", SimpleNamespace(), ObjectStoreFactory().store())
    made.initialize()
    return made


def test_an_unregistered_key_is_registered_again(state, monkeypatch):
    first = state.create_node("us", "us", b"key", 30)
    other = state.create_node("us", "us", b"other", 30)
    monkeypatch.setattr(SqlLinkState, "create_node", superlink.create_node)
    with pytest.raises(ValueError, match="already in use"):  # one that is registered stays what it is
        state.create_node("us", "us", b"key", 30)
    state.delete_node("us", first)
    state.delete_node("us", other)
    second = state.create_node("us", "us", b"key", 30, name="amber")
    assert {node.node_id for node in state.get_node_info()} == {second, other}
    assert state.activate_node(second, 30)
    assert not state.activate_node(other, 30)


def test_flower_alone_refuses_it_for_good(state):
    """Once this fails, the fix is not needed any more."""
    state.delete_node("us", state.create_node("us", "us", b"key", 30))
    with pytest.raises(ValueError, match="already in use"):
        state.create_node("us", "us", b"key", 30)


class Crowded:
    """A SuperLink that hands out the tasks of other runs first."""

    def __init__(self, *runs):
        self.runs = list(runs)

    def AcquireTask(self, request):
        run = self.runs.pop(0) if self.runs else None
        return SimpleNamespace(token=f"token-{run}" if run else "", task=SimpleNamespace(run_id=run))

    def close(self):
        return


@pytest.fixture
def claim(monkeypatch, tmp_path):
    """Claims the task of run 7 at a SuperLink."""
    (tmp_path / "secret").write_bytes(b"secret")
    made = FlowerSession.__new__(FlowerSession)
    made.coordinator = SimpleNamespace(secret=tmp_path / "secret", address="nowhere:1")
    made._app, made._ca = None, b""
    calls = SimpleNamespace(start_run=lambda app: 7, close=lambda: None)
    monkeypatch.setattr(session, "Control", lambda coordinator: calls)

    def at(link):
        monkeypatch.setattr(session.RuntimeHttpClient, "from_server_address", lambda *_: link)
        return made._claim()

    return at


def test_tasks_of_runs_that_are_not_ours_are_skipped(claim):
    """120 runs of somebody else kept ours from beginning."""
    assert claim(Crowded(*range(100, 220), 7)) == "token-7"


def test_a_task_that_never_comes_is_an_error_with_a_remedy(claim, monkeypatch):
    monkeypatch.setattr(session, "HANDED_OVER", 0.05)
    with pytest.raises(RunError, match="did not assign the task"):
        claim(Crowded(100, 101))
