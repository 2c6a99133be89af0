"""A dry run of one site without joining: the messages it would send, and how good it is alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fedapa.analysis import statistics
from fedapa.analysis.personalized_model import predictions
from fedapa.analysis.statistics import Interval
from fedapa.config.experiment import load_own, method_from, single, task_from
from fedapa.config.load import settings_of, training_of
from fedapa.config.sections import Config
from fedapa.core.tree import Tree
from fedapa.data import agreement
from fedapa.data.federated import ClientData, Federated
from fedapa.data.sites import Own
from fedapa.errors import InputError
from fedapa.federation import manifest
from fedapa.methods.catalogue import entry
from fedapa.methods.local_only import LocalOnly
from fedapa.methods.method import Method, Role
from fedapa.methods.wrappers import account_of
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.loop import start
from fedapa.rounds.round_log import RoundLog
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import Record, Request, visit
from fedapa.simulation import doubts, simulate
from fedapa.site.measures import Measure, measures_of
from fedapa.training.task import Task

LAYOUT = (
    "a hash of names, kinds, units and codes of {} columns and of the classes; no name, unless you send a schema.json"
)
TARGET = "count, sum and sum of squares of the target over the train rows"


class DryRun(NamedTuple):
    site: str
    method: str
    wire: dict[str, Any]
    sees: dict[str, str]  # name of a tensor: who sees it
    rows: tuple[int, int]  # train, test
    measures: list[Measure]
    alone: dict[str, Interval]  # every measure of local training alone
    privacy: list[str]  # what noised uploads protect and what not
    warnings: list[str]


def dry_run(
    config: Config, method: str, site: str | None = None, progress: Callable[[RoundLog], None] | None = None
) -> DryRun:
    """One real round of one site against a local server, then local training to the end."""
    return dry_runs(config, [method], site, progress)[0]


def dry_runs(
    config: Config,
    methods: Sequence[str],
    site: str | None = None,
    progress: Callable[[RoundLog], None] | None = None,
) -> list[DryRun]:
    """The same for several methods; training alone is done once."""
    own = load_own(config, config.seeds[0])
    i = _place(own.data, site)
    y, p = own.data.clients[i].test.y.numpy(), _alone(own.data, config, i, progress)
    measures = measures_of(task_from(config, methods[0], own.data).objective)
    scores = {measure.name: measure.own(y, p) for measure in measures}
    return [_played(config, method, own, i, measures, scores) for method in methods]


def _played(
    config: Config, method: str, own: Own, i: int, measures: list[Measure], scores: dict[str, Interval]
) -> DryRun:
    seed, client = config.seeds[0], own.data.clients[i]
    task, played = task_from(config, method, own.data), method_from(config, method)
    base, _ = settings_of(config, method)
    exchanges = _messages(played, task, client, i, seed)
    assert config.sites is not None
    schema = own.schemas[i]
    once = [LAYOUT.format(len(schema.columns)), "numbers of train, test and validation rows"]
    once += [f"which classes are among them: {', '.join(schema.class_names)}" if schema.classes else TARGET]
    if config.sites.scaling == "federated":
        numeric = sum(column.kind == "number" for column in schema.columns)
        once.append(f"count, sum and sum of squares of {numeric} numeric columns over the train rows")
    account = account_of(played, config.run.rounds, simulated=False)
    terms = manifest.pinned(single(config, method, seed)) | {manifest.SEEDS: config.seeds}
    agreed = manifest.agreement(client.name, method, exchanges, once, account, terms, agreement.fingerprint(schema))
    sees = {row["name"]: _who_sees(base, played.roles.get(row["name"])) for message in agreed["up"] for row in message}
    privacy = [] if account is None else account.lines()
    sizes = len(client.train.y), len(client.test.y)
    return DryRun(
        client.name, method, agreed, sees, sizes, measures, scores, privacy, doubts(played, task, client.train.x[0])
    )


def _place(data: Federated, site: str | None) -> int:
    names = [client.name for client in data.clients]
    if site is None and len(names) == 1:
        return 0
    if site not in names:
        said = f"there is no site '{site}'" if site else f"this config has {len(names)} sites"
        raise InputError(said, f"--site one of {', '.join(map(repr, names))}")
    return names.index(site)


def _messages(method: Method, task: Task, client: ClientData, i: int, seed: int) -> list[tuple[Tree, Tree]]:
    """What goes down and up: the first round for real, on the site's own rows, and the later ones by their shapes."""
    state, first = start(method, task, seed)
    down = method.send(task, state.server, i)
    request = Request(0, i, lambda: down, train=True, evaluate=False)
    _, reply = visit(method, task, client, Record(first, {}), request, seed)
    if reply.up is None or reply.fault:
        raise InputError(f"site {client.name}: its training failed: {reply.fault}", "lower training.lr")
    return [(down, reply.up), *Expected(method, task, client.train.x[0]).exchanges(3)]


def _alone(data: Federated, config: Config, i: int, progress: Callable[[RoundLog], None] | None) -> statistics.Floats:
    """Predictions of the site's own test rows after as many rounds of training alone."""
    task = task_from(config, "local", data)
    mine = replace(data, clients=(data.clients[i],))
    training = training_of(config, "local")
    own = replace(task.for_client(i), architectures=None)
    alone = replace(own, sizes=task.sizes[i : i + 1], names=task.names[i : i + 1], vectorise=False, training=training)
    plan = Plan(config.run.rounds, (1.0, 1.0), seed=config.seeds[0], evaluate_every=config.run.rounds)
    done = simulate(LocalOnly(), alone, mine, plan, progress=progress)
    return predictions(LocalOnly(), alone, done.records[0].state, mine.clients[0].test.x)


def _who_sees(base: str, role: Role | None) -> str:
    """The server sees every upload as it is; what others see is what it makes of it."""
    others = {"fedapa": "others get mixtures of it", "apple": "every other site, as it is"}
    shared = others.get(base.partition("-")[0], "others get averages of it")
    return "the server" if role is Role.SAMPLES else f"the server; {shared} ({entry(base).title})"
