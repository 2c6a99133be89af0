"""Administration of the SuperLink: which sites may connect and who is online. It needs no torch."""

from __future__ import annotations

import sys
import time
from typing import Any

import httpx
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedapa.errors import FedapaError
from fedapa.federation.registry import Coordinator
from fedapa.store.file_lock import flock


def online(coordinator: Coordinator) -> dict[int, str] | None:
    """The state of every node that the SuperLink knows; None if it does not answer."""
    control = Control(coordinator)
    try:
        return {int(node.node_id): str(node.status) for node in control.nodes()}
    except httpx.HTTPError:
        return None
    finally:
        control.close()


class Control:
    """Administration calls; reachable only on the coordinator's own machine."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        version = RuntimeVersionHttpInterceptor(component_name="flwr-cli")
        self._client = ControlHttpClient.from_server_address(
            coordinator.address, False, coordinator.ca.read_bytes(), [version]
        )

    def is_up(self) -> bool:
        try:
            self._client.ListNodes(ListNodesRequest())
        except httpx.HTTPError:
            return False
        return True

    def nodes(self) -> list[Any]:
        return list(self._client.ListNodes(ListNodesRequest()).nodes_info)

    def sync(self) -> None:
        """Register exactly the keys of the registry's members at the SuperLink."""
        with open(self.coordinator.folder / ".nodes.lock", "w") as lock:
            flock(lock)  # two at once would register a key twice, which the SuperLink refuses
            known = {bytes(node.public_key): node for node in self.nodes() if node.status != "unregistered"}
            numbers = {}
            for site in self.coordinator.members():
                node = known.pop(site.key.encode(), None)
                numbers[site.name] = node.node_id if node is not None else self._register(site.key, site.name)
            for node in known.values():
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
            self.coordinator.note_nodes(numbers)

    def keep_synced(self, every: float = 10.0) -> None:
        """Register members without end: when the SuperLink starts, and when somebody else unregistered one."""
        while True:
            try:
                self.sync()
            except httpx.TransportError:  # it is starting, or starting again
                time.sleep(0.5)
                continue
            except (httpx.HTTPError, FedapaError, OSError) as error:  # such as a full disk
                print(f"cannot register the sites: {error}", file=sys.stderr, flush=True)
            time.sleep(every)

    def drop_ended_runs(self) -> None:
        """Have the SuperLink delete what is left of runs that ended, such as uploads that nobody fetched because the
        coordinator was killed. It does so for every run that it lists."""
        self._client.ListRuns(ListRunsRequest(limit=100))

    def start_run(self, app: Fab) -> int:
        self.drop_ended_runs()
        return int(self._client.StartRun(StartRunRequest(fab=fab_to_proto(app))).run_id)

    def _register(self, key: str, name: str) -> int:
        return int(self._client.RegisterNode(RegisterNodeRequest(public_key=key.encode(), name=name)).node_id)

    def close(self) -> None:
        self._client.close()
