"""The order of the laws: those of one method together, since they share the visits that they play."""

from __future__ import annotations

import pytest

from fedapa.methods.catalogue import METHODS

PLACE = {name: k for k, name in enumerate(METHODS)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [k for k, item in enumerate(items) if item.path.name == "test_contract.py"]
    ordered = sorted((items[k] for k in places), key=_place)
    for k, item in zip(places, ordered, strict=True):
        items[k] = item


def _place(item: pytest.Item) -> int:
    """Of the method that it is about; tests of no method in particular come last."""
    found = getattr(item, "callspec", None)
    return PLACE.get(found.params.get("name", ""), len(PLACE)) if found is not None else len(PLACE)
