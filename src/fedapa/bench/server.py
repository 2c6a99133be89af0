"""The server's step of FedAPA over many clients and large models, against the matrix product beside it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from fedapa.bench.bed import MODEL, How
from fedapa.bench.measure import Memory, Row, Times, exponents, gemm, interleaved, known, rate, spread, threads
from fedapa.core.tree import Tree
from fedapa.methods.fedapa import FedAPA
from fedapa.task.models import build_model
from fedapa.task.task import Task

GRID = [(M, P) for M in (50, 100, 200, 400) for P in (15_000, 61_156, 250_000)]
QUICK_GRID = [(M, P) for M in (10, 20, 40) for P in (1_000, 4_000)]


class Server(NamedTuple):
    """A server between two rounds, and the messages of those who answered."""

    task: Task
    state: Tree
    ids: list[int]
    downs: list[Tree]
    ups: list[Tree]


def make_server(clients: int, size: int, answered: int) -> Server:
    random = torch.Generator().manual_seed(0)
    state = {
        "theta": torch.rand(clients, size, generator=random).mul_(0.1),
        "A": torch.full((clients, clients), 1 / clients),
        "velocity": torch.zeros(clients, clients),
    }
    task = Task(build_model(MODEL, (3, 32, 32), 10), 10, torch.full((clients,), 100), donate=True)
    downs, ups = (_messages(answered, size, random) for _ in range(2))
    return Server(task, state, list(range(answered)), downs, ups)


def _messages(count: int, size: int, random: torch.Generator) -> list[Tree]:
    return [{"theta": row} for row in torch.rand(count, size, generator=random).mul_(0.1)]


def absorb(server: Server) -> None:
    FedAPA(eta=0.0).absorb(server.task, server.state, server.ids, server.downs, server.ups)


def send(server: Server) -> None:
    for i in server.ids:
        FedAPA().send(server.task, server.state, i)


def server_pass(how: How) -> list[Row]:
    """FedAPA's server step over clients and parameters, beside a large matrix product."""
    with threads():
        return [_scaling(how), *_large(how)]


def _scaling(how: How) -> Row:
    """Everybody answers: 2 M^2 P operations, so the exponents should be 2 and 1."""
    sizes = QUICK_GRID if how.quick else GRID
    servers = [make_server(M, P, M) for M, P in sizes]
    found = interleaved({str(k): partial(absorb, one) for k, one in enumerate(servers)}, how.pick(5, 2))
    seconds = [spread([t.cpu for t in found[str(k)]]).median for k in range(len(sizes))]
    of_clients, of_size = exponents([(float(M), float(P)) for M, P in sizes], seconds)
    table = [
        {"M": M, "P": P, "seconds": s, "GFLOP/s": 2e-9 * M * M * P / s}
        for (M, P), s in zip(sizes, seconds, strict=True)
    ]
    detail = {"exponent of M": of_clients, "exponent of P": of_size, "measured": table}
    return Row(
        "server",
        "FedAPA's server step, growth with the number of clients M (power)",
        known(of_clients),
        "",
        None,
        detail=detail,
    )


def _large(how: How) -> list[Row]:
    M, P, S = (40, 4_000, 10) if how.quick else (1000, 1_100_000, 100)
    server = make_server(M, P, S)
    product, flops = gemm(how.pick(2048, 256))
    memory = Memory()
    absorb(server)
    beyond = memory.beyond()
    found = interleaved({"absorb": lambda: absorb(server), "gemm": product}, how.pick(3, 2))
    shares = [
        100 * a / b for a, b in zip(_rates(2.0 * S * M * P, found["absorb"]), _rates(flops, found["gemm"]), strict=True)
    ]
    title = f"FedAPA's server step, M={M}, P={P:,}, {S} answered"
    detail = {
        "seconds": spread([t.cpu for t in found["absorb"]]),
        "GEMM peak GFLOP/s": rate(flops, found["gemm"]).median / 1e9,
    }
    rows = [Row("server", f"{title}: share of the GEMM peak", spread(shares), "%", 70.0, detail=detail)]
    if beyond is not None:
        what = f"{title}: memory beyond Θ and the messages"
        rows.append(Row("server", what, known(beyond), "MB", 500.0, True))
    return rows


def _rates(work: float, times: list[Times]) -> list[float]:
    return [work / t.cpu for t in times]
