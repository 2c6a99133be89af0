"""Quadratic programs on the simplex: minimise a' Q a - 2 c' a over a >= 0, sum a = 1.

Small, dense and exact: a primal active-set method in float64, deterministic. Q may be rank-deficient or, by
rounding, a little indefinite: negative eigenvalues are dropped, and a ridge of ``RIDGE`` times the largest
entry makes the answer unique, of all minimisers the one of least norm, so that identical rows share equally.
"""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-10
TOLERANCE = 1e-12


def minimise(Q: Tensor, c: Tensor | None = None) -> Tensor:
    """The minimiser a [M] of a' Q a - 2 c' a on the simplex, in the dtype of Q; c is zero unless given."""
    H, b = _prepared(Q, torch.zeros(len(Q)) if c is None else c)
    a = torch.zeros(len(H), dtype=torch.float64)
    a[int((H.diagonal() - 2 * b).argmin())] = 1.0
    support = a > 0
    for _ in range(10 * len(H) + 10):
        slack = _slack(H, b, a).masked_fill(support, 0.0)
        enter = int(slack.argmin())
        if slack[enter] >= -TOLERANCE:
            break
        support[enter] = True
        better, support = _settle(H, b, a, support)
        if _value(H, b, better) >= _value(H, b, a):
            break  # what is left to gain is smaller than rounding
        a = better
    return (a / a.sum()).to(Q.dtype)


def project(points: Tensor) -> Tensor:
    """The point of the simplex that is nearest to every row, by sorting; -inf in a row gets no weight.

    The minimiser of |a - v|^2, and so of any program whose Q is a multiple of the identity.
    """
    top = points.sort(-1, descending=True).values
    excess = (top.cumsum(-1) - 1) / torch.arange(1, points.shape[-1] + 1)
    last = (top > excess).sum(-1, keepdim=True) - 1
    return (points - excess.gather(-1, last)).clamp(min=0)


def drop_small(a: Tensor, floor: float) -> Tensor:
    """Weights below ``floor`` become zero, the rest is scaled back to sum one; the largest always stays."""
    kept = torch.where((a < floor) & (a < a.max()), torch.zeros_like(a), a)
    return kept / kept.sum()


def _prepared(Q: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric, positive definite, of unit scale; the scale of an objective does not move its minimiser."""
    H, b = Q.detach().double(), c.detach().double()
    scale = torch.maximum(H.abs().max(), b.abs().max()).clamp(min=torch.finfo(torch.float64).tiny)
    H, b = (H + H.T) / (2 * scale), b / scale
    one = torch.eye(len(H), dtype=torch.float64)
    if torch.linalg.cholesky_ex(H - TOLERANCE * one).info:  # else positive definite, at a tenth of eigh's work
        values, vectors = torch.linalg.eigh(H)
        H = (vectors * values.clamp(min=0)) @ vectors.T if values[0] < 0 else H
    return H + RIDGE * one, b


def _settle(H: Tensor, b: Tensor, a: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """The minimiser on the support; coordinates that would turn negative leave it one by one."""
    support = support.clone()
    while True:
        target = _on_support(H, b, support)
        falling = support & (target <= 0)
        if not falling.any():
            return target, support
        ratio = torch.where(falling, a / (a - target).clamp(min=torch.finfo(torch.float64).tiny), torch.inf)
        leave = int(ratio.argmin())
        a = (a + ratio[leave].clamp(max=1.0) * (target - a)).clamp(min=0)
        support[leave] = False
        a[leave] = 0.0


def _on_support(H: Tensor, b: Tensor, support: Tensor) -> Tensor:
    """Minimiser with sum one over the supported coordinates, signs left free: H a + nu 1 = b, 1'a = 1."""
    index = support.nonzero()[:, 0]
    size = len(index)
    K = torch.ones(size + 1, size + 1, dtype=torch.float64)
    K[:size, :size], K[size, size] = H[index][:, index], 0.0
    right = torch.cat([b[index], torch.ones(1, dtype=torch.float64)])
    x = torch.linalg.solve(K, right)
    x = x + torch.linalg.solve(K, right - K @ x)  # one refinement: K is nearly singular where H is
    a = torch.zeros_like(b)
    a[index] = x[:size]
    return a


def _slack(H: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """Half the gradient minus its multiplier: zero on the support and >= 0 off it at the optimum (KKT)."""
    slope = H @ a - b
    return slope - slope @ a


def _value(H: Tensor, b: Tensor, a: Tensor) -> Tensor:
    return a @ (H @ a) - 2 * (b @ a)
