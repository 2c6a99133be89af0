"""Four sites in this process: the real transport, the real ClientApp, real states on disk, no network."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity

from fedapa.config.load import check, dump
from fedapa.core.tree import digest
from fedapa.federation.kit import Kit, write_kit
from fedapa.federation.messages import Outgoing, Terms
from fedapa.federation.remote_transport import Node, RemoteTransport, SessionLost
from fedapa.federation.site_agent import Agreed, agree, shared_data
from fedapa.rounds import loop
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.membership import Newcomer
from fedapa.rounds.round_log import RoundLog
from fedapa.rounds.site_policy import SitePolicy
from fedapa.rounds.upload_limits import Limits
from fedapa.simulation import Result, play, simulate
from fedapa.store.checkpoint import from_record
from fedapa.transports.flower import client_app
from fedapa.transports.flower.serialization import FlowerReply, to_flower

LIMITS = Limits()
NAMES = ["amber", "birch", "cedar", "dune"]


def config_text(method: str = "fedapa", rounds: int = 3, participation=(0.5, 1.0), **method_settings) -> str:
    raw = {
        "methods": [method],
        "seeds": [0],
        "data": {"source": "digits", "partition": "dirichlet", "clients": 4, "alpha": 0.5},
        "model": {"name": "mlp"},
        "training": {"lr": 0.05, "batch": 32, "epochs": 1},
        "run": {"rounds": rounds, "participation": list(participation), "engine": "torch"},
    }
    if method_settings:
        raw["method"] = {method: method_settings}
    return dump(check(raw))


def terms_of(text: str, run: str = "ab" * 8) -> Terms:
    from fedapa.federation.site_agent import read_config

    config = read_config(text)
    data = [shared_data(k)(config) for k in range(4)]
    first = data[0]
    sizes = [len(d.clients[0].train.y) for d in data]
    shape, mean, std = list(first.shape), list(map(float, first.mean)), list(map(float, first.std))
    return Terms(run, text, NAMES, sizes, "torch", first.classes, shape, mean, std, [])


def make_sites(folder: Path) -> list[Path]:
    found = []
    for k, name in enumerate(NAMES):
        site = folder / name
        site.mkdir(parents=True, exist_ok=True)
        write_kit(site, Kit(name, "nowhere:1", k))
        found.append(site)
    return found


class Direct:
    """A session whose nodes answer at once. Subclasses misbehave."""

    def __init__(self, sites: list[Path]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.sites, self.replies = sites, dict[str, Message]()
        self.pushed: list[Message] = []
        self.renewed = 0
        self._count = itertools.count()

    def push(self, outgoing: Outgoing) -> str:
        return self.post(to_flower(outgoing))

    def post(self, message: Message) -> str:
        name = f"message-{next(self._count)}"
        message = make_message(replace_id(message, name), through_wire(message.content))
        self.pushed.append(message)
        if (reply := self.answer(message)) is not None:
            self.replies[name] = reply
        return name

    def answer(self, message: Message) -> Message | None:
        folder = self.sites[message.metadata.dst_node_id - 100]
        context = Context(1, message.metadata.dst_node_id, {"site": str(folder)}, RecordDict(), {})
        reply = client_app.app(message, context)
        return make_message(reply.metadata, through_wire(reply.content))

    def pull(self, ids: Iterable[str]) -> list[FlowerReply]:
        return [FlowerReply(self.replies.pop(name)) for name in list(ids) if name in self.replies]

    def nodes(self) -> dict[int, Node]:
        return {100 + k: Node(True, 0.0) for k in range(len(self.sites))}

    def renew(self) -> None:
        self.renewed += 1


def replace_id(message: Message, name: str):
    message.metadata.__dict__["_message_id"] = name
    return message.metadata


def through_wire(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(
        recorddict_to_proto(content).FromString(recorddict_to_proto(content).SerializeToString())
    )


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def grid(
    session: Direct, terms: Terms, policy: SitePolicy | None = None, agreed: Agreed | None = None
) -> RemoteTransport:
    clock = Clock()
    places = [100 + k for k in range(len(terms.names))]
    scores = (agreed or agree(terms)).task.objective.scores
    return RemoteTransport(session, terms, lambda: places, policy, None, scores, clock, clock.sleep)


def over_grid(
    transport: RemoteTransport, terms: Terms, folder: Path | None = None, limits: Limits | None = LIMITS
) -> Result:
    method, task, plan = agree(terms)
    begin = loop.start(method, task, plan.seed)
    expected = Expected(method, task, sample(terms), limits)
    rows = [(i, name, terms.sizes[i], 0, 0, "") for i, name in enumerate(terms.names)]
    return play(loop.Context(method, task, transport, plan, expected), begin, rows, folder)


def sent(terms: Terms, i: int = 0):
    """What client i gets in the first round."""
    method, task, plan = agree(terms)
    return method.send(task, method.init(task, plan.seed)[0], i)


def sample(terms: Terms):
    import torch

    return torch.zeros(terms.shape, dtype=torch.uint8)


class Planned:
    """A membership by the book: client i takes part from round since[i] on, and until[i] is the first without it."""

    def __init__(self, rows: list[Newcomer], since: Sequence[int], until: Sequence[int]) -> None:
        self.rows, self.since, self.until = rows, since, until

    def arrivals(self, round: int) -> list[Newcomer]:
        return [row for row, since in zip(self.rows, self.since, strict=True) if since == round > 0]

    def members(self, round: int) -> list[Newcomer]:
        return [row for row, since in zip(self.rows, self.since, strict=True) if 0 < since < round]

    def admit(self, newcomer: Newcomer, round: int) -> None:
        return

    def reject(self, newcomer: Newcomer) -> None:
        raise AssertionError(newcomer)

    def gone(self, round: int) -> frozenset[int]:
        return frozenset(i for i, until in enumerate(self.until) if 0 <= until <= round)


def in_process(
    terms: Terms,
    absent: frozenset[tuple[int, int]] = frozenset(),
    since: Sequence[int] = (),
    until: Sequence[int] = (),
    folder: Path | None = None,
) -> Result:
    """The plain simulation of the same config; ``absent`` are (round, client) that do not answer."""
    from fedapa.config.experiment import load_data
    from fedapa.federation.site_agent import read_config
    from fedapa.store.run_folder import client_rows

    count = len(terms.names) if not since else list(since).count(0)
    method, task, plan = agree(replace(terms, names=terms.names[:count], sizes=terms.sizes[:count]))
    data = load_data(read_config(terms.config), plan.seed)
    membership = None
    if since:
        rows = [Newcomer(terms.names[i], *row[2:]) for i, row in enumerate(client_rows(data))]
        membership = Planned(rows, since, until)
    if not absent:
        return simulate(method, task, data, plan, folder, workers=1, membership=membership)
    from fedapa.rounds.transport import InProcess

    class Thinned(InProcess):
        def exchange(self, requests):
            yield from super().exchange([r for r in requests if (r.round, r.client) not in absent])

    begin = loop.start(method, task, plan.seed)
    transport = Thinned(method, task, data, plan.seed, begin[1], 1)
    expected = Expected(method, task, data.clients[0].train.x[0])
    context, rows = loop.Context(method, task, transport, plan, expected), client_rows(data)[: task.clients]
    return play(context, begin, rows, membership=membership)


def server_digest(result: Result) -> str:
    return digest(result.state.server)


def client_digests(result: Result, run: RemoteTransport | None = None) -> list[str]:
    """Of every client's last accepted state; empty for one that never trained."""
    if run is not None:
        return [standing.digest for standing in run.standings]
    trained = {i for log in result.logs for i in log.trained}
    return [digest(from_record(r)) if i in trained else "" for i, r in enumerate(result.records)]


def scores(logs: list[RoundLog]) -> list[list[list[int]]]:
    return [[log.before.tolist(), log.after.tolist()] for log in logs if log.before is not None]


__all__ = ["Agreed", "SessionLost", "replace"]
