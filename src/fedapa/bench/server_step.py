"""The server's step of FedAPA over many clients and large models, against the matrix product beside it."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedapa.bench.fixtures import MODEL, How
from fedapa.bench.side_by_side import Memory, Row, exponents, gemm, interleaved, known, rate, spread, threads
from fedapa.core.threads import available_cores
from fedapa.core.tree import Tree
from fedapa.methods.fedapa import FedAPA
from fedapa.training.model import build_model
from fedapa.training.task import Task

GROWTH, QUICK_GROWTH = ((1_000, 3_000, 10_000), 61_156), ((20, 40, 80), 4_000)
GRID = [(M, P) for M in (50, 100, 200, 400) for P in (15_000, 61_156, 250_000)]
QUICK_GRID = [(M, P) for M in (10, 20, 40) for P in (1_000, 4_000)]


LARGE, QUICK_LARGE = (1000, 1_100_000, 100), (40, 4_000, 10)  # clients, parameters, how many answered
TIMES_WIDER = 10  # the mapped Theta has so many times the columns, of which the first tenth is worked on


class Server(NamedTuple):
    """A server between two rounds, and the uploads of those who answered."""

    task: Task
    state: Tree
    ids: list[int]
    ups: list[Tree]

    @property
    def flops(self) -> float:
        """Mixing what was sent (Eq. 5), then its inner products with every row of Theta (Eq. 7)."""
        return 4.0 * len(self.ids) * self.state["theta"].numel()


def make_server(clients: int, size: int, answered: int, theta: Tensor | None = None) -> Server:
    random = torch.Generator().manual_seed(0)
    theta = (torch.empty(clients, size) if theta is None else theta).uniform_(0, 0.1, generator=random)
    state = {
        "theta": theta,
        "A": torch.full((clients, clients), 1 / clients),
        "velocity": torch.zeros(clients, clients),
    }
    task = Task(build_model(MODEL, (3, 32, 32), 10), 10, torch.full((clients,), 100), donate=True)
    ups = [{"theta": row} for row in torch.rand(answered, size, generator=random).mul_(0.1)]
    return Server(task, state, list(range(answered)), ups)


def absorb(server: Server) -> None:
    """One server step; FedAPA mixes again what it sent, so that nobody has to keep it."""
    FedAPA(eta=0.0).absorb(server.task, server.state, server.ids, [], server.ups)


def server_pass(how: How) -> list[Row]:
    """FedAPA's server step over clients and parameters, beside a large matrix product."""
    with threads():
        rows = [_scaling(how), _growth(how), *_large(how)]
        with tempfile.TemporaryDirectory() as folder:
            return [*rows, _mapped(how, Path(folder))]


def _scaling(how: How) -> Row:
    """Everybody answers: 4 M^2 P operations, so the exponents should be 2 and 1."""
    sizes = QUICK_GRID if how.quick else GRID
    servers = [make_server(M, P, M) for M, P in sizes]
    found = interleaved({str(k): partial(absorb, one) for k, one in enumerate(servers)}, how.pick(5, 2))
    seconds = [spread([t.cpu for t in found[str(k)]]).median for k in range(len(sizes))]
    of_clients, of_size = exponents([(float(M), float(P)) for M, P in sizes], seconds)
    measured = [
        {"M": M, "P": P, "seconds": spent, "GFLOP/s": one.flops / spent / 1e9}
        for (M, P), spent, one in zip(sizes, seconds, servers, strict=True)
    ]
    what = "FedAPA's server step, everybody answers: growth with the number of clients M (power)"
    detail = {"exponent of M": of_clients, "exponent of P": of_size, "measured": measured}
    return Row("server", what, known(of_clients), "", detail=detail)


def _growth(how: How) -> Row:
    """As many answer whatever the number of clients: 4 S M P operations, so the exponent of M should be 1."""
    clients, P = QUICK_GROWTH if how.quick else GROWTH
    answered, seconds = how.pick(100, 10), []
    for M in clients:  # one after another: together they would not fit into memory
        server = make_server(M, P, answered)
        found = interleaved({"absorb": partial(absorb, server)}, how.pick(3, 1))["absorb"]
        seconds.append(spread([t.cpu for t in found]).median)
    (power,) = exponents([(float(M),) for M in clients], seconds)
    what = f"FedAPA's server step, {answered} answered, P={P:,}: growth with M to {clients[-1]:,} (power)"
    measured = [{"M": M, "seconds": spent} for M, spent in zip(clients, seconds, strict=True)]
    return Row("server", what, known(power), "", 1.1, True, {"measured": measured})


def _all_cores(server: Server, how: How) -> Row:
    """By the clock on the wall, beside a product on all cores: needs a quiet machine."""
    (product, flops), cores = gemm(how.pick(2048, 256)), available_cores()

    def best() -> None:
        with threads(cores):
            product()

    found = interleaved({"absorb": lambda: absorb(server), "gemm": best}, how.pick(3, 2))
    pairs = zip(found["absorb"], found["gemm"], strict=True)
    shares = [100 * (server.flops / one.wall) / (flops / peak.wall) for one, peak in pairs]
    detail = {
        "cores": cores,
        "seconds on the wall": spread([t.wall for t in found["absorb"]]).median,
        "GEMM peak GFLOP/s": rate(flops, found["gemm"], "wall").median / 1e9,
    }
    what = f"{_title(server)}: share of the GEMM peak of all cores"
    return Row("server", what, spread(shares), "%", 75.0, detail=detail)


def _large(how: How) -> list[Row]:
    server = make_server(*(QUICK_LARGE if how.quick else LARGE))
    memory = Memory()
    absorb(server)
    beyond = memory.beyond()
    rows = [_share(server, how, ""), _all_cores(server, how)]
    if beyond is not None:
        what = f"{_title(server)}: memory beyond Θ and the uploads"
        rows.append(Row("server", what, known(beyond), "MB", 500.0, True))
    return rows


def _mapped(how: How, folder: Path) -> Row:
    """The first tenth of the columns of a Theta of 11 million in a mapped file, of which no more is ever stored."""
    M, P, answered = QUICK_LARGE if how.quick else LARGE
    whole = torch.from_file(str(folder / "theta"), shared=True, size=M * P * TIMES_WIDER).view(M, P * TIMES_WIDER)
    server = make_server(M, P, answered, whole[:, :P])
    return _share(server, how, f", the first tenth of P={P * TIMES_WIDER:,} in a mapped file")


def _share(server: Server, how: How, where: str) -> Row:
    product, flops = gemm(how.pick(2048, 256))
    found = interleaved({"absorb": lambda: absorb(server), "gemm": product}, how.pick(3, 2))
    pairs = zip(found["absorb"], found["gemm"], strict=True)
    shares = [100 * (server.flops / one.cpu) / (flops / best.cpu) for one, best in pairs]
    detail = {
        "seconds": spread([t.cpu for t in found["absorb"]]).median,
        "seconds on the wall": spread([t.wall for t in found["absorb"]]).median,
        "GEMM peak GFLOP/s": rate(flops, found["gemm"]).median / 1e9,
    }
    return Row("server", f"{_title(server)}{where}: share of the GEMM peak", spread(shares), "%", 70.0, detail=detail)


def _title(server: Server) -> str:
    M, P = server.state["theta"].shape
    return f"FedAPA's server step, M={M}, P={P:,}, {len(server.ids)} answered"
