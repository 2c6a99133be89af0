"""What every site can do alone: the network with rounds, rate and weight decay of its own choice, and plain models.

All choices are made on rows held out from the site's train rows, never on test rows. Plain models are scikit-learn's
logistic regression or ridge regression, and gradient boosting; they are made where the rows are and are not sent. The
best on held-out rows is what a federation has to beat.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import ThreadpoolController

from fedapa.analysis.personalized_model import predictions
from fedapa.config.experiment import load_data, task_from
from fedapa.config.sections import Config
from fedapa.core.scores import CONCORDANCE
from fedapa.data.federated import ClientData, Federated, Split
from fedapa.errors import RunError
from fedapa.methods.local_only import LocalOnly
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import simulate
from fedapa.site.cox_model import CoxRegression
from fedapa.site.measures import RECALL, Measure, measures_of
from fedapa.streams import stream
from fedapa.training.settings import Training

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Folds = Sequence[Sequence[Mask]]  # masks of held-out train rows, by site and fold
NETWORK, BOOSTED, COX = "network", "gradient boosting", "Cox regression"
SMALL = 300  # train rows of the middle site below which three folds are held out in turn, else a quarter once
FACTORS = ((1.0, 0.0), (3.0, 0.0), (3.0, 0.01))  # of the rate, and weight decay
WEIGHTS = {"class_weights": "balanced"}
LONGER, LOOKS = 2, 10  # training that is tried, as a multiple of the config's, and how often held-out rows are asked
MOST_ROWS = 20_000  # that plain models are fitted to


class Choice(NamedTuple):
    """One way of working alone, as it was chosen on held-out rows."""

    kind: str  # NETWORK, or the name of a plain model
    settings: Mapping[str, Any]
    held: float  # the primary measure on held-out rows, turned so that more is better
    loss: float  # on the same rows, to choose between equals


class Alone(NamedTuple):
    """A site alone on one split: its choices with their predictions of test and train rows, the chosen one first."""

    site: str
    found: Sequence[tuple[Choice, Floats, Floats]]

    @property
    def best(self) -> tuple[Choice, Floats, Floats]:
        return self.found[0]

    @property
    def network(self) -> tuple[Choice, Floats, Floats]:
        return next(one for one in self.found if one[0].kind == NETWORK)

    @property
    def plain(self) -> tuple[Choice, Floats, Floats]:
        return next(one for one in self.found if one[0].kind != NETWORK)


def alone(config: Config, seed: int) -> list[Alone]:
    """Every site of a config on the split of a seed."""
    return alone_with(config, load_data(config, seed), seed)


def alone_with(config: Config, data: Federated, seed: int) -> list[Alone]:
    """The same with rows that are at hand."""
    data = replace(data, clients=tuple(_whole(client) for client in data.clients))
    measures = measures_of(task_from(config, "local", data).objective, data.classes)
    folds, rare = _folds(data, seed), RECALL.name in [measure.name for measure in measures]
    networks = _networks(config, data, folds, seed, rare)
    plains = [_kinds(client, folds[i], data.classes, measures[0], rare) for i, client in enumerate(data.clients)]
    found = []
    for i, client in enumerate(data.clients):
        fitted = [(choice, *_refit(choice, client, data.classes)) for choice in plains[i]]
        fitted.sort(key=lambda one: (-one[0].held, one[0].loss))
        both = [networks[i], fitted[0]]
        both.sort(key=lambda one: (-one[0].held, one[0].loss))
        found.append(Alone(client.name, both))
    return found


def _whole(client: ClientData) -> ClientData:
    """With the rows held out for validation among the train rows: whoever works alone may use them."""
    if client.validation is None:
        return client
    x, y = (torch.cat(pair) for pair in zip(client.train, client.validation, strict=True))
    return replace(client, train=Split(x, y), validation=None)


def _folds(data: Federated, seed: int) -> Folds:
    """Every class is spread over the folds."""
    small = median(len(client.train.y) for client in data.clients) < SMALL
    found = []
    for client in data.clients:
        y = client.train.y.numpy()
        order = stream(seed, "held out", client.name).permutation(len(y))
        order = order[np.argsort(y[order], kind="stable")]
        place = np.empty(len(y), dtype=np.int64)
        place[order] = np.arange(len(y)) % (3 if small else 4)
        found.append([place == k for k in (range(3) if small else range(1))])
    return found


# --- the network ---------------------------------------------------------------------------------


def _networks(
    config: Config, data: Federated, folds: Folds, seed: int, rare: bool
) -> list[tuple[Choice, Floats, Floats]]:
    """Rate, weight decay and rounds by the least loss on held-out rows of each site; then trained on all its rows.
    Where a class is rare, class weights by the primary score after the same training: they raise the loss."""
    usual = task_from(config, "local", data).training
    usual = replace(usual, epochs=ceil(LONGER * config.run.rounds * usual.epochs / LOOKS))  # of one look
    first = Choice(NETWORK, {**_rates(usual), "epochs": float(usual.epochs * LOOKS // LONGER)}, -np.inf, np.inf)
    best: dict[int, Choice] = {}  # as the config says, where every look is bad
    for factor, decay in FACTORS:
        training = replace(usual, lr=usual.lr * factor, weight_decay=max(decay, usual.weight_decay))
        for i, looks in enumerate(_tried(config, data, folds, training, seed)):
            best[i] = min([best.get(i, first), *looks], key=lambda look: look.loss)
    if rare and "class_weights" not in config.objective.settings:
        best = {i: _weighted(config, data, folds, choice, i, seed, usual) for i, choice in best.items()}
    return [_trained(config, data, i, best[i], seed, usual) for i in range(len(data.clients))]


def _weighted(
    config: Config, data: Federated, folds: Folds, choice: Choice, i: int, seed: int, usual: Training
) -> Choice:
    """The choice of a site, with class weights if these are better on its held-out rows."""
    mine, training = replace(data, clients=(data.clients[i],)), _as_chosen(usual, choice)
    (looks,) = _tried(_balanced(config), mine, [folds[i]], training, seed)
    same = next((look for look in looks if look.settings == choice.settings), choice)
    return choice if same.held <= choice.held else same._replace(settings={**same.settings, **WEIGHTS})


def _balanced(config: Config) -> Config:
    return config.model_copy(update={"objective": config.objective.model_copy(update=WEIGHTS)})


def _rates(training: Training) -> dict[str, float]:
    return {"lr": training.lr, "weight_decay": training.weight_decay}


def _as_chosen(usual: Training, choice: Choice) -> Training:
    return replace(usual, lr=choice.settings["lr"], weight_decay=choice.settings["weight_decay"])


def _tried(config: Config, data: Federated, folds: Folds, training: Training, seed: int) -> Iterator[list[Choice]]:
    """For every site, every look at the rows of its first fold."""
    part = replace(data, clients=tuple(_without(c, folds[i][0]) for i, c in enumerate(data.clients)))
    task = replace(task_from(config, "local", part), training=training)
    try:
        logs = simulate(LocalOnly(), task, part, Plan(LOOKS, (1.0, 1.0), seed=seed), workers=1).logs
    except RunError:  # all sites diverged
        yield from ([] for _ in data.clients)
        return
    after = np.array([log.after for log in logs if log.after is not None])  # [looks, M, S, 4]
    scores = task.objective.scores
    place = next((k for k, score in enumerate(scores) if score.name == "loss"), 0)
    loss = -scores[place].sign * scores[place].values(after[:, :, place, 0], after[:, :, place, 1])
    held = scores[0].sign * scores[0].values(after[:, :, 0, 0], after[:, :, 0, 1]) / scores[0].scale  # as measures do
    for i in range(len(data.clients)):
        yield [
            Choice(
                NETWORK,
                {**_rates(training), "epochs": float((k + 1) * training.epochs)},
                -np.inf if np.isnan(held[k, i]) else float(held[k, i]),
                np.inf if np.isnan(loss[k, i]) else float(loss[k, i]),
            )
            for k in range(len(after))
        ]


def _without(client: ClientData, held: Mask) -> ClientData:
    """Train rows without those held out, which are its test rows; a site with a single row keeps it on both sides."""
    if not _splits(held):
        return replace(client, test=client.train)
    mask = torch.from_numpy(held)
    parts = (Split(client.train.x[m], client.train.y[m]) for m in (~mask, mask))
    return ClientData(client.name, *parts)


def _trained(
    config: Config, data: Federated, i: int, choice: Choice, seed: int, usual: Training
) -> tuple[Choice, Floats, Floats]:
    """The choice on all train rows; at the config's rate where it diverges on these."""
    client = data.clients[i]
    part = replace(data, clients=(client,))
    asked = _balanced(config) if "class_weights" in choice.settings else config
    task = replace(task_from(asked, "local", part), training=_as_chosen(usual, choice))
    plan = Plan(round(choice.settings["epochs"] / usual.epochs), (1.0, 1.0), seed=seed, evaluate_every=LOOKS)
    try:
        state = simulate(LocalOnly(), task, part, plan, workers=1).records[0].state
    except RunError:
        settings = {**_rates(usual), "epochs": choice.settings["epochs"]}
        if choice.settings == settings:
            raise
        return _trained(config, data, i, choice._replace(settings=settings), seed, usual)
    test, train = (predictions(LocalOnly(), task, state, part.x) for part in (client.test, client.train))
    return choice, test, train


# --- plain models --------------------------------------------------------------------------------


def _candidates(classes: int, rare: bool, measure: Measure) -> list[tuple[str, dict[str, Any]]]:
    """Where a class is rare, with and without weights for it."""
    if measure.name == CONCORDANCE.name:
        return [(COX, {"alpha": alpha}) for alpha in (0.1, 1.0, 10.0, 100.0)]
    if classes:
        linear = [("logistic regression", {"C": c}) for c in (0.01, 0.1, 1.0, 10.0)]
    else:
        linear = [("ridge regression", {"alpha": a}) for a in (1.0, 10.0, 100.0, 1000.0)]
    found = [*linear, *((BOOSTED, {"depth": depth}) for depth in (2.0, 4.0))]
    return [*found, *((kind, {**settings, "class_weight": "balanced"}) for kind, settings in found if rare)]


def _model(kind: str, settings: Mapping[str, Any], classes: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge

    if kind == COX:
        return CoxRegression(**settings)
    if kind == BOOSTED:
        boosted = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        more = {key: value for key, value in settings.items() if key != "depth"}
        usual = {"learning_rate": 0.1, "max_iter": 60, "min_samples_leaf": 10, "random_state": 0}
        return boosted(max_depth=int(settings["depth"]), **usual, **more)
    return LogisticRegression(**settings, max_iter=2000) if classes else Ridge(**settings)


def _kinds(client: ClientData, folds: Sequence[Mask], classes: int, measure: Measure, rare: bool) -> list[Choice]:
    """The best of every kind. Settings by the mean over the folds; the score that is told is of the first, which the
    network has too."""
    x, y = flat(client.train.x), client.train.y.numpy()
    best: dict[str, tuple[float, Choice]] = {}
    for kind, settings in _candidates(classes, rare, measure):
        parts = [_scored(kind, settings, x, y, held, classes, measure) for held in folds if _splits(held)]
        known = [part for part in parts if part is not None]
        mean = float(np.mean([held for held, _ in known])) if known else -np.inf
        held, loss = parts[0] if parts and parts[0] is not None else (-np.inf, np.inf)
        if kind not in best or mean > best[kind][0]:
            best[kind] = mean, Choice(kind, settings, held, loss)
    return [choice for _, choice in best.values()]


def _splits(held: Mask) -> bool:
    return bool(held.any() and not held.all())


def _scored(
    kind: str,
    settings: Mapping[str, Any],
    x: Floats,
    y: npt.NDArray[Any],
    held: Mask,
    classes: int,
    measure: Measure,
) -> tuple[float, float] | None:
    p = fitted(_model(kind, settings, classes), x[~held], y[~held], classes)(x[held])
    value = measure.of(y[held], p)
    return None if value is None else (measure.sign * value, 0.0 if kind == COX else _loss(y[held], p, classes))


def _loss(y: npt.NDArray[Any], p: Floats, classes: int) -> float:
    if not classes:
        return float(np.square(p[:, 0] - y).mean())
    return float(-np.log(np.clip(p[np.arange(len(y)), y], 1e-12, 1.0)).mean())


def fitted(model: Any, x: Floats, y: npt.NDArray[Any], classes: int) -> Callable[[Floats], Floats]:
    """What a plain model predicts: probabilities of all classes, or numbers [n, 1]. Of one class, that class."""
    if classes and len(np.unique(y)) < 2:
        return lambda new: np.tile(np.eye(classes)[y[0]], (len(new), 1))
    rows = stream(0, "plain rows").permutation(len(y))[:MOST_ROWS]
    threads = _threads()
    with warnings.catch_warnings(), threads.limit(limits=1):
        warnings.simplefilter("ignore")  # a model that does not converge loses on held-out rows
        model.fit(x[rows], y[rows])
    if not classes:
        return lambda new: np.asarray(model.predict(new), dtype=np.float64)[:, None]

    def predict(new: Floats) -> Floats:
        p = np.zeros((len(new), classes))
        with threads.limit(limits=1):
            p[:, model.classes_] = model.predict_proba(new)
        return p

    return predict


@cache
def _threads() -> ThreadpoolController:
    """Holds models to one thread: more cost more than they save on a site's rows. Looking for them takes long, too."""
    return ThreadpoolController()


def _refit(choice: Choice, client: ClientData, classes: int) -> tuple[Floats, Floats]:
    x, y = flat(client.train.x), client.train.y.numpy()
    predict = fitted(_model(choice.kind, choice.settings, classes), x, y, classes)
    return predict(flat(client.test.x)), predict(x)


def flat(x: torch.Tensor) -> Floats:
    """[n, inputs]; bytes of images from 0 to 1."""
    values = x.reshape(len(x), -1).double().numpy()
    return np.asarray(values / 255 if x.dtype == torch.uint8 else values, dtype=np.float64)
