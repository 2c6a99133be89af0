"""Objective: a loss, the scores, and which of them is the primary score.

An objective belongs to the task. Methods call ``task.loss``; engines know the losses that they can fuse. A score is a
sum and a count that add up over samples and clients, and a rule that turns both into a value. What does not add up,
such as an AUC, is computed where the samples are and weighted by their number.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.core.hyper_parameters import check_settings, hyper
from fedapa.core.ranking import auc, average_precision, brier
from fedapa.core.scores import ACCURACY, AUC, AVERAGE_PRECISION, BRIER, CONCORDANCE, LOSS, MAE, R2, RMSE, Score
from fedapa.core.survival import concordance
from fedapa.errors import InputError
from fedapa.plugins import load_object

Target = Literal["class", "number"]
Sums = Mapping[str, tuple[float, float]]  # a score by name: sum and count
LARGEST = torch.finfo(torch.float32).max  # of a sum: infinite losses are stored as this


@dataclass(frozen=True)
class CrossEntropy:
    """Mean over a batch of the cross-entropy of its samples, each multiplied by the weight of its class."""

    class_weights: tuple[float, ...] | None = None
    smoothing: float = 0.0  # share of every label that is spread over all classes


@dataclass(frozen=True)
class SquaredError:
    """Mean over a batch of the squared errors of the standardised target."""

    mean: float
    std: float


@dataclass(frozen=True)
class Objective(ABC):
    """The protocol: a frozen dataclass whose fields are its settings."""

    scores: ClassVar[tuple[Score, ...]]  # the first is the primary one
    target: ClassVar[Target] = "number"  # what a label is: a class counted from 0, or a number
    by_sample: ClassVar[bool] = True  # the loss of a sample depends on no other sample of its batch

    @property
    def primary(self) -> Score:
        return self.scores[0]

    @property
    def fuses(self) -> CrossEntropy | SquaredError | None:
        """The loss as the native kernel knows it; None: it does not."""
        return None

    def _has_loss_of(self, kind: type[Objective]) -> bool:
        """Whether the loss is that of the class; one derived from it may state another."""
        own = type(self)
        return own.losses is kind.losses and own.mean_loss is kind.mean_loss

    @property
    def spec(self) -> str:
        """The name that ``make_objective`` knows it by."""
        own = next((name for name, kind in OBJECTIVES.items() if kind is type(self)), None)
        return own or f"{getattr(sys.modules[type(self).__module__], '__file__', '')}:{type(self).__name__}"

    def outputs(self, classes: int) -> int:
        """How many outputs a model needs."""
        return 1

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample. [n, K], [n] -> [n]"""

    def mean_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch, which training descends."""
        return self.losses(outputs, y).mean()

    @abstractmethod
    def measure(self, outputs: Tensor, y: Tensor) -> Sums:
        """Sum and count of every score over some samples."""

    def predictions(self, outputs: Tensor) -> Tensor:
        """Outputs as people read them: probabilities [n, C], or values [n, 1] in the unit of the target."""
        return outputs

    def outputs_of(self, predictions: Tensor) -> Tensor:
        """The other way round, where outputs are numbers."""
        return predictions

    def fitted(self, mean: float, std: float) -> Objective:
        """The same for targets of this mean and standard deviation; only objectives that scale them differ."""
        return self

    def at(self, y: Tensor, classes: int) -> Objective:
        """The objective of a client with these train labels; only one that weighs them differs."""
        return self

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Classification(Objective):
    """Cross-entropy, and the share of largest logits that are right; another primary score if one is named.

    The loss that is reported has neither weights nor smoothed labels, so that runs can be compared by it.
    """

    label_smoothing: float = hyper(0.0, "share of every label that is spread over all classes", 0.0, 0.999)
    class_weights: Any = hyper("none", "one number per class, or balanced: by each client's own train labels")
    score: Literal["accuracy", "AUC", "average precision", "Brier", "loss"] = hyper("accuracy", "the primary score")

    scores = (ACCURACY, LOSS)
    target = "class"

    @property
    def plain(self) -> bool:
        return self.label_smoothing == 0 and self.class_weights == "none"

    @property
    def fuses(self) -> CrossEntropy | None:
        if not self._has_loss_of(Classification):
            return None
        return CrossEntropy(None if isinstance(self.class_weights, str) else self.class_weights, self.label_smoothing)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "class_weights", _checked_weights(self.class_weights))
        known = (ACCURACY, LOSS, AUC, AVERAGE_PRECISION, BRIER)
        first = next(score for score in known if score.name == self.score)
        rest = tuple(score for score in Classification.scores if score is not first)
        object.__setattr__(self, "scores", (first, *rest))  # of this objective, not of its class

    def __repr__(self) -> str:
        """Settings that are no default: they came later than runs that are to go on."""
        changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return f"Classification({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"

    def outputs(self, classes: int) -> int:
        if not isinstance(self.class_weights, str) and len(self.class_weights) != classes:
            raise InputError(
                f"objective.class_weights has {len(self.class_weights)} numbers, the data {classes} classes",
                "give one per class",
            )
        return classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.plain:
            return F.cross_entropy(outputs, y, reduction="none")
        logs = F.log_softmax(outputs, 1)
        found = -logs.gather(1, y[:, None])[:, 0] * (1 - self.label_smoothing) - self.label_smoothing * logs.mean(1)
        return found if isinstance(self.class_weights, str) else found * outputs.new_tensor(self.class_weights)[y]

    def mean_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) if self.plain else self.losses(outputs, y).mean()

    def at(self, y: Tensor, classes: int) -> Objective:
        """Balanced: every class that the client has weighs the same in its mean loss."""
        if self.class_weights != "balanced":
            return self
        counts = torch.bincount(y.cpu(), minlength=classes).double()
        weights = torch.where(counts > 0, len(y) / (counts.clamp(min=1) * (counts > 0).sum()), 0.0)
        return replace(self, class_weights=tuple(weights.tolist()))

    def measure(self, outputs: Tensor, y: Tensor) -> Sums:
        found: dict[str, tuple[float, float]] = {
            "accuracy": (int((outputs.argmax(1) == y).sum()), len(y)),
            "loss": total_loss(REPORTED, outputs, y),
        }
        if self.score in WHOLE:
            p = np.asarray(self.predictions(outputs.double()).cpu().numpy(), dtype=np.float64)
            value = WHOLE[self.score](y.cpu().numpy(), p) if len(y) else None
            found[self.score] = (0.0, 0.0) if value is None else (value * len(y), len(y))
        return found

    def predictions(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=1)


# Scores of all samples of a client at once; they travel as their value times the number of samples, and that number.
WHOLE: dict[str, Callable[[Any, Any], float | None]] = {
    AUC.name: auc,
    AVERAGE_PRECISION.name: average_precision,
    BRIER.name: brier,
}


@dataclass(frozen=True)
class Regression(Objective):
    """A number per sample. Models learn the standardised target; scores are in its own unit."""

    loss: Literal["squared", "absolute", "huber"] = hyper("squared", "what training descends")
    delta: float = hyper(1.0, "huber: where it turns linear, in standard deviations of the target", 1e-6, 1e6)
    mean: float = hyper(0.0, "of the target over all train samples; set from the data")
    std: float = hyper(1.0, "of the target; set from the data", 1e-30)
    score: Literal["RMSE", "MAE", "R2"] = hyper("RMSE", "the primary score", repr=False)  # later than stored runs

    scores = (RMSE, MAE, R2, LOSS)

    def __post_init__(self) -> None:
        super().__post_init__()
        first = {"RMSE": RMSE, "MAE": MAE, "R2": R2}[self.score]
        rest = tuple(score for score in Regression.scores if score is not first)
        object.__setattr__(self, "scores", (first, *rest))

    @property
    def fuses(self) -> SquaredError | None:
        fits = self.loss == "squared" and self._has_loss_of(Regression)
        return SquaredError(self.mean, self.std) if fits else None

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        error = outputs[:, 0] - (y - self.mean) / self.std
        if self.loss == "squared":
            return error.square()
        if self.loss == "absolute":
            return error.abs()
        return F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=self.delta)

    def measure(self, outputs: Tensor, y: Tensor) -> Sums:
        error, spread = (self.predictions(outputs)[:, 0].double() - y.double()), y.double() - y.double().mean()
        squares = float(error.square().sum())
        return {
            "RMSE": (squares, len(y)),
            "MAE": (float(error.abs().sum()), len(y)),
            "R²": (squares, float(spread.square().sum())),
            "loss": total_loss(self, outputs, y),
        }

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs * self.std + self.mean

    def outputs_of(self, predictions: Tensor) -> Tensor:
        return (predictions - self.mean) / self.std

    def fitted(self, mean: float, std: float) -> Objective:
        return replace(self, mean=mean, std=std if std > 0 else 1.0)


@dataclass(frozen=True)
class Survival(Objective):
    """Cox's partial likelihood: at every event, how much of the risk of all who could have had it was its own.

    A label is a signed time: negative where nothing had happened until then (censored). The output is the log of the
    relative risk. Breslow's rule for ties. The risk set is the batch, and a client's whole data where it is scored: no
    client is compared with another one's rows, as in a model stratified by site.
    """

    scores = (CONCORDANCE, LOSS)
    by_sample = False

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """0 where nothing happened."""
        time, order = y.abs().sort(descending=True, stable=True)
        risk, event = outputs[order, 0], y[order] > 0
        ends = torch.searchsorted(-time, -time, right=True) - 1  # equal times are at risk together
        top, least = risk.detach().max(), torch.finfo(risk.dtype).tiny  # torch's logcumsumexp has no second derivative
        at_risk = (risk - top).exp().cumsum(0).clamp(min=least).log() + top
        found = (at_risk[ends] - risk) * event
        return torch.zeros_like(found).index_put((order,), found)

    def measure(self, outputs: Tensor, y: Tensor) -> Sums:
        found = concordance(y.double().cpu().numpy(), outputs[:, 0].double().cpu().numpy())
        return {"concordance": found, "loss": total_loss(self, outputs, y)}


def _checked_weights(weights: Any) -> str | tuple[float, ...]:
    if weights in ("none", "balanced"):
        return str(weights)
    numbers = isinstance(weights, list | tuple) and all(isinstance(w, int | float) and w >= 0 for w in weights)
    if not numbers or not any(weights):
        hint = "choose none, balanced, or numbers from 0, one per class, such as [1.0, 5.0]"
        raise InputError(f"objective.class_weights is {weights!r}", hint)
    return tuple(float(w) for w in weights)


REPORTED = Classification()  # whose loss is reported, whatever is trained with


def total_loss(objective: Objective, outputs: Tensor, y: Tensor) -> tuple[float, float]:
    """Sum and count of the losses, in double precision."""
    return min(float(objective.losses(outputs.double(), y).sum()), LARGEST), len(y)


OBJECTIVES: dict[str, type[Objective]] = {
    "classification": Classification,
    "regression": Regression,
    "survival": Survival,
}


def make_objective(name: str = "classification", **settings: Any) -> Objective:
    """By name, or the user's own class as ``file.py:Class`` or ``package.module:Class``."""
    kind = OBJECTIVES[name] if name in OBJECTIVES else _own(name)
    known = {f.name for f in fields(kind)}
    if unknown := sorted(settings.keys() - known):
        hint = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise InputError(f"objective {name} has no setting {unknown[0]!r}", hint)
    return kind(**settings)


def _own(name: str) -> type[Objective]:
    if ":" not in name:
        raise InputError(f"unknown objective {name!r}", f"choose one of {', '.join(OBJECTIVES)}, or file.py:Class")
    found = load_object(name, "objective")
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise InputError(f"objective {name!r} is not a subclass of Objective", "derive it from fedapa.Objective")
    return found
