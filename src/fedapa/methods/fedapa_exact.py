"""FedAPA-exact (ours, on FedAPA by Sun et al., IJCAI 2025): the proxy's minimiser instead of a step towards it.

Server: theta [M, P], A [L, M, M], and gaps [L, M, M], all squared distances |theta_j - theta_k|^2, of which every round
        renews those of the clients who answered. L = 1, or one per layer with ``per_layer``.
Down    theta_bar_i = sum_j a_ij theta_j                                                        (FedAPA's Eq. 5)
Client  E epochs on [theta_bar_i; phi_i]; the head phi_i never leaves
Up      theta_i                                                        messages, bytes and client code are FedAPA's
Server  C_i = the clients before the first jump by a factor ``jump_ratio`` or more in i's sorted gaps, if there is one
        and i was heard from more than ``patience`` times; else all. ``top_k`` leaves the so many nearest, first of all
        b_i = argmin over the simplex on C_i without i of |theta_i - Theta b|^2 + lambda s_i |b|^2,
        s_i the mean gap to C_i;  row_i = mu e_i + (1 - mu) b_i;  A_i <- row_ema A_i + (1 - row_ema) row_i

The program is b' K b with K from the gaps alone (core.exact_weights), solved exactly by core.simplex, as FedPAC's is;
with more than 128 clients all rows together, to 1e-8 (core.exact_rows; rules without a state of their own). Other
rules, kept for comparison (docs/beyond.md has the figures, and why distances in a closed loop confirm themselves):
- ``cut-even``: as ``cut``, and row_i is even over C_i and i, without a self share, once i was parted from anybody.
- ``settle``: lambda -> infinity as long as there is no jump after ``patience`` uploads: all others evenly.
- ``tested``: C_i by a test with an error rate of ``level`` (core.group_test), again in every round after ``patience``
  uploads, so that who was parted may come back; row_i is even over C_i and i, without a self share.
- ``given``: the same with known groups, an oracle: ``sizes`` has those of successive clients.
- ``fixed``: no cut. lambda -> infinity mixes all others evenly, mu = 1 is local training.
- ``neighbour`` and ``noise``: a_i free, at a price: argmin of |theta_i - Theta a|^2 + 2 V_i a_i + lambda s_i |a|^2 over
  the whole simplex, V_i half the gap to the nearest other model, or the mean squared way between two uploads.
- ``leave-one-out``: lambda and mu from a grid, by how well last round's mixtures predicted what the client sends now.
- ``stability``: lambda grows while the row jumps from round to round and shrinks while it does not.
- ``measure = "direction"``: gaps between unit vectors from the mean of all models instead of between models.

Notes:
- Rows change only for clients that answered. Who was never heard from is mixed by nobody and keeps e_i.
- ``row_ema`` averages rows over rounds: A_i = e_i at first, so that a half of the first row is the client's own.
- ``server_ema`` averages models over visits: theta_i <- server_ema theta_i + (1 - server_ema) upload from the second
  visit on. Distances, rows and mixtures are then those of the averages.
- ``per_layer``: a layer is a module with parameters of its own, as in pFedLA; gaps, rows and mixing are per layer.
- Statistics of BatchNorm are mixed with their layer and not measured.
- Watched every round: A (mean over blocks), the effective number of collaborators 1 / sum_j a_ij^2, groups.
- Evaluated: [theta_bar_i; phi_i], the mixture as it arrives, which held-out data prefer (docs/beyond.md); with
  ``fine_tune`` [theta_i; phi_i] after local training, as FedAPA. Runs record both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedapa.core import exact_rows, exact_weights, group_test, weights
from fedapa.core.tree import Tree, grown, writable
from fedapa.methods import pfedla
from fedapa.methods.method import Claims, Method, Role, Roles, When, hyper
from fedapa.training.local import Local
from fedapa.training.task import Task, task_loss

Rule = Literal[
    "cut", "cut-even", "settle", "tested", "given", "neighbour", "noise", "leave-one-out", "stability", "fixed"
]
Measure = Literal["direction", "distance"]
CUTTING = ("cut", "cut-even", "settle")
TOGETHER = (*CUTTING, "fixed")  # rules whose rows do not depend on what was remembered
LOOKING_BACK = ("noise", "leave-one-out", "stability")  # rules that need the state of the last round beside the new one
RIDGES, SHARES = (0.03, 0.1, 0.3, 1.0, 3.0), (0.0, 0.25, 0.5, 0.75)  # what leave-one-out chooses from
CANDIDATES = list(product(RIDGES, SHARES))
STABLE, FACTOR, STEEPEST, FLATTEST = 0.1, 1.5, 0.01, 10.0  # stability: legal change of a row, steps and range of lambda


@dataclass(frozen=True)
class FedAPAExact(Method):
    roles: ClassVar[Roles] = {"A": Role.WEIGHTS}
    together: ClassVar[bool] = True
    renamed: ClassVar[Mapping[str, str]] = {
        "clear": "jump_ratio",
        "keep": "row_ema",
        "past": "server_ema",
        "blocks": "per_layer",
        "steady": "decay of fedapa-exact+ema",
    }

    rule: Rule = hyper("cut", "how collaborators, ridge and self share of every client are found")
    measure: Measure = hyper("distance", "compare models by their distance, or by the direction in which they went")
    jump_ratio: float = hyper(
        3.0, "jump in squared distances that parts a group from the others (cut, settle)", 1.01, search="1.5..6"
    )
    patience: int = hyper(
        5, "uploads of a client that are mixed broadly before anybody is cut off (cut, settle, tested)", 0
    )
    level: float = hyper(0.01, "how often chance may part clients that are alike (tested)", 0.0005, 0.5)
    sizes: str = hyper("", "sizes of the groups of successive clients, such as 4,4,2 (given)")
    ridge: float = hyper(
        0.5, "lambda in units of the mean squared distance to collaborators", 0.0, search="log:0.05..5"
    )
    top_k: int = hyper(0, "mix at most so many others, the nearest (0: all; cut, settle, fixed)", 0)
    share: float = hyper(0.2, "self share (cut, settle, fixed, stability)", 0.0, 1.0, search="0..0.8")
    row_ema: float = hyper(0.5, "share of a row that stays from round to round", 0.0, 0.999, search="0..0.9")
    server_ema: float = hyper(0.0, "share of a client's model on the server that stays from visit to visit", 0.0, 0.999)
    per_layer: bool = hyper(False, "rows of their own for every layer")
    fine_tune: bool = hyper(False, "the model in use is the one after the client's own epochs")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes or self.rule == "given":
            exact_weights.group_sizes(self.sizes)

    @property
    def evaluated(self) -> When:
        return "after" if self.fine_tune else "before"

    def init(self, task: Task, seed: int) -> tuple[Tree, Tree]:
        theta, phi = task.init(seed)
        M, L = task.clients, 1 + max(block for _, block in self._pieces(task))
        server = {
            "theta": theta.expand(M, -1),
            "A": torch.eye(M).repeat(L, 1, 1),
            "gaps": torch.zeros(L, M, M, dtype=torch.float64),
            "heard": torch.zeros(M),  # how often
        }
        return server | self._memory(L, M), {"theta": theta, "phi": phi}

    def send(self, task: Task, server: Tree, i: int) -> Tree:
        return self.send_many(task, server, [i])[0]

    def send_many(self, task: Task, server: Tree, ids: Sequence[int]) -> list[Tree]:
        A, theta = server["A"][:, list(ids)], server["theta"]
        if not self.per_layer:
            return [{"theta": mixed} for mixed in weights.mix(A[0], theta)]
        mixed = [torch.empty(task.P) for _ in ids]
        for piece, block in layers(task):
            for whole, part in zip(mixed, weights.mix(A[block], theta[:, piece]), strict=True):
                whole[piece] = part
        return [{"theta": whole} for whole in mixed]

    def receive(self, task: Task, client: Tree, down: Tree, local: Local) -> Tree:
        return {**client, "theta": down["theta"]}

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = local.sgd(task_loss, client)
        return client, {"theta": client["theta"]}

    def absorb(self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]) -> Tree:
        own, theta = torch.tensor(list(ids)), writable(server["theta"], task.donate)
        past = self.server_ema * (server["heard"][own] > 0) if self.server_ema else None
        look_back, uploads = self.rule in LOOKING_BACK, [up["theta"] for up in ups]
        ahead, fresh = weights.renew(theta, own, uploads, self._pieces(task), past, look_back)
        new = {key: value.clone() for key, value in server.items() if key not in ("theta", "A", "gaps")}
        new |= {"theta": theta, "A": writable(server["A"], task.donate)}
        new["gaps"] = writable(server["gaps"], task.donate and not look_back)
        new["gaps"][:, own] = fresh
        new["gaps"][:, :, own] = fresh.transpose(1, 2)
        new["heard"][own] += 1.0
        for block in range(len(ahead)):
            together = self._together(new, block, own)
            if self.rule in TOGETHER and 0 < self.ridge < math.inf and int((new["heard"] > 0).sum()) > exact_rows.MANY:
                self._write_rows(new, block, own.sort().values)
                continue
            for k, i in enumerate(ids):
                row = self._row(server, new, block, i, ahead[block, k]) if together is None else _even(together, i)
                new["A"][block, i] = self.row_ema * server["A"][block, i] + (1 - self.row_ema) * row.float()
        return new

    def admit(self, task: Task, server: Tree) -> Tree:
        """The newcomer's model is the mean of all, at its true distances; nobody mixes it before it was heard from."""
        M, new = task.clients - 1, self.init(task, 0)[0]
        new["theta"] = grown({"theta": server["theta"]}, new)["theta"]
        new["A"][:, :M, :M], new["gaps"][:, :M, :M] = server["A"], server["gaps"]
        far = torch.stack([exact_weights.lengths(gaps, torch.ones(M)) for gaps in server["gaps"]])
        new["gaps"][:, M, :M] = new["gaps"][:, :M, M] = far
        new["heard"][:M] = server["heard"]
        for name in self._memory(1, 1):
            new[name][tuple(slice(size) for size in server[name].shape)] = server[name]
        return new

    def predict(self, task: Task, client: Tree, x: Tensor) -> Tensor:
        return task.predict(client, x)

    def watch(self, server: Tree) -> Tree:
        A = server["A"].mean(0)
        found = {"A": A, "collaborators": exact_weights.collaborators(A), "groups": exact_weights.groups(A)}
        return found | ({"layers": server["A"]} if self.per_layer else {})

    def claims(self) -> Claims:
        return Claims(resting=("close",), limits={"local": replace(self, rule="fixed", share=1.0, server_ema=0.0)})

    def _together(self, new: Tree, block: int, own: Tensor) -> Tensor | None:
        """[M, M] who mixes whom evenly, by the rules that know groups; None by the others."""
        known = new["heard"] > 0
        if self.rule == "given":
            return exact_weights.same_group(self.sizes, len(known)) & known
        if self.rule != "tested":
            return None
        touched = torch.zeros_like(new["visits"][block], dtype=torch.bool)
        touched[own], touched[:, own] = True, True
        new["visits"][block] += touched & known & known[:, None]
        now = group_test.measured(self._measured(new, block), known)
        averaged = group_test.averaged(new["close"][block], new["visits"][block], now)
        new["close"][block] = torch.where(touched, averaged, new["close"][block])
        found = group_test.members(new["close"][block], known, self.level)
        return torch.where((new["heard"] > self.patience)[:, None], found, known)

    def _row(self, old: Tree, new: Tree, block: int, i: int, ahead: Tensor) -> Tensor:
        """The row that minimises client i's proxy; what the rule remembers of the client is written into ``new``."""
        gaps, known = self._measured(new, block), new["heard"] > 0
        if self.rule in ("neighbour", "noise"):
            return exact_weights.priced(gaps, i, known, self.ridge, self._noise(old, new, block, i, ahead[i]))
        ridge, share = self._ridge_and_share(old, new, block, i, ahead)
        if self.top_k and self.rule in TOGETHER:
            known = exact_weights.closest(gaps, i, known, self.top_k)
        if self.rule in CUTTING and new["heard"][i] > self.patience:
            everybody, known = known, exact_weights.companions(gaps, i, known, self.jump_ratio)
            is_whole = torch.equal(known, everybody)
            if self.rule == "cut-even" and not is_whole:
                return exact_weights.even(i, known)
            if self.rule == "settle" and is_whole:
                ridge = math.inf
        return exact_weights.shared(exact_weights.of_others(gaps, i, known, ridge), i, share)

    def _write_rows(self, new: Tree, block: int, own: Tensor) -> None:
        """The same as ``_row`` for all who answered, together; rows are written into ``new``."""
        A, around = new["A"][block], exact_rows.cloud(self._measured(new, block), new["heard"] > 0)
        may_cut = (new["heard"][own] > self.patience) & (self.rule in CUTTING)
        jump_ratio = torch.where(may_cut, self.jump_ratio, math.inf)
        wanted = exact_rows.Rows(own, self.ridge, jump_ratio, self.top_k, A[own])
        for found in exact_rows.of_others(around, wanted):
            row = exact_weights.shared_by(found.weights, found.ids, self.share)
            evenly = found.allowed.double().scatter(1, found.ids[:, None], 1.0)
            if self.rule == "cut-even":
                row = torch.where(found.parted[:, None], evenly / evenly.sum(1, keepdim=True), row)
            if self.rule == "settle":
                even = found.allowed / found.allowed.sum(1, keepdim=True)
                settled = (new["heard"][found.ids] > self.patience) & ~found.parted
                row = torch.where(settled[:, None], exact_weights.shared_by(even, found.ids, self.share), row)
            A[found.ids] = self.row_ema * A[found.ids] + (1 - self.row_ema) * row.float()

    def _measured(self, server: Tree, block: int) -> Tensor:
        gaps: Tensor = server["gaps"][block]
        return gaps if self.measure == "distance" else exact_weights.directions(gaps, server["heard"] > 0)

    def _noise(self, old: Tree, new: Tree, block: int, i: int, moved: Tensor) -> float:
        """V_i: half the way to the nearest other model, or how far its own moved since the last visit, averaged."""
        if self.rule == "neighbour":
            return float(exact_weights.nearest(self._measured(new, block), i, new["heard"] > 0)) / 2
        new["noise"][block, i] = noise = (old["noise"][block, i] + moved) / 2 if old["heard"][i] else moved
        unit = 1.0 if self.measure == "distance" else exact_weights.lengths(new["gaps"][block], new["heard"] > 0)[i]
        return float(noise / unit) if unit > 0 else 0.0

    def _ridge_and_share(self, old: Tree, new: Tree, block: int, i: int, ahead: Tensor) -> tuple[float, float]:
        """lambda_i and mu_i: as set, by the errors of predictions, or by how much the row jumps."""
        if self.rule in (*CUTTING, "fixed"):
            return self.ridge, self.share
        if self.rule == "stability":
            new["ridges"][block, i] = ridge = self._steadied(old, new, block, i)
            return ridge, self.share
        if old["heard"][i]:
            new["errors"][block, i] = (old["errors"][block, i] + self._errors(old, block, i, ahead)) / 2
        return CANDIDATES[int(new["errors"][block, i].argmin())]

    def _steadied(self, old: Tree, new: Tree, block: int, i: int) -> float:
        """A larger ridge for a row that changed much since the last round, a smaller one for a row that did not."""
        ridge = float(old["ridges"][block, i])
        then, now = (
            exact_weights.of_others(self._measured(tree, block), i, tree["heard"] > 0, ridge) for tree in (old, new)
        )
        jumps = float((now - then).abs().sum()) / 2 > STABLE
        return min(max(ridge * FACTOR if jumps else ridge / FACTOR, STEEPEST), FLATTEST)

    def _errors(self, old: Tree, block: int, i: int, ahead: Tensor) -> Tensor:
        """[G] how far every candidate's mixture of the last round's models was from what the client sends now."""
        gaps, known = old["gaps"][block], old["heard"] > 0
        steep = {ridge: exact_weights.of_others(self._measured(old, block), i, known, ridge) for ridge in RIDGES}
        found = [
            exact_weights.miss(exact_weights.shared(steep[ridge], i, share), ahead, gaps) for ridge, share in CANDIDATES
        ]
        return torch.stack(found) / exact_weights.spread(gaps, i, known).clamp(min=torch.finfo(gaps.dtype).tiny)

    def _memory(self, L: int, M: int) -> Tree:
        """What the rule remembers of every client."""
        kept = {
            "noise": {"noise": torch.zeros(L, M, dtype=torch.float64)},
            "leave-one-out": {"errors": torch.zeros(L, M, len(CANDIDATES), dtype=torch.float64)},
            "tested": {name: torch.zeros(L, M, M, dtype=torch.float64) for name in ("close", "visits")},
            "stability": {"ridges": torch.ones(L, M, dtype=torch.float64)},
        }
        return kept.get(self.rule, {})

    def _pieces(self, task: Task) -> weights.Pieces:
        """Which columns are measured together; statistics of BatchNorm are not."""
        stop = task.model.theta_trainable
        found = layers(task) if self.per_layer else [(slice(0, stop), 0), (slice(stop, task.P), 0)]
        return [(piece, block if piece.stop <= stop else weights.UNMEASURED) for piece, block in found]


def _even(together: Tensor, i: int) -> Tensor:
    return exact_weights.even(i, together[i])


def layers(task: Task) -> weights.Pieces:
    """Every tensor's place in theta and the number of its layer."""
    return [(piece, layer) for piece, layer in pfedla.pieces(task) if piece.stop <= task.P]
