"""Without the extra fedapa[flower] there is nothing here that could run."""

import warnings
from importlib.util import find_spec

import pytest

MISSING = find_spec("flwr") is None
collect_ignore_glob = ["test_*.py"] if MISSING else []

if not MISSING:
    with warnings.catch_warnings():  # of Flower's own imports; in tests they would be errors
        warnings.simplefilter("ignore")
        import flwr  # noqa: F401


def pytest_report_header() -> list[str]:
    return ["tests/flower are left out: pip install 'fedapa[flower]'"] if MISSING else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With --dist loadgroup, tests of a file stay together, since they share a federation. Fuzzed methods share none:
    they come first, each where there is room."""
    items.sort(key=lambda item: item.path.stem != "test_fuzz")
    for item in items:
        if item.path.parent.name == "flower" and item.path.stem != "test_fuzz":
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
