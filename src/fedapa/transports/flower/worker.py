"""A site's long-lived worker: answers the SuperNode's tasks one by one, without a new process for each.

It runs the ClientApp that is installed here. The app that comes with a run is only a name and is never unpacked.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedapa.federation.kit import CA, LOCAL, SECRET
from fedapa.federation.messages import plain
from fedapa.federation.site_status import complain, note
from fedapa.transports.flower import timing
from fedapa.transports.flower.client_app import SITE, app

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
POLL = 0.2


def work(folder: Path, address: str) -> None:
    """Answer tasks until the process is stopped."""
    secret = (folder / SECRET).read_bytes()
    auth = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({ACQUIRE}))
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    client = RuntimeHttpClient.from_server_address(address, False, trusted(folder), [version, auth])
    note(folder, state="ready")
    while True:
        try:
            taken = client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
        except httpx.HTTPError:  # the SuperNode is starting, or starting again
            time.sleep(1.0)
            continue
        if taken.token:
            perform(folder, address, str(taken.token))
        else:
            time.sleep(POLL)


def trusted(folder: Path) -> bytes:
    """The authority of the SuperNode's certificate, made for this start; any other server at its port is refused."""
    return (folder / LOCAL / CA).read_bytes()


def perform(folder: Path, address: str, token: str) -> None:
    """Answer one task. An error becomes the reply, or the coordinator's timeout handles it."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    interceptors: list[Any] = [version, RuntimeTokenHttpInterceptor(token)]
    client = RuntimeHttpClient.from_server_address(address, False, trusted(folder), interceptors)
    done = threading.Event()
    threading.Thread(target=_beat, args=(client, done), daemon=True).start()
    try:
        message, context, _, _ = pull_task_input(client)
        context.node_config[SITE] = str(folder)
        try:
            reply, status, details = app(message, context), "completed", ""
        except Exception as error:  # a bug must reach the coordinator as a reply
            details = (
                f"{type(error).__name__} at this site; its log says more"  # the message may contain values or paths
            )
            complain(plain(f"{type(error).__name__}: {error}", 1000))
            reply, status = Message(Error(2, details), reply_to=message), "failed"
        push_message(client, reply, context)
        push_task_output(client, None, status, details)
    except Exception as error:  # the SuperNode is gone, or has dropped the task
        complain(f"this task cannot be answered: {error}")
    finally:
        done.set()
        client.close()


def _beat(client: RuntimeHttpClient, done: threading.Event) -> None:
    while not done.wait(timing.heartbeat() / 4):  # the SuperNode drops a task after one that did not come
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except (httpx.HTTPError, RuntimeError):
            continue


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2])
