"""What a site checks about the terms of a run before it agrees to them: numbers that the coordinator computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

from torch import Tensor

from fedapa.federation.kit import NAME
from fedapa.federation.messages import Refused, Terms, plain
from fedapa.federation.site_result import ABOUT, read_about
from fedapa.federation.site_settings import CHANGE
from fedapa.federation.site_store import Store

ROUNDING = 1e-9  # of sums
MOST_SITES = 10_000  # of a run; their names are kept


def check_names(terms: Terms) -> None:
    """Refuse names that no coordinator gives to sites, since they are written to this site's disk."""
    if len(terms.names) != len(terms.sizes) or len(terms.names) > MOST_SITES:
        said = f"the run has {len(terms.names)} names of sites and {len(terms.sizes)} sizes, at most {MOST_SITES}"
        raise Refused(said, "begin a new run")
    if (odd := next((name for name in terms.names if not NAME.fullmatch(name)), None)) is not None:
        raise Refused(f"{plain(odd, 40)!r} is no name of a site", "letters, digits, . _ and -, at most 63")


def check_continues(store: Store, terms: Terms, client: int) -> None:
    """Refuse another run under the id of one that this site agreed to: ``max_runs`` would not count it. Sites that join
    later come behind those that are there, and are gone again where a resumed run plays rounds before them."""
    if not (store.place(terms.run) / ABOUT).is_file():
        return
    about = read_about(store, terms.run)
    known = about.terms
    fixed = [f.name for f in fields(Terms) if f.name not in ("names", "sizes")]
    changed = [name for name in fixed if getattr(terms, name) != getattr(known, name)]
    pairs = zip(zip(terms.names, terms.sizes, strict=True), zip(known.names, known.sizes, strict=True), strict=False)
    if client != about.client or any(now != then for now, then in pairs):
        changed.append("list of sites")
    if changed:
        raise Refused(f"the run's {changed[0]} changed since this site agreed to it", "start a new run")


def check_target(
    target: Sequence[float], y: Tensor, classes: int, limits: tuple[float, float] | None, most: float
) -> None:
    """Refuse a mean and standard deviation that make this site's targets large: they multiply its loss, and with it its
    update, whatever the learning rate.

    Honest ones are those of the rows of all sites, so the root mean square of a site's scaled targets is at most
    sqrt(rows of all / rows of this site), and near 1 where sites are alike. A large deviation makes an update smaller.
    """
    if len(target) != (0 if classes else 2):
        said = "none, as labels are classes" if classes else "a mean and a standard deviation"
        raise Refused(f"the run's target holds {len(target)} numbers, expected is {said}", "begin a new run")
    if classes:
        return
    mean, std = target
    said = f"the run scales targets by mean {mean:g} and standard deviation {std:g}"
    if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
        raise Refused(f"{said}, which is no scale", "begin a new run")
    low, high = limits or (-math.inf, math.inf)
    slack = ROUNDING * max(abs(low), abs(high))
    if limits is not None and not (low - slack <= mean <= high + slack and std <= _widest(limits)):
        raise Refused(f"{said}, which numbers from {low:g} to {high:g} cannot have", "begin a new run")
    if float(((y.double() - mean) / std).square().mean().sqrt()) > most:
        raise Refused(f"{said}; scaled so, this site's exceed its limit max_target = {most:g}", CHANGE)


def _widest(limits: tuple[float, float]) -> float:
    """The largest deviation of numbers in a range: half of them at either end; 1 is that of equal numbers."""
    return max((limits[1] - limits[0]) / 2 * (1 + ROUNDING), 1.0)
