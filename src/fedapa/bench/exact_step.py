"""FedAPA-exact's server step over many clients: the rows alone, and with the distances between models."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fedapa.bench.fixtures import MODEL, How
from fedapa.bench.side_by_side import Row, Times, interleaved, spread, threads
from fedapa.core import exact_rows, exact_weights
from fedapa.core.exact_rows import Rows
from fedapa.core.threads import available_cores
from fedapa.core.tree import Tree
from fedapa.methods.fedapa_exact import FedAPAExact
from fedapa.training.model import build_model
from fedapa.training.task import Task

PARAMETERS = 61_156  # LeNet-5 on CIFAR-10, without its head
GROUPS = 10
RIDGE = 0.5
NEAREST = 64  # others that a row may mix among 10,000


def exact(how: How) -> list[Row]:
    """Rows by a warm start from those of the round before, as in a run; everybody answers."""
    with threads():
        return [_step(how), _many(how), _one_by_one(how)]


def models(clients: int, size: int, moved: float = 0.0) -> Tensor:
    """Mixtures of a few centres, each with a part of its own; ``moved`` more of another part."""
    random = torch.Generator().manual_seed(0)
    share = torch.rand(clients, GROUPS, generator=random).pow_(6)
    centres = 3 * torch.randn(GROUPS, size, generator=random)
    found = (share / share.sum(1, keepdim=True)) @ centres
    found += 0.7 * torch.randn(clients, size, generator=random)
    return found + moved * torch.randn(clients, size, generator=random) if moved else found


def gaps_of(theta: Tensor) -> Tensor:
    theta = (theta - theta.mean(0)).double()
    inner, length = theta @ theta.T, theta.square().sum(1)
    return (length[:, None] + length - 2 * inner).clamp_(min=0).fill_diagonal_(0)


def _step(how: How) -> Row:
    M, P = how.pick(1_000, 150), how.pick(PARAMETERS, 500)
    method, ids = FedAPAExact(), list(range(M))
    task = Task(build_model(MODEL, (3, 32, 32), 10), 10, torch.full((M,), 100), donate=True)
    task.model.theta_trainable = P
    server: Tree = {
        "theta": torch.zeros(M, P),
        "A": torch.eye(M)[None].clone(),
        "gaps": torch.zeros(1, M, M, dtype=torch.float64),
        "heard": torch.zeros(M),
    }
    uploads = [[{"theta": row} for row in models(M, P, moved)] for moved in (0.0, 0.05, 0.07)]

    def absorb(ups: list[Tree]) -> None:
        server.update(method.absorb(task, server, ids, [], ups))

    found = interleaved({str(k): partial(absorb, ups) for k, ups in enumerate(uploads)}, how.pick(2, 1))
    return _row(f"FedAPA-exact's server step, {M:,} clients, all answer, P={P:,}", _all(found), 1.0)


def _many(how: How) -> Row:
    M = how.pick(10_000, 300)
    around = exact_rows.cloud(gaps_of(models(M, 500)), torch.ones(M, dtype=torch.bool))
    wanted = Rows(torch.arange(M), RIDGE, torch.full((M,), torch.inf, dtype=torch.float64), NEAREST, torch.zeros(M, M))

    def solve() -> None:
        for _ in exact_rows.of_others(around, wanted):
            pass

    what = f"FedAPA-exact's rows, {M:,} clients, top_k = {NEAREST}"
    return _row(what, _all(interleaved({"rows": solve}, 1, warm=False)), 30.0)


def _one_by_one(how: How) -> Row:
    """How much is gained by solving rows together, without a warm start."""
    M, few = how.pick(1_000, 150), how.pick(8, 4)
    gaps, known = gaps_of(models(M, 2_000)), torch.ones(M, dtype=torch.bool)
    ids = torch.arange(exact_rows.ROWS)
    wanted = Rows(ids, RIDGE, torch.full((len(ids),), torch.inf, dtype=torch.float64), 0, torch.zeros(len(ids), M))
    around = exact_rows.cloud(gaps, known)
    ways = {
        "together": lambda: list(exact_rows.of_others(around, wanted)),
        "one by one": lambda: [exact_weights.of_others(gaps, i, known, RIDGE) for i in range(few)],
    }
    found = interleaved(ways, how.pick(3, 1))
    pairs = zip(found["one by one"], found["together"], strict=True)
    ratios = spread([(one.cpu / few) / (other.cpu / len(ids)) for one, other in pairs])
    return Row("exact", f"FedAPA-exact, a row of {M:,} clients: one by one against together", ratios, "x")


def _all(found: dict[str, list[Times]]) -> list[Times]:
    return [one for times in found.values() for one in times]


def _row(what: str, times: list[Times], target: float) -> Row:
    detail = {"cores": available_cores(), "seconds of the processor": spread([t.cpu for t in times]).median}
    return Row("exact", what, spread([t.wall for t in times]), "s", target, True, detail)
