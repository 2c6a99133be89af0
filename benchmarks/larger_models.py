"""What makes training and evaluation of larger models faster: layouts, precisions, compilation; many clients on a GPU.

    python benchmarks/larger_models.py                     # ResNet-18 and a Transformer on one core
    python benchmarks/larger_models.py --compile           # with torch.compile, which takes minutes to compile
    python benchmarks/larger_models.py --device cuda       # the same on a GPU, and 20 small clients at once

Every way trains the same batches from the same start, in turn. The table has ratios to the first way (median, lowest to
highest). ``loss`` is how far the loss after the steps is from the first way's: a layout rounds in another order, bf16
has three digits. On a GPU the clock waits until all work is done.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapa.bench.side_by_side import interleaved, ratio, threads
from fedapa.training.architectures.resnet import resnet18
from fedapa.training.architectures.small import lenet5
from fedapa.training.architectures.transformer import transformer

CLIENTS, SMALL_BATCH = 20, 16  # of the small models on a GPU


Found = dict[str, Any]  # a line of the table


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


class Way(NamedTuple):
    """How a model is run."""

    layout: torch.memory_format = torch.contiguous_format
    half: bool = False
    compiled: bool = False
    mode: Callable[[], AbstractContextManager[object]] = torch.no_grad  # of evaluation

    def prepared(self, model: nn.Module) -> nn.Module:
        model = copy.deepcopy(model).to(memory_format=self.layout)
        return torch.compile(model) if self.compiled else model  # type: ignore[return-value]

    def given(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=self.layout) if x.ndim == 4 else x

    def precision(self, x: Tensor) -> AbstractContextManager[object]:
        return torch.autocast(x.device.type, torch.bfloat16) if self.half else nullcontext()


WAYS = {
    "plain": Way(),
    "channels-last": Way(torch.channels_last),
    "bf16": Way(half=True),
    "channels-last, bf16": Way(torch.channels_last, half=True),
}
COMPILED = {"compiled": Way(compiled=True), "channels-last, compiled": Way(torch.channels_last, compiled=True)}
EVALUATION = {"inference mode": Way(mode=torch.inference_mode)}


def train(model: nn.Module, way: Way, batches: list[Batch]) -> float:
    """SGD with momentum on a copy; the loss of the last batch."""
    mine = way.prepared(model).train()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.01, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        with way.precision(x):
            loss = F.cross_entropy(mine(way.given(x)).float(), y)
        loss.backward()
        optimizer.step()
    return float(loss)  # waits for a GPU


def evaluate(model: nn.Module, way: Way, batches: list[Batch]) -> float:
    """The mean loss."""
    with way.mode():
        total = 0.0
        for x, y in batches:
            with way.precision(x):
                total += float(F.cross_entropy(model(way.given(x)).float(), y))
    return total / len(batches)


def batches_of(x: Tensor, count: int, size: int, classes: int) -> list[Batch]:
    return [Batch(part, torch.arange(len(part), device=x.device) % classes) for part in x.split(size)[:count]]


def compare(what: str, calls: dict[str, Callable[[], float]], repeats: int) -> Iterator[Found]:
    reached = {name: call() for name, call in calls.items()}
    found = interleaved(calls, repeats)
    first = next(iter(calls))
    for name in calls:
        gain = ratio(found[first], found[name], "wall")
        yield {"what": what, "way": name, "times as fast": gain._asdict(), "loss": abs(reached[name] - reached[first])}


def of_model(name: str, model: nn.Module, x: Tensor, size: int, classes: int, asked: argparse.Namespace) -> list[Found]:
    ways = {**WAYS, **(COMPILED if asked.compile else {})}
    ways = ways if x.ndim == 4 else {key: way for key, way in ways.items() if "channels" not in key}
    data = batches_of(x, asked.batches, size, classes)
    steps = {key: partial(train, model, way, data) for key, way in ways.items()}
    found = list(compare(f"{name}, training, batch {size}", steps, asked.repeats))
    still = {
        key: partial(evaluate, way.prepared(model).eval(), way, data) for key, way in {**ways, **EVALUATION}.items()
    }
    return found + list(compare(f"{name}, evaluation, batch {size}", still, asked.repeats))


def many_small(asked: argparse.Namespace) -> list[Found]:
    """A gradient step of CLIENTS small models: one after another, in streams of their own, and in one call."""
    device = torch.device(asked.device)
    x = torch.rand(CLIENTS, SMALL_BATCH, 3, 32, 32, device=device)
    y = torch.randint(10, (CLIENTS, SMALL_BATCH), device=device)
    model = lenet5((3, 32, 32), 10).to(device)
    params = {name: value.detach().expand(CLIENTS, *value.shape).clone() for name, value in model.named_parameters()}

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, own, (x,)), y)

    step = torch.func.grad(loss)
    streams = [torch.cuda.Stream() for _ in range(CLIENTS)] if device.type == "cuda" else []

    def one(k: int) -> Tensor:
        return next(iter(step({name: value[k] for name, value in params.items()}, x[k], y[k]).values()))

    def in_turn() -> float:
        return float(torch.stack([one(k) for k in range(CLIENTS)]).sum())

    def in_streams() -> float:
        found = []
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found.append(one(k))
        torch.cuda.synchronize()
        return float(torch.stack(found).sum())

    def at_once() -> float:
        return float(next(iter(torch.func.vmap(step)(params, x, y).values())).sum())

    calls = {"one after another": in_turn, **({"streams": in_streams} if streams else {}), "vmap": at_once}
    return list(compare(f"{CLIENTS} clients of LeNet-5, a step of batch {SMALL_BATCH}", calls, asked.repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    asked = parser.parse_args()
    torch.manual_seed(0)
    images = torch.rand(asked.batches * 32, 3, 32, 32, device=asked.device)
    tokens = torch.randint(1, 200, (asked.batches * 32, 32), device=asked.device)
    with threads():
        rows = of_model("ResNet-18", resnet18((3, 32, 32), 10).to(asked.device), images, 32, 10, asked)
        encoder = transformer((32,), 4, vocabulary=200, width=128, depth=4).to(asked.device)
        rows += of_model("Transformer", encoder, tokens, 32, 4, asked)
        rows += many_small(asked) if asked.device != "cpu" else []
    for row in rows:
        gain = row["times as fast"]
        line = f"{row['what']:44} {row['way']:26} {gain['median']:5.2f} x ({gain['low']:.2f} to {gain['high']:.2f})"
        print(json.dumps(row) if asked.json else f"{line}  loss {row['loss']:.1e}")


if __name__ == "__main__":
    main()
