"""The coordinator's side of Flower: registered nodes, and a Flower run whose grid this process uses.

The SuperLink starts no process for us: this process claims the run's task itself. So the run lives as long as this
process, and continues when a killed SuperLink comes back. Flower's own helpers interrupt the process when a token has
expired, hence the plain calls here.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import run_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedapa.config.experiment import config_hash, read_config
from fedapa.errors import RunError
from fedapa.federation import audit_log
from fedapa.federation.enrolment import read_agreement
from fedapa.federation.messages import Outgoing, digest_of
from fedapa.federation.registry import Coordinator
from fedapa.federation.remote_transport import Node, SessionLost
from fedapa.federation.run_federation import play_over
from fedapa.rounds.round_log import RoundLog
from fedapa.simulation import Progress, Result
from fedapa.store.run_folder import lock
from fedapa.transports.flower.control import Control
from fedapa.transports.flower.serialization import AWAY, GARBLED, GIANT, FlowerReply, to_flower

T = TypeVar("T")
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
HEARTBEAT = 8.0  # seconds between heartbeats; Flower drops a task after 30 without one
HANDED_OVER = 60.0  # seconds for the SuperLink to assign the task; tasks of other runs are skipped
STALLED = 30.0  # seconds without another part of a reply: its node died while it sent
MOST_PARTS = 30_000  # 10,000 tensors of three parts each, or 1 GB in pieces of 5 MB
SLICE = 2.0  # seconds that one reply is fetched before the others have their turn
# It has names only: sites run the code that is installed there.
APP = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "fedapa"
version = "1.0.0"
description = "Names the app that is installed at every site"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]
[tool.flwr.app]
publisher = "fedapa"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "fedapa.transports.flower.server_app:app"
clientapp = "fedapa.transports.flower.client_app:app"
[tool.flwr.app.config]
config = ""
"""


def build_app() -> Fab:
    content, _ = build_fab_from_files({"pyproject.toml": APP.encode(), "LICENSE": b"Apache-2.0\n"})
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def conduct(
    coordinator: Coordinator, folder: Path, progress: Progress | None = None, say: Callable[[str], None] | None = None
) -> Result:
    """Run or resume a run folder with the sites of this coordinator."""
    config = read_config(folder)
    lock(folder).close()  # no session is started if another process uses the folder
    session = FlowerSession(
        coordinator, say or (lambda text: None), most_bytes=1.5 * config.federation.max_upload_bytes
    )
    note, finished = partial(audit_log.append, coordinator.folder), False
    note("run begun", folder=str(folder.absolute()), method=config.methods[0], config=config_hash(config))
    try:
        result = play_over(session, coordinator.members, config, folder, _noted(progress, folder, note))
        finished = True
    finally:
        session.close(finished)
        note("run ended" if finished else "run aborted", folder=str(folder.absolute()))
    return result


def _noted(progress: Progress | None, folder: Path, note: Callable[..., object]) -> Progress:
    """Progress that also writes to the audit log what was agreed and which sites joined, left or were refused."""
    agreed = False

    def step(log: RoundLog) -> None:
        nonlocal agreed
        found = read_agreement(folder)
        assert found is not None
        if not agreed:
            note("agreed", run=found.terms.run, sites=found.terms.names, terms=digest_of(found.terms.config))
            agreed = True
        for event in log.events:
            if event.kind != "absent":
                who = {} if event.client is None else {"site": found.terms.names[event.client]}
                note(event.kind, run=found.terms.run, round=event.round + 1, text=event.text, **who)
        if progress is not None:
            progress(log)

    return step


@dataclass
class Arriving:
    """A reply whose parts are arriving."""

    name: str
    parts: dict[str, bytes | None]
    moved: float  # when the last part came
    size: int = 0


class FlowerSession:
    """A session over one or more Flower runs, until ours is done."""

    def __init__(
        self,
        coordinator: Coordinator,
        say: Callable[[str], None] = lambda text: None,
        outage: float = 3600.0,
        app: Fab | None = None,
        most_bytes: float = 2**30,
    ) -> None:
        self.coordinator, self.say, self.outage, self._app = coordinator, say, outage, app or build_app()
        self.most_bytes = most_bytes
        self._ca, self._stop = coordinator.ca.read_bytes(), threading.Event()
        self._grid: Any = None
        self._arriving: dict[str, Arriving] = {}
        self.renewals = 0
        self.outages = 0  # of the SuperLink, each of which may have lost a message on its way to a node
        self._open()
        threading.Thread(target=self._beat, daemon=True).start()

    def push(self, message: Outgoing) -> str:
        wanted = to_flower(message)
        ids = self._call(lambda: list(self._grid.push_messages([wanted])))
        return str(ids[0]) if ids and ids[0] else ""

    def pull(self, ids: Iterable[str]) -> list[FlowerReply]:
        """The complete replies. One that is still arriving does not block the others; one that stalled is an error."""
        wanted = [name for name in ids if name not in self._arriving]
        if wanted:
            client = self._grid._runtime_client
            found = self._call(lambda: client.PullMessages(PullAppMessagesRequest(message_ids=wanted)))
            for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                asked, name = str(proto.metadata.reply_to_message_id), str(proto.metadata.message_id)
                parts = dict.fromkeys(part.object_id for part in iterate_object_tree(tree))
                self._arriving[asked] = Arriving(name, parts, time.monotonic())
        found_now = [self._fetch(asked) for asked in list(self._arriving)]
        return [FlowerReply(message) for message in found_now if message is not None]

    def _fetch(self, asked: str) -> Message | None:
        """Fetch the available parts of a reply; returns the reply once it is complete."""
        entry, run, until = self._arriving[asked], TaskIdentity.run_id, time.monotonic() + SLICE
        if len(entry.parts) > MOST_PARTS:
            return self._broken(asked, GIANT, f"it has more than {MOST_PARTS} parts")
        for part in [part for part, content in entry.parts.items() if content is None]:
            wanted = PullObjectRequest(node=self._grid.node, run_id=run, object_id=part)
            found = self._call(partial(self._grid._runtime_client.PullObject, wanted))
            if not found.object_found:
                return self._broken(asked, AWAY, "its reply is gone")
            if found.object_available:
                entry.parts[part], entry.moved = found.object_content, time.monotonic()
                entry.size += len(found.object_content)
            if entry.size > self.most_bytes:
                return self._broken(asked, GIANT, f"it is larger than {self.most_bytes / 1e6:.0f} MB")
            if time.monotonic() > until:
                break
        if any(content is None for content in entry.parts.values()):
            stalled = time.monotonic() - entry.moved > STALLED
            return self._broken(asked, AWAY, "its reply stalled") if stalled else None
        del self._arriving[asked]
        done = ConfirmMessageReceivedRequest(node=self._grid.node, run_id=run, message_object_id=entry.name)
        self._call(lambda: self._grid._runtime_client.ConfirmMessageReceived(done))
        try:
            whole = {part: content for part, content in entry.parts.items() if content is not None}
            message: Any = inflate_object_from_contents(entry.name, whole)
        except Exception as error:  # untrusted bytes: whatever Flower raises is this reply's error
            return self._error(asked, GARBLED, f"it cannot be read: {error}"[:200])
        return message if isinstance(message, Message) else self._error(asked, GARBLED, "it is not a message")

    def _broken(self, asked: str, code: int, reason: str) -> Message:
        del self._arriving[asked]
        return self._error(asked, code, reason)

    def _error(self, asked: str, code: int, reason: str) -> Message:
        own = TaskIdentity.node_id
        about = Metadata(TaskIdentity.run_id, "", own, own, asked, "", time.time(), 1.0, "train")
        return make_message(about, error=Error(code, reason))

    def nodes(self) -> dict[int, Node]:
        found = self._call(lambda: self._grid._runtime_client.GetNodes(GetNodesRequest()).nodes)
        return {int(n.node_id): Node(n.status == "online", _seconds(n.last_activated_at) + self.outages) for n in found}

    def renew(self) -> None:
        self.say("the SuperLink lost this session; starting a new one")
        self.renewals += 1
        self._arriving.clear()
        self._grid.close()
        self._open()

    def close(self, finished: bool) -> None:
        """Report the result to the SuperLink, if it still answers."""
        self._stop.set()
        status = "completed" if finished else "failed"
        try:
            self._grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
        except (httpx.HTTPError, RunNotRunningException):
            pass
        finally:
            self._grid.close()

    def _open(self) -> None:
        token = self._patiently(self._claim)
        grid: Any = HttpGrid(self.coordinator.address, root_certificates=self._ca, token=token)
        grid._retry_invoker = None  # it would interrupt this process when a token has expired
        self._grid = grid
        found = self._patiently(lambda: grid._runtime_client.PullTaskInput(PullTaskInputRequest()))
        TaskIdentity.task_id, TaskIdentity.run_id = found.task_id, found.run.run_id
        TaskIdentity.node_id = found.context.node_id
        grid.set_run(run_from_proto(found.run))

    def _claim(self) -> str:
        """Start a Flower run and claim its task; unclaimed tasks of older runs are left to expire."""
        control = Control(self.coordinator)
        interceptors: list[Any] = [
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(
                master_secret=self.coordinator.secret.read_bytes(), protected_methods=frozenset({ACQUIRE})
            ),
        ]
        runtime = RuntimeHttpClient.from_server_address(self.coordinator.address, False, self._ca, interceptors)
        try:
            run, end = control.start_run(self._app), time.monotonic() + HANDED_OVER
            while time.monotonic() < end:
                taken = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
                if taken.token and taken.task.run_id == run:
                    return str(taken.token)
                if not taken.token:
                    time.sleep(0.1)
            raise RunError(
                "the SuperLink did not assign the task of its run", "stop the coordinator and start it again"
            )
        finally:
            control.close()
            runtime.close()

    def _patiently(self, work: Callable[[], T]) -> T:
        """Retry while the SuperLink is away; ``SessionLost`` here means that the new run was lost, too."""
        while True:
            try:
                return self._call(work)
            except SessionLost:
                time.sleep(1.0)

    def _call(self, work: Callable[[], T]) -> T:
        begin, was_there = time.monotonic(), True
        while True:
            try:
                return work()
            except RunNotRunningException as error:
                raise SessionLost from error
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500:
                    raise SessionLost from error
                problem: Exception = error
            except (httpx.TransportError, ValueError) as error:
                problem = error
                if was_there and isinstance(error, httpx.ConnectError):
                    self.outages, was_there = self.outages + 1, False
            if time.monotonic() - begin > self.outage:
                hint = "start it, and resume the run"
                raise RunError(f"the SuperLink at {self.coordinator.address} does not answer: {problem}", hint)
            time.sleep(0.5)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            try:
                self._grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except (httpx.HTTPError, RunNotRunningException, RuntimeError):
                continue  # the next call on the session raises it


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
