"""The commands in Python: ``fit`` a method on federated data, ``load`` data by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fedapa import sinks
from fedapa.config import fit_config
from fedapa.config.load import check
from fedapa.config.own_code import label_of, registered
from fedapa.core.hyper_parameters import plain
from fedapa.data import sources
from fedapa.data.federated import Federated, federate, strata
from fedapa.data.partitions import rules
from fedapa.data.sites import assemble
from fedapa.methods.catalogue import METHODS, make, recipe_training, wrapper_name
from fedapa.methods.method import Method, Schedule
from fedapa.methods.wrappers import Wrapped
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import Progress, Result, make_task, simulate
from fedapa.store.provenance import digest
from fedapa.store.run_folder import kept_engine, make_folder
from fedapa.training.model import Models
from fedapa.training.objective import Classification, Objective, make_objective
from fedapa.training.own_trainer import name_of
from fedapa.training.selection import Patterns
from fedapa.training.settings import HEAD, Buffers, Engine
from fedapa.training.task import Task, Trainer


def load(
    source: str = "digits",
    partition: str = "dirichlet",
    clients: int = 20,
    seed: int = 0,
    validation: float = 0.0,
    data_dir: str | Path | None = None,
    **parameters: Any,
) -> Federated:
    """A shipped data set, dealt to clients: ``load("cifar10", "dirichlet", 20, alpha=0.1)``."""
    dataset = sources.load(source, None if data_dir is None else Path(data_dir))
    split = rules.split(partition, *strata(dataset.y_train, dataset.y_test), clients, seed, **parameters)
    data = federate(dataset, split, validation, seed)
    words = {"source": source, "partition": partition, "clients": clients, "seed": seed, "validation": validation}
    folder = {} if data_dir is None else {"data_dir": str(Path(data_dir).absolute())}
    return fit_config.loaded_by(data, {**words, **folder, **parameters})


def from_files(
    files: Mapping[str, str | Path] | Sequence[str | Path] = (),
    seed: int = 0,
    data_dir: str | Path | None = None,
    target: Literal["class", "number"] = "class",
    **words: Any,
) -> Federated:
    """Own sites from their files, by the words of a config's section [sites]: ``from_files(["a.csv"], label="y")``.

    ``target`` says whether the label is a class or a number.
    """
    named = dict(files) if isinstance(files, Mapping) else [str(file) for file in files]
    named = {name: str(file) for name, file in named.items()} if isinstance(named, dict) else named
    checked = check({"sites": {"files": named, **words}}, name="from_files").sites
    assert checked is not None
    return assemble(checked, seed, None if data_dir is None else Path(data_dir), target=target).data


def fit(
    method: Method | str,
    data: Federated,
    model: Models = "lenet5",
    rounds: int = Plan.rounds,
    *,
    seed: int = 0,
    participation: float | Sequence[float] = Plan.participation,
    schedule: Schedule | None = None,
    head: str = HEAD,
    buffers: Buffers = "shared",
    shared: Patterns = (),
    frozen: Patterns = (),
    pretrained: bool = False,
    features: int = 0,
    settings: Mapping[str, Any] | None = None,
    trainer: Trainer | str | None = None,
    engine: Engine = "auto",
    objective: Objective | str | None = None,
    device: str = "cpu",
    validation: float = 0.0,
    workers: int = 0,
    out: str | Path | None = None,
    progress: Progress | None = None,
    log: str | Sequence[str] = (),
    **training: Any,
) -> Result:
    """Train one personalized model per client; keywords such as ``lr`` or ``epochs`` change the local training.

    ``model`` is a shipped name, ``"package.module:function"``, or a class or function that makes a module, called
    without arguments where it needs none and else with (shape, classes): its weights are drawn by the seed. A module
    is a start of its own, pretrained or not: every client begins with its weights, whatever the seed. A list or a
    table of models gives clients different ones. ``shared`` and ``frozen`` are patterns over the names of parameters:
    what federates instead of all but the head, and what nobody trains. ``features`` is the size of one more layer
    before the head. ``settings`` are arguments of the function that makes the model: ``{"vocabulary": 40}``.

    ``trainer`` is your own training loop, ``train(module, data, training, generator)`` or "file.py:function".

    ``objective`` is an ``Objective``, a name ("classification", "regression", "survival") or "file.py:Class"; without
    one, labels that are whole numbers are classes and floats are numbers to predict.

    ``device`` is where clients compute: "cpu", "auto", "cuda", "cuda:1", "mps" or several by commas. ``validation`` is
    the share of every train set that is held out; data that have a validation set keep theirs.
    With ``out``, the run is kept in that folder, and continued if it is there already. Where data, model and method
    have names (``fa.load``, "lenet5", a shipped method or a class in a module), the folder gets a config, and
    `fedapa resume`, `export` and `onboard` know it as one of their own.
    ``log`` also writes every round to "tensorboard", "mlflow", "wandb" or "file.py:Class".
    """
    data = _held_out(data, validation, seed)
    chosen = make(method) if isinstance(method, str) else method
    model = registered(model, "models") if isinstance(model, str) else model
    objective = registered(objective, "objectives") if isinstance(objective, str) else objective
    low, high = (participation, participation) if isinstance(participation, int | float) else participation
    training = {**(recipe_training(method) if isinstance(method, str) else {}), **training}
    training |= {} if trainer is None else {"trainer": _trainer_name(trainer)}
    checked = check({"training": training}, name="fit").training  # the same words and ranges as in a config
    engine = engine if out is None else kept_engine(engine, Path(out))
    aim = make_objective(objective) if isinstance(objective, str) else objective
    data = data if aim is None else data.with_target(aim.target)
    options: dict[str, Any] = {"shared": shared, "frozen": frozen, "pretrained": pretrained, "features": features}
    options["settings"] = dict(settings or {})
    loop = None if isinstance(trainer, str) else trainer
    task = make_task(data, model, checked, rounds, head, buffers, engine, (low, high), aim, device, loop, **options)
    plan = Plan(rounds, (low, high), schedule or "auto", seed)
    folder, names = None if out is None else make_folder(Path(out)), [log] if isinstance(log, str) else list(log)
    label = label_of(method) if isinstance(method, str) else _label(chosen)
    meta = {"label": label, "seed": str(seed), "rounds": str(rounds)}
    meta |= {"evaluated": chosen.evaluated, "partition": data.fingerprint, "source": data.name}
    meta["config"] = _config_hash(chosen, task, plan)
    model_words = {"name": model, "head": head, "buffers": buffers, **options}
    if folder is not None:
        run = {"engine": engine, "workers": workers, "device": device, "log": names}
        given = fit_config.Given(chosen, label, data, model_words, objective, training, trainer, plan, run)
        meta |= fit_config.keep(folder, given)
    told = sinks.Started(f"{label}-seed{seed}", folder, sinks.flat({"method": plain(chosen), "training": training}))
    with sinks.logging(names, told, task.objective.scores, progress) as hear:
        return simulate(chosen, task, data, plan, folder, meta, workers=workers, progress=hear)


def _config_hash(method: Method, task: Task, plan: Plan) -> str:
    """A digest of everything that ``fit`` was given except the seed."""
    given = [method, task.training, replace(plan, seed=0), task.model.extractor, task.model.head]
    given += [] if task.architectures is None else [[m.extractor for m in task.architectures.models]]
    patterned = task.model.is_patterned or task.model.has_frozen
    given += [(task.model.theta_slots, task.model.has_frozen)] if patterned else []
    given += [] if task.objective == Classification() else [task.objective]
    return digest({str(k): repr(part) for k, part in enumerate(given)})


def _trainer_name(trainer: Trainer | str) -> str:
    return trainer if isinstance(trainer, str) else fit_config.own_name(trainer) or name_of(trainer)


def _held_out(data: Federated, share: float, seed: int) -> Federated:
    """Data that were dealt by ``load`` are dealt once more, as a config with data.validation does."""
    words = fit_config.words_of(data)
    if share and words is not None and not words["validation"]:
        return load(**{**words, "validation": share})
    return data.held_out(share, seed)


def _label(method: Method) -> str:
    """The name that the command line gives to a method; of one that it does not know, the name of its class."""
    own = type(method).__name__
    if isinstance(method, Wrapped):
        return f"{_label(method.inner)}+{wrapper_name(method) or own.lower()}"
    alike = (name for name, known in METHODS.items() if known.where.endswith(f":{own}") and make(name) == method)
    return next(alike, own.lower())
