"""One site at work: its name, its data, its states. Everything that a request makes it do happens here.

A site runs the code that is installed at it and no other. What a request may choose is a method, its numbers, and one
of the models that are built in or that the site itself allowed.
"""

from __future__ import annotations

import secrets
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedapa.config.experiment import load_data, method_from, objective_of, plan_from, task_from
from fedapa.config.load import check, load
from fedapa.config.sections import Config
from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Federated, target_sums
from fedapa.errors import FedapaError, InputError, RunError
from fedapa.federation import manifest
from fedapa.federation.kit import Kit, read_kit
from fedapa.federation.messages import Description, Terms, TrainReply, TrainRequest
from fedapa.federation.releases import Releases
from fedapa.federation.site_store import Store
from fedapa.methods.method import Method
from fedapa.methods.wrappers import account_of, noise_of
from fedapa.plugins import is_own
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import Record, Request, reseed, visit
from fedapa.training.engines.choice import native_kernel
from fedapa.training.local import Entropy
from fedapa.training.model import build_model
from fedapa.training.settings import Engine
from fedapa.training.task import Task

WIRE = "wire.json"  # beside the site's own config, where `site dry-run` writes it, or in the kit
SALT = "salt"
Share = Callable[[Config], Federated]  # the site's own data, as a federation of one


class Agreed(NamedTuple):
    """The terms of a run, put together; coordinator and sites do it by the same function."""

    method: Method
    task: Task
    plan: Plan


def agree(terms: Terms) -> Agreed:
    config = read_config(terms.config)
    (name,) = config.methods
    target = (terms.target[0], terms.target[1]) if terms.target else (0.0, 1.0)
    about = Federated("", (), terms.classes, tuple(terms.shape), tuple(terms.mean), tuple(terms.std), "", target)
    engine: Engine = terms.engine  # type: ignore[assignment]
    task = task_from(config, name, about, engine)
    task = replace(task, sizes=torch.tensor(terms.sizes, dtype=torch.int64), names=tuple(terms.names))
    return Agreed(method_from(config, name), task, plan_from(config))


def _salted(record: Record) -> Record:
    """The digest of a state goes to the coordinator. Training is deterministic, so a digest of the state alone would
    tell whether a guess at the rows is right; with random bytes in it, it tells nothing."""
    salt = torch.tensor(list(secrets.token_bytes(32)), dtype=torch.uint8)
    return record._replace(memory={**record.memory, SALT: salt})


def read_config(text: str) -> Config:
    try:
        config = check(tomllib.loads(text), text, "the run's config")
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the run's config is not TOML: {error}") from None
    if (len(config.methods), len(config.seeds)) != (1, 1):
        raise InputError("the run's config names several runs")
    if config.attack is not None:
        raise InputError("the run's config has a section [attack]", "clients lie on demand in simulations alone")
    return config


def shared_data(number: int) -> Share:
    """Share ``number`` of the data that the run's own config names."""
    return lambda config: _only(load_data(config, config.seeds[0]), number)


def own_data(path: Path, number: int) -> Share:
    """The data that a config at the site names, whatever the run's config says: its only share, or ``number``."""

    def share(config: Config) -> Federated:
        data = load_data(load(str(path)), config.seeds[0])
        return _only(data, number if len(data.clients) > 1 else 0)

    return share


def _only(data: Federated, number: int) -> Federated:
    if not 0 <= number < len(data.clients):
        raise InputError(f"there is no share {number} among {len(data.clients)}", "join with another --share")
    return replace(data, clients=(data.clients[number],))


@dataclass
class Site:
    name: str
    store: Store
    share: Share
    models: frozenset[str] = frozenset()  # beyond the built-in ones: package.module:function
    wire: dict[str, Any] | None = None  # what may leave, where the site made a dry run
    _agreed: dict[str, tuple[Terms, Agreed, ClientData]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> Site:
        kit: Kit = read_kit(folder)
        share = own_data(Path(kit.data), kit.share) if kit.data else shared_data(kit.share)
        listed = (Path(kit.data).parent if kit.data else folder) / WIRE
        allowed = manifest.read(listed) if listed.is_file() else None
        return cls(kit.name, Store(folder / "states"), share, frozenset(kit.models), allowed)

    def describe(self, text: str, site: str) -> Description:
        """What the coordinator must know before a run; whatever is wrong here becomes the fault that it reads."""
        blank = Description(self.name, "", 0, 0, 0, 0, [], "", [], [], [], [], "", False)
        try:
            self._check_name(site or self.name)  # asked who it is
            config = self._checked(read_config(text))
            if self.wire is not None:
                manifest.check_method(self.wire, config.methods[0])
                method = method_from(config, config.methods[0])
                manifest.check_noise(self.wire, account_of(method, config.run.rounds, simulated=False))
            data, model = self.share(config), config.model
            outputs = objective_of(config, data.classes).outputs(data.classes)
            split = build_model(model.name, data.shape, outputs, model.head, model.buffers)
            fingerprint = self.store.keyed(data.fingerprint)
        except FedapaError as error:
            return replace(blank, fault=f"{error.message}. {error.hint}".strip())
        mine = data.clients[0]
        labels = torch.bincount(mine.train.y).nonzero().flatten().tolist() if data.classes else []
        target = [] if data.classes else list(target_sums(mine.train.y))
        held = 0 if mine.validation is None else len(mine.validation.y)
        return Description(
            self.name,
            "",
            len(mine.train.y),
            len(mine.test.y),
            held,
            data.classes,
            list(data.shape),
            str(mine.train.x.dtype).removeprefix("torch."),
            list(map(float, data.mean)),
            list(map(float, data.std)),
            target,
            labels,
            fingerprint,
            native_kernel(split, data) is not None,
        )

    def visit(self, terms: Terms, ask: TrainRequest, down: Tree) -> tuple[TrainReply, Tree | None]:
        """Do what is asked. The new state is on the disk before the upload is on its way."""
        blank = TrainReply(terms.run, self.name, ask.round, "", False, "", [], [], 0.0, 0.0)
        try:
            return self._visit(terms, ask, down, blank)
        except FedapaError as error:
            return replace(blank, fault=error.message), None

    def _visit(self, terms: Terms, ask: TrainRequest, down: Tree, blank: TrainReply) -> tuple[TrainReply, Tree | None]:
        torch.set_num_threads(1)  # as in a simulation, whose bits these are
        self._check_name(ask.site)
        agreed, data = self._agree(terms, ask.client)
        train = partial(self._train, terms, ask, down, blank, agreed, data)
        if not ask.train or noise_of(agreed.method) is None:
            return train()
        if self.wire is not None:
            manifest.check_noise(self.wire, account_of(agreed.method, agreed.plan.rounds, simulated=False))
        releases = Releases(self.store.place(terms.run), terms.config, agreed.plan.rounds)
        return releases.answer(ask, down, train)

    def _train(
        self, terms: Terms, ask: TrainRequest, down: Tree, blank: TrainReply, agreed: Agreed, data: ClientData
    ) -> tuple[TrainReply, Tree | None]:
        method, task, plan = agreed
        record = self._record(method, task, plan.seed, terms.run, ask)
        request = Request(ask.round, ask.client, lambda: down, ask.train, ask.evaluate, ask.evaluate_last)
        reseed(task, plan.seed, request)
        new, reply = visit(method, task, data, record, request, plan.seed, entropy=Entropy())
        if self.wire is not None and reply.up is not None:
            manifest.check(self.wire, read_config(terms.config).methods[0], reply.up)
        new = _salted(new) if noise_of(method) is not None else new
        digest = self.store.save(terms.run, ask.round + 1, new) if reply.up is not None and not reply.fault else ""
        self.store.prune(terms.run, ask.keep_from)
        answer = replace(
            blank,
            fault=reply.fault or "",
            trained=bool(digest),
            digest=digest,
            before=[] if reply.before is None else reply.before.flatten().tolist(),
            after=[] if reply.after is None else reply.after.flatten().tolist(),
            seconds=reply.seconds,
            train_seconds=reply.train_seconds,
        )
        return answer, reply.up if digest else None

    def _record(self, method: Method, task: Task, seed: int, run: str, ask: TrainRequest) -> Record:
        if ask.accepted == 0:
            return Record(method.init(task, seed)[1], {})
        return self.store.load(run, ask.accepted, ask.digest)

    def _agree(self, terms: Terms, client: int) -> tuple[Agreed, ClientData]:
        if terms.run not in self._agreed or self._agreed[terms.run][0] != terms:
            config = self._checked(read_config(terms.config))
            data = self.share(config)
            if terms.names[client] != self.name or terms.sizes[client] != len(data.clients[0].train.y):
                raise RunError("the run knows this site by another number or size; its data changed since it began")
            mine = (data.classes, list(data.shape), list(map(float, data.mean)), list(map(float, data.std)))
            if mine != (terms.classes, terms.shape, terms.mean, terms.std):
                raise RunError("the run expects samples of another format than this site has")
            self._agreed = {terms.run: (terms, agree(terms), data.clients[0])}
        _, agreed, mine_ = self._agreed[terms.run]
        return agreed, mine_

    def _check_name(self, site: str) -> None:
        if site != self.name:
            raise RunError(f"this is {self.name}, not {site[:80]}")

    def _checked(self, config: Config) -> Config:
        """A model or an objective by name is code: only what the site has allowed is imported."""
        for what, name in (("model", config.model.name), ("objective", config.objective.name)):
            if is_own(name) and name not in self.models:
                hint = "the site can allow it in its kit.toml"
                raise RunError(f"the {what} {name[:80]} is not allowed at {self.name}", hint)
        return config
