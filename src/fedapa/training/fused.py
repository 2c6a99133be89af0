"""Trainings that the native kernel runs in one call: which losses it knows, and what it is told about them.

A loss is a function that PyTorch and the vmap engine call. ``in_kernel`` marks one that the kernel can descend as well,
and says how: the terms that it has beside cross-entropy, read from the parameters, constants and carry of a training.
A training that the kernel cannot run as a whole runs batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.training.engines.native import Kernel, MixingCall, SoftLabels, Terms, TrainingCall
from fedapa.training.job import Job, LossSum, Project, Trained
from fedapa.training.objective import CrossEntropy, SquaredError
from fedapa.training.optimizers import state_names
from fedapa.training.task import proximal, task_loss

MODEL = ("theta", "phi")
F = TypeVar("F", bound=Callable[..., Any])


class Way(Protocol):
    """How the kernel runs the trainings of one loss."""

    def fits(self, job: Job) -> bool:
        """Whether it can run this one."""

    def train(self, kernel: Kernel, job: Job) -> Trained:
        """All steps of the training."""


def in_kernel(way: Way) -> Callable[[F], F]:
    """Mark a loss that the kernel knows."""

    def mark(loss: F) -> F:
        WAYS[loss] = way
        return loss

    return mark


def train_fused(job: Job) -> Trained | None:
    """The whole training in one native call; None if the kernel cannot."""
    kernel, way = job.task.kernel, WAYS.get(job.loss)
    if kernel is None or way is None or job.task.objective.fuses is None:
        return None
    return way.train(kernel, job) if job.even and way.fits(job) else None


@dataclass(frozen=True)
class WholeModel:
    """Training of theta, phi or both; what is not trained is a constant of the loss.

    ``extra`` names the vector that a shift or a mixture trains along, ``carry`` the running mean of the features.
    """

    terms: Callable[[Tree], Terms] = lambda tree: Terms()
    extra: str = ""
    carry: str = ""

    def fits(self, job: Job) -> bool:
        known = {*MODEL, self.extra} - {""}
        if job.project is not None or set(job.carry) != {self.carry} - {""}:
            return False
        if not (job.params.keys() <= known <= job.params.keys() | job.given.keys()):
            return False
        terms = self.terms(_all(job))
        loss = job.task.objective.fuses
        if isinstance(terms.teacher, SoftLabels) and loss != CrossEntropy():
            return False
        if terms.pull is not None and not isinstance(loss, CrossEntropy):
            return False
        return terms.plain or ("theta" in job.params and (terms.mixture is None or "phi" in job.params))

    def train(self, kernel: Kernel, job: Job) -> Trained:
        given, rates, tree = job.given, job.rates, _all(job)
        order, bounds = _batches(job)
        if len(bounds) == 1:
            return _unchanged(job)
        found = kernel.train(
            TrainingCall(
                theta=tree["theta"],
                phi=tree["phi"],
                x=job.data.x,
                order=order,
                bounds=bounds,
                lr_theta=rates.get("theta", 0.0),
                lr_phi=rates.get("phi", 0.0),
                rule=job.rule,
                clip_norm=job.clip_norm or 0.0,
                **_loss(job),
                velocity_theta=_state(job, "theta"),
                velocity_phi=_state(job, "phi"),
                anchor_theta=given.get("anchor_theta"),
                anchor_phi=given.get("anchor_phi"),
                rho=float(given["rho"]) if "rho" in given else 0.0,
                freeze_theta="theta" not in job.params,
                freeze_phi="phi" not in job.params,
                terms=self.terms(tree),
                extra=tree.get(self.extra),
                velocity_extra=_state(job, self.extra),
                lr_extra=rates.get(self.extra, 0.0),
                freeze_extra=self.extra not in job.params,
            )
        )
        trained = {"theta": found.theta, "phi": found.phi, self.extra: found.extra}
        moved = {"theta": found.velocity_theta, "phi": found.velocity_phi, self.extra: found.velocity_extra}
        carried = {} if found.mean is None else {self.carry: found.mean}
        seen = len(order) if self.terms(tree).plain else 0  # the kernel tells the cross-entropy, which is the loss then
        return Trained(_of(job, trained) | carried, _parted(job, _of(job, moved)), LossSum(found.loss * seen, seen))


@dataclass(frozen=True)
class MixedHead:
    """Training of the weights of a mixed head on features, within 0 and 1. The fields are names of its tensors."""

    weights: str
    arrived: str
    own: str
    carry: str  # the loss of the last batch
    project: Project

    def fits(self, job: Job) -> bool:
        alone = job.params.keys() == {self.weights} and job.carry.keys() == {self.carry}
        known = job.task.objective.fuses == CrossEntropy()
        steps = job.rule.name == "sgd" and not job.rule.nesterov and not job.clip_norm
        return alone and known and steps and job.project is self.project and len(job.params[self.weights]) == job.task.Q

    def train(self, kernel: Kernel, job: Job) -> Trained:
        order, bounds = _batches(job)
        if len(bounds) == 1:
            return _unchanged(job)
        found = kernel.mix_head(
            MixingCall(
                W=job.params[self.weights],
                arrived=job.given[self.arrived],
                own=job.given[self.own],
                z=job.data.x,
                y=job.data.y,
                order=order,
                bounds=bounds,
                lr=job.rates[self.weights],
                momentum=job.rule.momentum,
                weight_decay=job.rule.weight_decay,
                velocity=job.velocity[self.weights],
            )
        )
        mixed = {self.weights: found.W, self.carry: torch.tensor(found.loss)}
        return Trained(mixed, {self.weights: found.velocity})


WAYS: dict[Callable[..., Any], Way] = {task_loss: WholeModel(), proximal: WholeModel()}


def _all(job: Job) -> Tree:
    return {**job.given, **job.carry, **job.params}


def _of(job: Job, found: dict[str, Tensor | None]) -> Tree:
    return {k: v for k in job.params if (v := found[k]) is not None}


def _loss(job: Job) -> dict[str, Any]:
    """Labels and loss in the kernel's words."""
    loss, y = job.task.objective.fuses, job.data.y
    if isinstance(loss, SquaredError):
        return {"y": ((y - loss.mean) / loss.std).float()}
    assert loss is not None
    weights = None if loss.class_weights is None else torch.tensor(loss.class_weights)
    return {"y": y, "class_weights": weights, "smoothing": loss.smoothing}


def _state(job: Job, name: str) -> Tensor | None:
    """The optimiser's state of a parameter that is trained, as one vector."""
    return torch.cat([job.velocity[k] for k in state_names(job.rule, name)]) if name in job.params else None


def _parted(job: Job, states: Tree) -> Tree:
    """The states of all parameters under the names of their parts."""
    found = dict[str, Tensor]()
    for name, state in states.items():
        names = state_names(job.rule, name)
        parts = torch.split(state, [len(job.velocity[k]) for k in names])
        found |= {k: part.clone() for k, part in zip(names, parts, strict=True)}
    return found


def _unchanged(job: Job) -> Trained:
    """Of a training without a step."""
    return Trained({k: v.clone() for k, v in (job.params | job.carry).items()}, job.velocity)


def _batches(job: Job) -> tuple[Tensor, Tensor]:
    """All samples in their order, and where every batch begins."""
    indices = list(job.batches())
    order = torch.cat(indices) if indices else torch.zeros(0, dtype=torch.int64)
    return order, torch.tensor([0, *(len(index) for index in indices)]).cumsum(0)
