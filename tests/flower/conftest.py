"""Without the extra fedapa[flower] there is nothing here that could run."""

from importlib.util import find_spec

MISSING = find_spec("flwr") is None
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header() -> list[str]:
    return ["tests/flower are left out: pip install 'fedapa[flower]'"] if MISSING else []
