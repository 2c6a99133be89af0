"""Update rules and learning rates on flat vectors: SGD, Adam and AdamW, of one client or of many clients as rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedapa.core.tree import Tree
from fedapa.training.settings import Optimizer, Training

SQUARE, STEPS = "square", "steps"  # of Adam, beside the first moment: the second one, and how many steps were taken


class Rule(NamedTuple):
    """How a gradient becomes a step."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    name: Optimizer = "sgd"
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


def rule_of(training: Training) -> Rule:
    made = training.optimizer, training.nesterov, training.betas, training.eps
    return Rule(training.momentum, training.weight_decay, *made)


def state_of(rule: Rule, name: str, param: Tensor) -> Tree:
    """The state of one parameter before its first step: under its own name the velocity, or the first moment."""
    begun = {name: torch.zeros_like(param)}
    if rule.name == "sgd":
        return begun
    return begun | {f"{name}/{SQUARE}": torch.zeros_like(param), f"{name}/{STEPS}": param.new_zeros(1)}


def state_names(rule: Rule, name: str) -> tuple[str, ...]:
    """What the state of one parameter consists of."""
    return (name,) if rule.name == "sgd" else (name, f"{name}/{SQUARE}", f"{name}/{STEPS}")


def direction(rule: Rule, name: str, w: Tensor, grad: Tensor, state: Tree) -> Tensor:
    """What the rate is multiplied by and ``w`` is lowered by; ``state`` moves on in place.

    The same for one client, with vectors, and for many, with a row for each of them.
    """
    if rule.name != "sgd":
        return _adam(rule, name, w, grad, state)
    v = state[name].mul_(rule.momentum).add_(grad)
    if rule.weight_decay:
        v.add_(w, alpha=rule.weight_decay)
    if not rule.nesterov:
        return v
    return torch.add(grad, v, alpha=rule.momentum).add_(w, alpha=rule.weight_decay)


def _adam(rule: Rule, name: str, w: Tensor, grad: Tensor, state: Tree) -> Tensor:
    """Adam adds the decay to the gradient, AdamW to the step."""
    if rule.name == "adam" and rule.weight_decay:
        grad = torch.add(grad, w, alpha=rule.weight_decay)
    first, second = rule.betas
    mean = state[name].lerp_(grad, 1 - first)
    square = state[f"{name}/{SQUARE}"].mul_(second).addcmul_(grad, grad, value=1 - second)
    steps = state[f"{name}/{STEPS}"].add_(1)
    step = (mean / _unbiased(first, steps)) / (square / _unbiased(second, steps)).sqrt_().add_(rule.eps)
    return step if rule.name == "adam" or not rule.weight_decay else step.add_(w, alpha=rule.weight_decay)


def _unbiased(beta: float, steps: Tensor) -> Tensor:
    """1 - beta^steps, exact also where beta is near 1."""
    return torch.ones_like(steps) if beta == 0 else -torch.expm1(steps * math.log(beta))


# ----------------------------------------------------------------------------------------------------------- rates


def base_rate(training: Training, name: str) -> float:
    """The rate of a parameter before any schedule; theta and phi may have their own, also in a second model."""
    part = name.rpartition("_")[2]
    return {"theta": training.lr_theta, "phi": training.lr_phi}.get(part) or training.lr


def schedule_factor(training: Training, at: float, rounds: int) -> float:
    """What the rate is multiplied by ``at`` a round, counted from 0; whole, or with the share of a visit that is over.

    During the warm-up it rises evenly, and is 1 when that ends. Cosine falls to 0 at the end of the run.
    """
    if at < training.lr_warmup:
        return (at + 1) / (training.lr_warmup + 1)
    past, left = at - training.lr_warmup, max(rounds - training.lr_warmup, 1)
    if training.lr_schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(past / left, 1.0)))
    if training.lr_schedule == "step":
        return float(training.lr_decay ** (past // training.lr_every))
    return 1.0
