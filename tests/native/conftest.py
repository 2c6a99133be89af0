import pytest

from fedapa.training.engines.native import available


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    usable, why = available()
    if usable:
        return
    for item in items:
        if "tests/native" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=f"the native kernel is not available: {why}"))
