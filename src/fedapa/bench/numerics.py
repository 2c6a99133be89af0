"""Do the engines agree? Real data, four rounds: native to torch, beside the distance between two layouts of torch."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedapa.bench import image_data
from fedapa.bench.fixtures import MODEL, How
from fedapa.bench.side_by_side import Row, spread
from fedapa.data.federated import Federated
from fedapa.data.sources import is_present
from fedapa.methods.catalogue import make
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import Result, make_task, simulate
from fedapa.training.architectures.small import lenet5

ROUNDS = 4


class ChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


def channels_last(shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5 with the other order of the pixels in memory: the same sums, rounded differently."""
    layers = dict(lenet5(shape, classes).named_children())
    return nn.Sequential(OrderedDict({"turn": ChannelsLast(), **layers}))


class Agreement(NamedTuple):
    """Relative distances of all clients' θ, and the gap of the accuracies in points, after the last round."""

    native: float
    layouts: float
    gap: float


def agreement(data: Federated, seed: int, method: str = "fedapa") -> Agreement:
    plain = _play(method, data, seed, MODEL, "torch")
    turned = _play(method, data, seed, f"{__name__}:channels_last", "torch")
    native = _play(method, data, seed, MODEL, "native")
    gaps = [abs(_accuracy(native, phase) - _accuracy(plain, phase)) for phase in ("before", "after")]
    return Agreement(_distance(native, plain), _distance(turned, plain), max(gaps))


def _play(method: str, data: Federated, seed: int, model: str, engine: str) -> Result:
    task = make_task(data, model, rounds=ROUNDS, engine=engine)  # type: ignore[arg-type]
    return simulate(make(method), task, data, Plan(ROUNDS, seed=seed, evaluate_every=ROUNDS))


def _distance(one: Result, other: Result) -> float:
    mine, theirs = (torch.stack([record.state["theta"] for record in run.records]) for run in (one, other))
    return float((mine - theirs).norm() / theirs.norm())


def _accuracy(result: Result, phase: str) -> float:
    return result.curve(phase)[-1].pooled


def numerics(how: How) -> list[Row]:
    """Three seeds of the paper's setting; nothing without the real images."""
    if not is_present("cifar10"):
        return []
    train, test = how.pick(50_000, 3_000), how.pick(10_000, 2_000)
    seeds = range(how.pick(3, 1))
    found = [agreement(image_data.unbalanced("cifar10", 20, train, test, seed), seed) for seed in seeds]
    ratios, gaps = spread([a.native / a.layouts for a in found]), spread([a.gap for a in found])
    detail = {"native to torch": [a.native for a in found], "torch to torch": [a.layouts for a in found]}
    where = f"after {ROUNDS} rounds of CIFAR-10, 20 clients, every seed"
    what = "distance of Θ native to torch over the distance of two torch layouts"
    return [
        Row("numerics", f"{what}, {where}", ratios, "x", 1.5, True, detail, every=True),
        Row("numerics", f"accuracy, native to torch, {where}", gaps, "points", 0.3, True, every=True),
    ]
