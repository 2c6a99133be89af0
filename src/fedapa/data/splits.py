"""One site's rows into train and test: stratified by class, by group (a patient's rows stay together), by time or in
the order of the file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt

from fedapa.data.cell_format import as_number
from fedapa.data.federated import set_aside
from fedapa.data.site_description import SplitRule
from fedapa.data.tables import Cells, Mask
from fedapa.errors import InputError

Labels = npt.NDArray[np.int64]


def too_few(where: str, rows: int) -> InputError:
    return InputError(f"{where}: {rows} row cannot be split", "leave the site out, or give it more rows")


def test_rows(
    rule: SplitRule, y: Labels, share: float, rng: np.random.Generator, keys: Cells | None, where: str
) -> Mask:
    """Mask of the rows that are kept for testing."""
    if len(y) < 2:
        raise too_few(where, len(y))
    if rule == "stratified":
        return set_aside(y, share, rng)
    if rule == "order":
        return by_time(np.arange(len(y)).astype(str).astype(object), share, where)
    assert keys is not None
    if gaps := int(sum(key is None for key in keys)):
        raise InputError(f"{where}: {gaps} rows have no value in the column that splits by {rule}", "fill it in")
    return by_group(keys, share, rng, where) if rule == "group" else by_time(keys, share, where)


def by_group(groups: Cells, share: float, rng: np.random.Generator, where: str) -> Mask:
    """Whole groups, in random order, until the test part is as near to its share as another group would bring it."""
    names = np.array(sorted(set(groups)), dtype=object)
    if len(names) < 2:
        raise InputError(f"{where}: all rows are of one group", "split by another column, or stratified")
    mask, wanted = np.zeros(len(groups), bool), share * len(groups)
    for name in rng.permutation(names):
        bigger = mask | (groups == name)
        if abs(bigger.sum() - wanted) < abs(mask.sum() - wanted) or not mask.any():
            mask = bigger
    if mask.all():
        mask = groups == names[0]
    return mask


def by_time(times: Cells, share: float, where: str) -> Mask:
    """The latest rows; rows of one moment stay together, on the test side."""
    moments = _moments(times, where)
    count = min(max(1, round(share * len(moments))), len(moments) - 1)
    mask: Mask = moments >= np.sort(moments)[len(moments) - count]
    if mask.all():
        raise InputError(f"{where}: too many rows have the same time to split by it", "split by another column")
    return mask


def _moments(times: Cells, where: str) -> npt.NDArray[np.float64]:
    """Numbers, or dates and times as ISO 8601 writes them."""
    found = [as_number(time) for time in times]
    if None not in found:
        return np.array(found, dtype=np.float64)
    try:
        return np.array([datetime.fromisoformat(time).timestamp() for time in times])
    except ValueError:
        odd = next(time for time in times if not is_date(time))
        raise InputError(f"{where}: '{odd}' is not a time", "write times as 2026-11-16, or as numbers") from None


def is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def kept_together(mask: Mask, twins: Sequence[npt.NDArray[np.int64]]) -> Mask:
    """The same mask with rows that are equal in everything on one side: that of the first of them."""
    mask = mask.copy()
    for rows in twins:
        mask[rows] = mask[rows[0]]
    return mask


def equal_rows(x: npt.NDArray[np.generic], y: npt.NDArray[np.generic]) -> list[npt.NDArray[np.int64]]:
    """Sets of two or more rows with the same inputs and label."""
    seen: dict[bytes, list[int]] = {}
    for k in range(len(y)):
        seen.setdefault(x[k].tobytes() + y[k].tobytes(), []).append(k)
    return [np.array(rows, dtype=np.int64) for rows in seen.values() if len(rows) > 1]
