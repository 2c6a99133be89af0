"""From a config to runs: one folder per method and seed, each with the config of that run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from fedapa import sinks
from fedapa.config import own_code
from fedapa.config.load import as_table, check, dump, settings_of, training_of
from fedapa.config.sections import Config, DataConfig
from fedapa.data import sources
from fedapa.data.dataset import Dataset
from fedapa.data.federated import Federated, federate, strata
from fedapa.data.own_source import is_own_source, own_source
from fedapa.data.partitions import rules
from fedapa.data.partitions.partition import Partition
from fedapa.data.site_description import Sites
from fedapa.data.site_layout import Layout
from fedapa.data.sites import Own
from fedapa.data.sites import assemble as assemble_sites
from fedapa.data.subset import smaller, smaller_clients
from fedapa.errors import InputError
from fedapa.methods.attack import FACTORS, Attack
from fedapa.methods.catalogue import make
from fedapa.methods.malicious import attacked, attackers
from fedapa.methods.method import Method
from fedapa.methods.wrappers import Ema
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import Share
from fedapa.rounds.upload_limits import Limits
from fedapa.simulation import Progress, Result, make_task, simulate
from fedapa.store import partition_file, provenance, run_db
from fedapa.store import run_folder as folders
from fedapa.store.run_folder import kept_engine
from fedapa.store.run_settings import EXPERIMENT
from fedapa.training.objective import Objective, Target, make_objective
from fedapa.training.settings import Engine, Training
from fedapa.training.task import Task

# Keys that do not change numbers. The engine changes last digits only, and a run records it.
ASIDE = {
    "data": ("data_dir",),
    "sites": ("schema_file", "subgroups"),
    "run": ("workers", "engine", "device", "checkpoint_every", "mmap_above_mb", "log"),
}


SITES = TypeAdapter(Sites)
LAYOUT = TypeAdapter(Layout | None)


class Parts(NamedTuple):
    """The parts of a run: what a config of one method and one seed describes."""

    method: Method
    task: Task
    data: Federated
    plan: Plan


def single(config: Config, method: str, seed: int) -> Config:
    """The same config for one method and one seed."""
    own = {method: config.method[method]} if method in config.method else {}
    return config.model_copy(update={"methods": [method], "seeds": [seed], "method": own})


def run_names(config: Config) -> dict[str, tuple[str, int]]:
    """Method and seed of every run of a config, by the name of its folder."""
    return {f"{method}-seed{seed}": (method, seed) for seed in config.seeds for method in config.methods}


def lay_out(config: Config, out: Path, chosen: Callable[[str], bool] = lambda name: True) -> list[Path]:
    """Create the run folders of a config before the first run starts, so that resume finds all of them."""
    config = anchored(config)
    for name in run_names(config):  # a file that was changed is named, rather than a config that differs
        if chosen(name) and (out / name / folders.CONFIG).exists():
            kept = read_config(out / name)
            own_code.check_code(kept, kept.methods[0])
    wanted = {out / name: dump(single(config, *one)) for name, one in run_names(config).items() if chosen(name)}
    for path, text in wanted.items():  # no folder is created if one of them is refused
        folders.check_free(path, text)
    for path, text in wanted.items():
        folders.create(path, text)
    return list(wanted)


def anchored(config: Config) -> Config:
    """Paths made absolute and own code with its fingerprint, so that a run can be resumed from anywhere, as it was."""
    data, here = config.data, {}
    if data.data_dir is not None:
        here["data_dir"] = str(Path(data.data_dir).expanduser().absolute())
    if data.partition.endswith(".npz"):
        here["partition"] = str(Path(data.partition).expanduser().absolute())
    return own_code.with_fingerprints(config.model_copy(update={"data": data.model_copy(update=here)}))


def read_config(folder: Path) -> Config:
    path = folder / folders.CONFIG
    if not path.exists() and _is_without_config(folder):
        said = f"{folder} was made by fit() from Python objects: it has no config"
        raise InputError(said, "fit(..., out=FOLDER) continues it; `fedapa compare` and `report` read it")
    try:
        text = path.read_text(encoding="utf-8")
        config = check(tomllib.loads(text), text, str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "restore it, or run again in a new folder") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}", "restore it, or run again in a new folder") from None
    if (len(config.methods), len(config.seeds)) != (1, 1):
        raise InputError(f"{path} names several runs", "expected one method and one seed; use `fedapa run`")
    return config


def _is_without_config(folder: Path) -> bool:
    """Whether the run was made by ``fit`` from objects that have no names."""
    if not run_db.is_begun(folder / "run.db"):
        return False
    with run_db.reading(folder / "run.db") as db:
        return EXPERIMENT not in run_db.meta(db)


def config_hash(config: Config) -> str:
    """A hash of all settings of a single-method config that change numbers, except the seed."""
    return provenance.digest(what_counts(config))


def training_hash(config: Config) -> str:
    """A hash of all settings that change how clients train: the running mean around a method does not."""
    method = method_from(config, config.methods[0])
    while isinstance(method, Ema):
        method = method.inner
    return provenance.digest({**what_counts(config), "method": _changed(method)})


def what_counts(config: Config) -> dict[str, Any]:
    """Every setting that is not a default, except paths and engine.

    Defaults are left out, so that a new key changes no hash; a new default of an old key raises the numerics version.
    Files are listed by name; the fingerprint of the allocation covers their content.
    """
    kept = {"data", "sites", "model", "objective", "run", "attack"}
    found = config.model_dump(mode="json", include=kept, exclude_defaults=True)
    found = {name: _without(table, ASIDE.get(name, ())) for name, table in found.items() if table is not None}
    found["training"] = _changed(training_of(config, config.methods[0]))
    if "sites" in found:
        found.pop("data", None)
        found["sites"]["files"] = sorted(found["sites"].get("files", ()))
    elif config.data.partition.endswith(".npz"):
        found["data"]["partition"] = Path(config.data.partition).name
    if config.attack is not None:
        found["federation"] = {"max_growth": config.federation.max_growth}
    found = {name: table for name, table in found.items() if table}
    if (code := config.method.get(config.methods[0], {}).get(own_code.CODE)) is not None:
        found["code"] = code
    return {**found, "method": _changed(method_from(config, config.methods[0]))}


def _changed(settings: Training | Method) -> dict[str, Any]:
    """The settings that differ from the class defaults, by name; those of a wrapped method inside its wrapper's."""
    found = {f.name: value for f in fields(settings) if (value := getattr(settings, f.name)) != f.default}
    plain = {name: _changed(value) if isinstance(value, Method) else value for name, value in found.items()}
    return {"is": type(settings).__name__, **plain}


def _without(table: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in names}


def unfinished(runs: list[Path]) -> list[Path]:
    return [run for run in runs if folders.status(run) != "finished"]


def assemble(config: Config, engine: Engine | None = None) -> Parts:
    """Data, model, method and plan of a single-method, single-seed config."""
    (name,), (seed,) = config.methods, config.seeds
    method, data = method_from(config, name), load_data(config, seed)
    if (attack := attack_of(config, len(data.clients), seed)) is not None:
        method, data = attacked(method, data, attack)
    return Parts(method, task_from(config, name, data, engine), data, plan_from(config))


def task_from(config: Config, method: str, data: Federated, engine: Engine | None = None) -> Task:
    """What all parties of a run of this method agree on; another ``engine`` than the config's, if given."""
    run, model = config.run, config.model
    training, engine = training_of(config, method), engine or run.engine
    objective, share = objective_of(config, data.classes), run.participation
    options = {"participation": share, "objective": objective, "device": run.device, **model.options}
    return make_task(data, model.name, training, run.rounds, engine=engine, **options)


def plan_from(config: Config) -> Plan:
    """The plan of the first seed."""
    run = config.run
    return Plan(run.rounds, run.participation, run.schedule, config.seeds[0], run.evaluate_every)


def method_from(config: Config, name: str) -> Method:
    """The method behind a name of this config, with its hyper-parameters; own code must be that of the run."""
    own_code.check_code(config, name)
    base, settings = settings_of(config, name)
    return make(base, **settings)


def attack_of(config: Config, clients: int, seed: int) -> Attack | None:
    """The malicious clients in the run of a seed, and what they do."""
    if (wanted := config.attack) is None:
        return None
    factor = FACTORS[wanted.kind] if wanted.factor is None else wanted.factor
    return Attack(wanted.kind, attackers(wanted.clients, clients, seed), factor)


def execute(
    folder: Path,
    progress: Progress | None = None,
    started: Callable[[Parts], None] | None = None,
    workers: int | None = None,
    share: Share | None = None,
) -> Result:
    """Run or resume a run folder. ``workers`` overrides the config's; neither it nor ``share`` changes a number."""
    config = read_config(folder)
    parts = assemble(config, kept_engine(config.run.engine, folder))
    if started is not None:
        started(parts)
    meta = {
        "label": config.methods[0],
        "seed": str(config.seeds[0]),
        "rounds": str(config.run.rounds),
        "evaluated": parts.method.evaluated,
        "partition": parts.data.fingerprint,
        "source": parts.data.name,
        "config": config_hash(config),
        EXPERIMENT: json.dumps(as_table(config)),
    }
    if parts.data.groups:
        meta["groups"] = json.dumps(parts.data.groups)
    if (attack := attack_of(config, parts.task.clients, config.seeds[0])) is not None:
        meta["attack"] = json.dumps(attack._asdict())
    run = config.run
    workers = run.workers if workers is None else workers
    limits = None if attack is None else Limits(config.federation.max_growth)
    told = sinks.Started(folder.name, folder, sinks.flat(as_table(config)))
    with sinks.logging(run.log, told, parts.task.objective.scores, progress) as hear:
        return simulate(
            *parts, folder, meta, run.checkpoint_every, workers, hear, run.mmap_above_mb, limits, share=share
        )


def load_data(config: Config, seed: int) -> Federated:
    """The federated data of one allocation, drawn by the seed unless data.seed is set."""
    if config.sites is not None:
        return load_own(config, seed).data
    found = _load_data(config.data.model_dump_json(), seed if config.data.seed is None else config.data.seed)
    return found if config.objective.name == "auto" else found.with_target(objective_of(config, 0).target)


def objective_of(config: Config, classes: int) -> Objective:
    """The objective that a config names; ``auto`` is classification where labels are classes, else regression."""
    wanted = config.objective
    auto = "classification" if classes else "regression"
    return make_objective(auto if wanted.name == "auto" else wanted.name, **wanted.settings)


def load_own(config: Config, seed: int) -> Own:
    """The data of the config's own sites; the seed decides which rows are test rows."""
    if config.sites is None:
        raise InputError("this config has no section [sites]", "`fedapa data inspect FILE --label COLUMN` writes one")
    words = SITES.dump_json(config.sites), LAYOUT.dump_json(config.layout)
    return _load_own(*words, config.data.data_dir, seed, target_of(config))


def target_of(config: Config) -> Target:
    """What the label column of own sites holds: classes, unless the objective predicts numbers."""
    return "class" if config.objective.name == "auto" else objective_of(config, 0).target


@lru_cache(maxsize=2)
def _load_own(text: bytes, layout: bytes, data_dir: str | None, seed: int, target: Target) -> Own:
    folder = None if data_dir is None else Path(data_dir)
    agreed = LAYOUT.validate_json(layout)
    return assemble_sites(SITES.validate_json(text), seed, folder, target=target, layout=agreed)


@lru_cache(maxsize=2)
def _load_data(text: str, seed: int) -> Federated:
    wanted = DataConfig.model_validate_json(text)
    dataset = own_source(wanted.source) if is_own_source(wanted.source) else _dataset(wanted.source, wanted.data_dir)
    if isinstance(dataset, Federated):
        return _dealt(dataset, wanted, seed)
    dataset = smaller(dataset, wanted.subset, seed)
    split = make_partition(wanted.partition, dataset, wanted.clients, seed, wanted.rule_parameters())
    if split.clients != wanted.clients:
        said = f"data.clients is {wanted.clients}, {wanted.partition} has {split.clients}"
        raise InputError(said, f"--set data.clients={split.clients}")
    return federate(dataset, split, wanted.validation, seed)


def _dealt(data: Federated, wanted: DataConfig, seed: int) -> Federated:
    """Data that come with their clients: data.partition and data.clients say nothing about them."""
    return smaller_clients(data, wanted.subset, seed).held_out(wanted.validation, seed)


def make_partition(rule: str, dataset: Dataset, clients: int, seed: int, parameters: dict[str, float]) -> Partition:
    """Partition by a rule, or load a saved partition."""
    if rule.endswith(".npz"):
        return partition_file.load(Path(rule))
    return rules.split(rule, *strata(dataset.y_train, dataset.y_test), clients, seed, **parameters)


@lru_cache(maxsize=1)
def _dataset(name: str, data_dir: str | None) -> Dataset:
    return sources.load(name, None if data_dir is None else Path(data_dir))
