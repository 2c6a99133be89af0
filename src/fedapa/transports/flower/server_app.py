"""The ServerApp, for runs that Flower itself starts: plays a run folder over the grid that Flower provides.

Real federations do not need it (`fedapa coordinator run` claims its grid itself). Flower's simulation does: there every
node is a site folder under FEDAPA_SITES, by the number of its partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid as FlowerGrid
from flwr.serverapp import ServerApp

from fedapa.config.experiment import read_config
from fedapa.errors import RunError
from fedapa.federation import messages
from fedapa.federation.messages import Description, Outgoing, Question
from fedapa.federation.registry import Enrolled
from fedapa.federation.remote_transport import POLL, Node, Session
from fedapa.federation.run_federation import play_over
from fedapa.store.run_folder import CONFIG
from fedapa.transports.flower.serialization import FlowerReply, to_flower

IDENTIFY = 120.0  # seconds for all nodes to report their names


class Lent:
    """Flower's own grid as a session. It ends with Flower's run and cannot be renewed."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def push(self, message: Outgoing) -> str:
        ids = list(self._grid.push_messages([to_flower(message)]))
        return str(ids[0]) if ids and ids[0] else ""

    def pull(self, ids: Iterable[str]) -> list[FlowerReply]:
        return [FlowerReply(message) for message in self._grid.pull_messages(list(ids))]

    def nodes(self) -> dict[int, Node]:
        return {int(node): Node(True, 0.0) for node in self._grid.get_node_ids()}

    def renew(self) -> None:
        raise RunError("Flower's run has ended", "start it again: the run folder goes on after its last round")


def identify(session: Session, text: str) -> list[Enrolled]:
    """Every node by the name in its site folder; names are not authenticated in a simulation."""
    asked: dict[str, int] = {}
    for node in session.nodes():
        question = messages.write(Question("", text))
        asked[session.push(Outgoing(node, "query", {"question": question}, {}, 3600.0))] = node
    found, end = list[Enrolled](), time.monotonic() + IDENTIFY
    while asked and time.monotonic() < end:
        for message in session.pull(asked):
            node = asked.pop(message.reply_to)
            if message.failure is not None:
                raise RunError(f"a node failed: {message.failure.reason}", "is FEDAPA_SITES set?")
            name = messages.read(Description, message.record("description")).site
            found.append(Enrolled(name, "", 0, node))
        time.sleep(POLL)
    return sorted(found, key=lambda site: site.name)


def main(grid: FlowerGrid, context: Context) -> None:
    folder = Path(str(context.run_config["config"]))
    session = Lent(grid)
    sites = identify(session, (folder / CONFIG).read_text(encoding="utf-8"))
    play_over(session, lambda: sites, read_config(folder), folder)


app = ServerApp()
app.main()(main)
