"""A site: its name, its data, its states. Everything that a request makes a site do happens here.

A site runs the code that is installed at it and no other. What a request may choose is a method, its numbers within the
site's limits, and one of the models and methods that are built in or that the site itself allowed. It names no files
here: a method in a file is run from the site's own copy, which must be the file that the run was begun with.
Where the site has a wire.json, the request must ask for exactly what that says. Errors are sent to
the coordinator without rows, columns and folders; ``Site.reason`` has the full text, for the site's log.
"""

from __future__ import annotations

import secrets
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedapa.config.experiment import method_from, objective_of, plan_from, task_from
from fedapa.config.load import check, load, settings_of, training_of
from fedapa.config.own_code import check_code
from fedapa.config.sections import Config
from fedapa.core.tree import Tree, count_bytes, digest
from fedapa.data import agreement
from fedapa.data.agreement import Differs
from fedapa.data.federated import ClientData, Federated, target_sums
from fedapa.data.schema import Schema
from fedapa.data.site_description import Sites
from fedapa.data.sites import Own, described
from fedapa.errors import FedapaError, InputError, RunError
from fedapa.federation import audit_log, manifest, site_result
from fedapa.federation.kit import read_kit
from fedapa.federation.limited_engine import Limited
from fedapa.federation.messages import (
    Description,
    Disclosed,
    Refused,
    Terms,
    TrainReply,
    TrainRequest,
    Withheld,
    digest_of,
    plain,
)
from fedapa.federation.releases import Releases, request_of
from fedapa.federation.site_data import Share, own_data, own_rows, shared_data
from fedapa.federation.site_questions import Questions, check_scored
from fedapa.federation.site_result import About
from fedapa.federation.site_settings import SiteLimits, own_copy, read_settings
from fedapa.federation.site_store import Store
from fedapa.federation.site_terms import check_continues, check_names, check_target
from fedapa.methods.catalogue import own_code, taken_apart
from fedapa.methods.method import Method
from fedapa.methods.wrappers import noise_of
from fedapa.plugins import is_own
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import Record, Reply, Request, reseed, visit
from fedapa.training.engines.choice import native_kernel
from fedapa.training.local import Entropy
from fedapa.training.model import build_models
from fedapa.training.settings import Engine
from fedapa.training.task import Task

WIRE = "wire.json"  # beside the site's own config, where `site dry-run` writes it, or in the kit
SALT = "salt"
FAILED = "its training failed; its log says why"
NEW_COPY = "every site needs a copy of the coordinator's file"
DIFFERS = "its columns or classes are not those of the agreed layout; its log names the difference"


class Agreed(NamedTuple):
    """The method, task and plan of a run; coordinator and sites build them by the same function."""

    method: Method
    task: Task
    plan: Plan


def agree(terms: Terms, config: Config | None = None) -> Agreed:
    """By the config of the terms, or by a site's own reading of it, which names the site's own copies of code."""
    config = read_config(terms.config) if config is None else config
    config = config.model_copy(update={"run": config.run.model_copy(update={"device": "cpu"})})  # the devices are ours
    (name,) = config.methods
    target = (terms.target[0], terms.target[1]) if terms.target else (0.0, 1.0)
    about = Federated("", (), terms.classes, tuple(terms.shape), tuple(terms.mean), tuple(terms.std), "", target)
    engine: Engine = terms.engine  # type: ignore[assignment]
    task = task_from(config, name, about, engine)
    task = replace(task, sizes=torch.tensor(terms.sizes, dtype=torch.int64), names=tuple(terms.names))
    return Agreed(method_from(config, name), task, plan_from(config))


def _told_loss(method: Method, reply: Reply) -> list[float]:
    """The loss of the batches; epsilon is about the rows that it is of, so it stays here where uploads are noised."""
    if noise_of(method) is not None or not reply.train_loss.is_known:
        return []
    return [reply.train_loss.total, float(reply.train_loss.samples)]


def _told_fault(method: Method, fault: str) -> str:
    """Why a training failed. With weights of its choice a coordinator makes it fail in a way that tells of rows. So
    where uploads are noised, all that is told is that it failed."""
    return FAILED if fault and noise_of(method) is not None else fault


def _salted(record: Record) -> Record:
    """The digest of a state goes to the coordinator. Training is deterministic, so a digest of the state alone would
    confirm a right guess at the rows; a random salt prevents that."""
    salt = torch.tensor(list(secrets.token_bytes(32)), dtype=torch.uint8)
    return record._replace(memory={**record.memory, SALT: salt})


def read_config(text: str) -> Config:
    try:
        config = check(tomllib.loads(text), text, "the run's config")
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the run's config is not TOML: {error}") from None
    except RecursionError:
        raise InputError("the run's config is nested too deeply") from None
    if (len(config.methods), len(config.seeds)) != (1, 1):
        raise InputError("the run's config names several runs")
    if config.attack is not None:
        raise InputError("the run's config has a section [attack]", "only simulations have malicious clients")
    return config


@dataclass
class Site:
    name: str
    store: Store
    share: Share
    models: frozenset[str] = frozenset()  # beyond the built-in ones: package.module:function
    methods: frozenset[str] = frozenset()  # beyond the built-in ones: file.py:Class
    wire: dict[str, Any] | None = None  # what may leave, where the site made a dry run
    limits: SiteLimits = SiteLimits()
    seeds: frozenset[int] = frozenset()  # that it allows; none: the first that is asked for
    data: Path | None = None  # the config that describes its own data
    number: int = 0  # of its share
    reason: str = ""  # the last fault in full; it does not leave the site
    note: Callable[..., object] = lambda event, **facts: None  # into the site's audit log
    _agreed: dict[str, tuple[Terms, Agreed, ClientData]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> Site:
        kit, own = read_kit(folder), read_settings(folder)
        number = kit.share if own.share is None else own.share
        share = own_data(Path(own.data), number) if own.data else shared_data(number)
        note = partial(audit_log.append, folder)
        listed = (Path(own.data).parent if own.data else folder) / WIRE
        allowed = manifest.read(listed) if listed.is_file() else None
        models, methods = frozenset(own.models), frozenset(own.methods)
        store, data = Store(folder / "states"), Path(own.data) if own.data else None
        seeds = frozenset(own.seeds)
        return cls(kit.name, store, share, models, methods, allowed, own.limits, seeds, data, number, note=note)

    def describe(self, text: str, site: str) -> Description:
        """What the coordinator must know before a run; an error becomes the description's fault."""
        blank = Description(self.name, "", 0, 0, 0, 0, [], "", [], [], [], [], "", False, "")
        self.reason = ""
        try:
            self._check_name(site or self.name)  # asked who it is
            config = self._checked(text)
            data, model = self._data(config), config.model
            with _in_words():
                outputs = objective_of(config, data.classes).outputs(data.classes)
                split, several = build_models(model.name, data.shape, outputs, **model.options)
            fingerprint, layout = self.store.keyed(data.fingerprint), self._layout(config)
            self.note("described", terms=digest_of(text), train=len(data.clients[0].train.y))
        except FedapaError as error:
            return replace(blank, fault=self._fault(error))
        mine, other = data.clients[0], several is not None or bool(training_of(config, config.methods[0]).trainer)
        is_native = not other and native_kernel(split, data) is not None
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
            is_native,
            layout,
        )

    def visit(self, terms: Terms, ask: TrainRequest, down: Tree) -> tuple[TrainReply, Tree | None]:
        """Train or evaluate as requested. The new state is on disk before the upload is sent."""
        blank = TrainReply(terms.run, self.name, ask.round, "", False, "", [], [], [], 0.0, 0.0)
        self.reason = ""
        try:
            answer, up = self._visit(terms, ask, down, blank)
            if up is not None:  # logged before it is sent
                size = count_bytes(up)
                self.note("sent", run=terms.run, round=ask.round + 1, digest=digest(up), tensors=[*up], bytes=size)
            return answer, up
        except FedapaError as error:
            return replace(blank, fault=self._fault(error)), None

    def _visit(self, terms: Terms, ask: TrainRequest, down: Tree, blank: TrainReply) -> tuple[TrainReply, Tree | None]:
        torch.set_num_threads(1)  # as in a simulation, to get the same bits
        self._check_name(ask.site)
        agreed, data = self._agree(terms, ask.client)
        _check_rounds(ask, agreed.plan)
        if ask.evaluate or ask.evaluate_last:
            check_scored(self.store.place(terms.run), ask.round, request_of(ask, down), self.limits.max_scored)
        train = partial(self._train, terms, ask, down, blank, agreed, data)
        if not ask.train or noise_of(agreed.method) is None:
            return train()
        releases = Releases(self.store.place(terms.run), terms.config, agreed.plan.rounds)
        return releases.answer(ask, down, train)

    def _train(
        self, terms: Terms, ask: TrainRequest, down: Tree, blank: TrainReply, agreed: Agreed, data: ClientData
    ) -> tuple[TrainReply, Tree | None]:
        method, task, plan = agreed
        record = self._record(method, task, plan.seed, terms.run, ask)
        request = Request(ask.round, ask.client, lambda: down, ask.train, ask.evaluate, ask.evaluate_last)
        reseed(task, plan.seed, request)
        try:
            new, reply = visit(method, task, data, record, request, plan.seed, Limited(self.limits), Entropy())
        except RunError as error:  # of scoring
            why = f"{error.message}. {error.hint}".strip()
            raise Withheld(_told_fault(method, why), why) from error
        if self.wire is not None and reply.up is not None:
            manifest.check(self.wire, read_config(terms.config).methods[0], reply.up)
        new = _salted(new) if noise_of(method) is not None else new
        digest = self.store.save(terms.run, ask.round + 1, new) if reply.up is not None and not reply.fault else ""
        self.reason = reply.fault or ""
        if not reply.fault:
            use = site_result.use_of(method.evaluated == "before", ask, down, digest)
            site_result.note_use(self.store, terms.run, use, plan.rounds)
            self.store.prune(terms.run, ask.keep_from, use.rounds)
        answer = replace(
            blank,
            fault=_told_fault(method, self.reason),
            trained=bool(digest),
            digest=digest,
            before=[] if reply.before is None else reply.before.flatten().tolist(),
            after=[] if reply.after is None else reply.after.flatten().tolist(),
            train_loss=_told_loss(method, reply),
            seconds=reply.seconds,
            train_seconds=reply.train_seconds,
        )
        return answer, reply.up if digest else None

    def _record(self, method: Method, task: Task, seed: int, run: str, ask: TrainRequest) -> Record:
        if ask.accepted == 0:
            return Record(method.init(task.for_client(ask.client), seed)[1], {})
        return self.store.load(run, ask.accepted, ask.digest)

    def _agree(self, terms: Terms, client: int) -> tuple[Agreed, ClientData]:
        mine = list(zip(terms.names, terms.sizes, strict=False))[client : client + 1] if client >= 0 else []
        if not mine or mine[0][0] != self.name:
            raise Disclosed(f"the run has no site {self.name} of number {client}")
        if terms.run not in self._agreed or self._agreed[terms.run][0] != terms:
            check_names(terms)
            check_continues(self.store, terms, client)
            config = self._checked(terms.config)
            self.limits.check_runs(self.store, terms.run)
            data = self._data(config)
            self._layout(config)
            if mine[0][1] != len(data.clients[0].train.y):
                raise Disclosed("the run knows this site by another number or size; its data changed since it began")
            form = (data.classes, list(data.shape), list(map(float, data.mean)), list(map(float, data.std)))
            if form != (terms.classes, terms.shape, terms.mean, terms.std):
                raise Disclosed("the run expects samples of another format than this site has")
            limits, y = None if config.layout is None else config.layout.target_range, data.clients[0].train.y
            check_target(terms.target, y, data.classes, limits, self.limits.max_target)
            with _in_words():
                found = agree(terms, config)
            names = digest_of("\n".join(terms.names))
            self.note("agreed", run=terms.run, terms=digest_of(terms.config), sites=len(terms.names), names=names)
            schema, sites = self.preparation(config)
            site_result.write_about(self.store, About(terms, client, data.fingerprint, schema, sites))
            self._agreed = {terms.run: (terms, found, data.clients[0])}
        _, agreed, mine_ = self._agreed[terms.run]
        return agreed, mine_

    def _check_name(self, site: str) -> None:
        if site != self.name:
            raise Disclosed(f"this is {self.name}, not {site[:80]}")

    def _checked(self, text: str) -> Config:
        """The run's config, once it asks for nothing that the site did not agree to."""
        with _in_words():
            config = read_config(text)
        texts = [key for key, value in config.model.settings.items() if not isinstance(value, int | float)]
        if texts and self.wire is None:  # a library's model may take a file or an address by one
            hint = "write a wire.json: fedapa site dry-run site.toml --run run.toml"
            raise Refused(f"model.settings.{texts[0][:40]} is no number; {self.name} agreed to no text", hint)
        config = self.with_own_copies(config)
        if self.wire is not None:
            manifest.check_terms(self.wire, config)
            if config.layout is not None:  # before a row is read by it: whether rows fit a layout tells about them
                wanted = agreement.fingerprint(agreement.schema_of(config.layout))
                manifest.check_layout(self.wire, config.methods[0], wanted)
        own = self.data if self.wire is None else None  # which lists the seeds
        Questions(self.store.folder).check(text, self.limits.max_questions, config.seeds[0], own, self.seeds)
        return config

    def with_own_copies(self, config: Config) -> Config:
        """The same config with the site's own copies of code that is not built in. A model, an objective, a trainer or
        a method by name is code: only what the site has allowed is imported."""
        self._copy("data source", config.data.source)
        names = config.model.name
        if isinstance(names, dict):
            model: Any = {client: self._copy("model", name) for client, name in names.items()}
        else:
            model = self._copy("model", names) if isinstance(names, str) else [self._copy("model", n) for n in names]
        (method,) = config.methods
        own, table = config.training, config.method.get(method, {})
        changed = {
            "model": config.model.model_copy(update={"name": model}),
            "objective": config.objective.model_copy(update={"name": self._copy("objective", config.objective.name)}),
            "training": replace(own, **self._copies({"augment": own.augment, "trainer": own.trainer})),
        }
        if "training" in table:
            changed["method"] = {method: {**table, "training": self._copies(table["training"])}}
        return self._with_own_method(config.model_copy(update=changed))

    def _copies(self, training: dict[str, Any]) -> dict[str, Any]:
        kinds = {"augment": "augmentation", "trainer": "trainer"}
        return {key: self._copy(kinds[key], name) if key in kinds else name for key, name in training.items()}

    def _copy(self, what: str, name: str) -> str:
        if not is_own(name):
            return name
        if (mine := own_copy(name, self.models)) is None:
            hint = "the site can allow it: fedapa site join KIT --allow-model FILE.py:NAME"
            raise Refused(f"the {what} {name[-80:]} is not allowed at {self.name}", hint)
        return mine

    def _with_own_method(self, config: Config) -> Config:
        """The same config with the site's own copy of a method that is not built in."""
        (name,) = config.methods
        if (asked := own_code(base := settings_of(config, name)[0])) is None:
            return config
        if (mine := own_copy(asked, self.methods)) is None:
            hint = "the site can allow it: fedapa site join KIT --allow-method FILE.py:CLASS"
            raise Refused(f"the method {asked[-80:]} is not allowed at {self.name}", hint)
        given = {"base": mine + base.removeprefix(taken_apart(base).method)}
        config = config.model_copy(update={"method": {name: config.method.get(name, {}) | given}})
        try:
            check_code(config, name)
        except InputError as error:  # in full, it names a folder of the site
            raise Refused(f"{asked[-80:]} at {self.name} is not the file that the run began with", NEW_COPY) from error
        method_from(config, name)  # an error of its code is for the site's log
        return config

    def _data(self, config: Config) -> Federated:
        try:
            data = self.share(config)
        except Differs as error:
            raise Withheld(DIFFERS, f"{error.message}. {error.hint}") from error
        training = training_of(config, config.methods[0])
        for recipe in (training, *(training.of_client(-1, name) for name in training.by_client or {})):
            self.limits.check(recipe, len(data.clients[0].train.y))  # whoever's it is: names are the coordinator's
        return data

    def own(self, config: Config) -> tuple[Own, int] | None:
        """Its files as they were read, and its number in them; None of a trial's share."""
        found = None if self.data is None else own_rows(self.data, config)
        return None if found is None else (found, self.number if len(found.schemas) > 1 else 0)

    def preparation(self, config: Config) -> tuple[Schema | None, Sites | None]:
        """How its rows become numbers, and how its files are written."""
        if self.data is None or (own := self.own(config)) is None:
            return None, None
        mine = load(str(self.data))
        assert mine.sites is not None
        folder = None if mine.data.data_dir is None else Path(mine.data.data_dir)
        return own[0].schemas[own[1]], described(mine.sites, folder)

    def _layout(self, config: Config) -> str:
        """The hash of its layout, once it is the one of its dry run."""
        own = self.own(config)
        found = "" if own is None else agreement.fingerprint(own[0].schemas[own[1]])
        if self.wire is not None:
            manifest.check_layout(self.wire, config.methods[0], found)
        return found

    def _fault(self, error: FedapaError) -> str:
        """The text of an error for the coordinator."""
        self.reason = error.here if isinstance(error, Withheld) else f"{error.message}. {error.hint}".strip()
        with suppress(FedapaError):  # on a full disk, report the first error
            self.note("refused" if isinstance(error, Refused) else "failed", reason=plain(self.reason, 1000))
        if isinstance(error, Withheld):
            return error.message
        return (
            self.reason if isinstance(error, Disclosed) else f"{type(error).__name__} at this site; its log says more"
        )


def _check_rounds(ask: TrainRequest, plan: Plan) -> None:
    """The number of rounds is agreed; after the last one a site is only asked for scores."""
    last = plan.rounds - 1 if ask.train else plan.rounds
    if not (0 <= ask.round <= last and 0 <= ask.accepted <= ask.round + 1):
        raise Refused(f"the server asks for round {ask.round + 1}, this run has {plan.rounds}")


@contextmanager
def _in_words() -> Iterator[None]:
    """Errors of input are sent in full: they are about the run's config and model, not about data."""
    try:
        yield
    except InputError as error:
        raise Disclosed(error.message, error.hint) from error
